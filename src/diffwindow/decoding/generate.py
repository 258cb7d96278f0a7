"""Continue a text with a language model."""

import torch

from diffwindow.data.tokenizer import Tokenizer, moses_detokenizer
from diffwindow.decoding import Decoding
from diffwindow.decoding.beam import decode
from diffwindow.decoding.search import start_continuation
from diffwindow.models.language_model import LanguageModel
from diffwindow.models.model import evaluating
from diffwindow.special_tokens import BOS, EOS

# the default of `max_new_tokens`
LONGEST = 50
# how a language model decodes by default; several samples are ranked by probability alone
GENERATION = Decoding(beam=1, length_penalty=0.0, temperature=1.0)


def continue_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str,
    decoding: Decoding,
    *,
    moses: str | None = None,
    running_text: bool = False,
) -> list[str]:
    """Return texts that begin with the prompt, likeliest first.

    `moses` is the language that Moses tokenises first, if any. A model of `running_text`, trained on blocks,
    has seen lines begin after the end of another; others after the beginning.
    """
    after = moses_detokenizer(moses) if moses else str
    ids = tokenizer.encode(tokenizer.pretokenizer(moses)(prompt))
    opening = EOS if running_text else BOS
    limit = decoding.max_new_tokens or LONGEST
    with evaluating(model) as device:
        prompts = torch.tensor([[opening, *ids]], device=device)
        (hypotheses,) = decode(model, start_continuation(model, prompts, limit=limit), decoding)
    return [after(tokenizer.decode([*ids, *hypothesis.tokens])) for hypothesis in hypotheses]
