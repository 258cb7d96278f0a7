"""Models small enough to run every kind of attention in every role, in double precision."""

import torch

from diffwindow import Classifier, ClassifierConfig, LanguageModel, LanguageModelConfig, Translator
from diffwindow import TranslatorConfig as Config

SIZES = {"vocab_size": 30, "embed_dim": 16, "ffn_dim": 24, "num_heads": 2}
ENCODER = ["AW", "MW", "AW,Seg=3", "MW,Seg,Exact", "AW,Dim=3", "Rel=3", "Loc", "Band=2", "Bell=2", "Span=4"]
CROSS = ["AW", "MW", "AW,Seg=3", "MW,Seg,Exact", "AW,Dim=3", "Gauss=2"]
DECODER = ["AW", "MW", "AW,Seg=3", "MW,Seg,Exact", "MW,Dim=3,Gate", "Rel=3", "Band=2", "Bell=2", "Span=4"]


def notations():
    """One term for each kind in each role that takes it, the plain model, and all roles at once."""
    roles = {"Enc": ENCODER, "Cr": CROSS, "Dec": DECODER}
    terms = [f"{role}({kind})@all" for role, kinds in roles.items() for kind in kinds]
    return ["Global", *terms, "Enc(AW)-Cr(AW,Seg)-Dec(MW)"]


def ready(model, seed=1):
    """In double precision, without dropout, and with parameters large enough for windows to matter."""
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith(("in_proj.weight", "pointer.output.weight", "table", "bias", "gate")):
            torch.nn.init.normal_(parameter, std=0.5)
    return model.double().eval()


def translator(attention, **options):
    config = Config(**SIZES, encoder_layers=2, decoder_layers=2, attention=attention, **options)
    return ready(Translator(config))


def language_model(attention, **options):
    return ready(LanguageModel(LanguageModelConfig(**SIZES, num_layers=2, attention=attention, **options)))


def classifier(attention, **options):
    return ready(Classifier(ClassifierConfig(**SIZES, num_layers=2, attention=attention, **options)))


def tokens(batch, length, seed=0):
    return torch.randint(4, 30, (batch, length), generator=torch.Generator().manual_seed(seed))
