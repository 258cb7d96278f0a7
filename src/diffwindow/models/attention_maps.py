"""See what the attentions of a model do, without a trace of it in their code."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from diffwindow.attention.stacked_attention import Maps
from diffwindow.layers.transformer import AttentionBlock
from diffwindow.notation import Role

AttentionMaps = dict[Role, tuple[Maps, ...]]


@contextmanager
def recorded(blocks: Mapping[Role, Sequence[AttentionBlock]]) -> Iterator[dict[Role, list[Maps]]]:
    """Collect the maps of each block, by role and in the order of the layers, while the context runs."""
    found: dict[Role, list[Maps]] = {role: [] for role in blocks}

    def record(into: list[Maps]) -> Any:
        def hook(block: AttentionBlock, args: tuple[Any, ...], options: dict[str, Any], _: Tensor) -> None:
            options.pop("cache", None)
            into.append(block.maps(*args, **options))

        return hook

    with ExitStack() as stack:
        for role, of_role in blocks.items():
            for block in of_role:
                handle = block.register_forward_hook(record(found[role]), with_kwargs=True)
                stack.callback(handle.remove)
        yield found
