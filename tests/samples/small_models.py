"""Models small enough to run every kind of attention in every role, in double precision."""

import torch

from diffwindow import Classifier, ClassifierConfig, LanguageModel, LanguageModelConfig, Translator
from diffwindow import TranslatorConfig as Config
from diffwindow.attention.baselines import BASELINES

SIZES = {"vocab_size": 30, "embed_dim": 16, "ffn_dim": 24, "num_heads": 2}


def baselines(role):
    """Every baseline that a role takes, small enough to matter in short sequences."""
    taken = {name: kind for name, kind in BASELINES.items() if role in kind.roles}
    return [name if kind.size is None else f"{name}=3" for name, kind in taken.items()]


WINDOWS = ["AW", "MW", "AW,Seg=3", "MW,Seg,Exact"]
ENCODER = [*WINDOWS, "AW,Dim=3,Dist=2", *baselines("Enc")]
CROSS = [*WINDOWS, "AW,Dim=3", "MW,Seg=3,Norm,Sink=2", *baselines("Cr")]
DECODER = [*WINDOWS, "MW,Dim=3,Gate,Dist=2", "MW,Norm,Dim=3,Sink=2,Gate", *baselines("Dec")]


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
