"""Export a Translator, its encoder and one step of its decoder, through `torch.export` and to ONNX.

Shapes: s sentences, n source tokens, w hypotheses of a sentence, t tokens before the step; all may vary.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from diffwindow.attention.cache import KeyCache
from diffwindow.attention.visibility import padded_visibility
from diffwindow.attention.window_module import use_impl, window_modules
from diffwindow.extras import require
from diffwindow.files import replacing
from diffwindow.models.decoding_state import DecodingState
from diffwindow.models.model import in_eval_mode
from diffwindow.models.translator import Translator

# the files of the ONNX graphs
GRAPHS = ("encoder.onnx", "step.onnx")


class Exported(NamedTuple):
    """The two graphs that decode together.

    Call them with `graph.module(check_guards=False)`: tracing a view that folds hypotheses into sentences
    leaves guards against sizes of one, at which the graph is just as right.
    """

    encoder: ExportedProgram
    step: ExportedProgram


class EncoderGraph(nn.Module):
    """From source tokens to the keys of each decoder layer."""

    def __init__(self, model: Translator) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, source: Int[Tensor, "s n"], source_mask: Bool[Tensor, "s n"]
    ) -> tuple[Float[Tensor, "s n _"], ...]:
        """Encode; the mask is True at real tokens."""
        return tuple(self.model.begin(source, source_mask).memory)


class StepGraph(nn.Module):
    """From one token of each hypothesis, and what is kept of those before it, to the logits of the next."""

    def __init__(self, model: Translator) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Int[Tensor, "s w"],
        source_mask: Bool[Tensor, "s n"],
        memory: tuple[Float[Tensor, "s n _"], ...],
        prefix: tuple[Float[Tensor, "s w t _"], ...],
    ) -> tuple[Float[Tensor, "s w v"], tuple[Float[Tensor, "s w t2 _"], ...]]:
        """Step; the prefix keys of each layer come out one token longer than they went in."""
        caches = [_Grown(keys.flatten(0, 1)) for keys in prefix]
        state = DecodingState(
            caches=list[KeyCache](caches),
            num_sentences=tokens.shape[0],
            num_hypotheses=tokens.shape[1],
            memory=list(memory),
            memory_visibility=padded_visibility(source_mask),
        )
        logits = self.model.step(tokens, state)
        return logits, tuple(cache.keys.unflatten(0, tokens.shape) for cache in caches)


class _Grown(KeyCache):
    """A cache that is a value: appending makes a new tensor, as a graph needs."""

    def __init__(self, keys: Tensor) -> None:
        super().__init__()
        self.keys = keys
        self.length = keys.shape[1]

    def append(self, keys: Tensor) -> Tensor:
        self.keys = torch.cat([self.keys, keys], dim=1)
        return self.keys


def empty_prefix(model: Translator, tokens: Int[Tensor, "s w"]) -> tuple[Float[Tensor, "s w 0 _"], ...]:
    """Return the prefix keys of the first step, which are none."""
    weight = model.embedding.weight
    keys = (block.attention.project_keys(weight[:1, None]) for block in model.decoder.self_blocks())
    return tuple(weight.new_empty(*tokens.shape, 0, key.shape[-1]) for key in keys)


@torch.no_grad()
def export(model: Translator) -> Exported:
    """Export both graphs for any number of sentences, hypotheses and tokens, by the model's window rules."""
    if any(module.options.window_rule == "joint" for module in window_modules(model)):
        raise ValueError(
            'window_rule="joint" takes more steps the longer a text is, which a graph cannot; export with '
            '"soft", "argmax", "half" or "none"'
        )
    if model.config.has_phrases:
        raise ValueError(
            f"{model.config.attention} needs the phrases of each source, which exported graphs do not take; "
            "export a model without them"
        )
    if model.decoder.phrases is not None:
        raise ValueError(
            f"{model.config.attention} learns phrases of the target, which exported graphs do not keep; "
            "export a model without them in Dec"
        )
    device = model.embedding.weight.device
    source, tokens = torch.full((2, 5), 4, device=device), torch.full((2, 3), 4, device=device)
    mask = torch.ones_like(source, dtype=torch.bool)
    prefix = tuple(x.new_zeros(2, 3, 4, x.shape[-1]) for x in empty_prefix(model, tokens))
    s, w, t = Dim("sentences"), Dim("hypotheses"), Dim("prefix_length")
    # a graph takes two gaps and more between tokens: pad a shorter source
    n = Dim("source_length") if model.encoder.phrases is None else Dim("source_length", min=3)
    by_source, by_prefix = {0: s, 1: n}, {0: s, 1: w, 2: t}
    step_shapes = ({0: s, 1: w}, by_source, (by_source,) * len(prefix), (by_prefix,) * len(prefix))
    # no graph can hold a kernel made for this machine, and a translation must not be random
    with use_impl(model, "reference"), in_eval_mode(model):
        memory = EncoderGraph(model)(source, mask)
        encoder = torch.export.export(
            EncoderGraph(model), (source, mask), dynamic_shapes=(by_source, by_source), strict=False
        )
        step = torch.export.export(
            StepGraph(model), (tokens, mask, memory, prefix), dynamic_shapes=step_shapes, strict=False
        )
    return Exported(encoder, step)


def export_onnx(model: Translator, folder: str | Path) -> None:
    """Write `encoder.onnx` and `step.onnx`, which run wherever ONNX does.

    The encoder takes `source` and `source_mask` and gives `memory.0`, `memory.1`, …; the step takes `tokens`,
    `source_mask`, the memory and `prefix.0`, … and gives `logits` and `grown.0`, …, its next prefix.
    """
    require("onnx", "onnxscript")
    layers = range(model.config.decoder_layers)
    memory, prefix, grown = ([f"{name}.{i}" for i in layers] for name in ("memory", "prefix", "grown"))
    exported = export(model)
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    encoder, step = (path / name for name in GRAPHS)
    _write(exported.encoder, encoder, ["source", "source_mask"], memory)
    _write(exported.step, step, ["tokens", "source_mask", *memory, *prefix], ["logits", *grown])


def _write(program: ExportedProgram, path: Path, inputs: list[str], outputs: list[str]) -> None:
    graph: Any = torch.onnx.export(
        program, (), dynamo=True, input_names=inputs, output_names=outputs, verbose=False
    )
    with replacing(path, follow_link=True) as temporary:
        graph.save(temporary, external_data=False)
