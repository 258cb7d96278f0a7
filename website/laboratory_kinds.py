"""The kinds of the laboratory, with the sentence and the equation that its page shows."""

from typing import NamedTuple


class LaboratoryKind(NamedTuple):
    """A kind of attention: its name, what it is, and how it is built.

    `elsewhere` is a kind that the notation has in decoders or cross-attention only; `notation` is empty then.
    """

    name: str
    file: str
    about: str
    equation: str
    notation: str = ""
    positions: str = "sinusoidal"
    elsewhere: str = ""
    causal: bool = False

    @property
    def spelled(self) -> str:
        """How to ask for it on the command line."""
        if self.elsewhere:
            role = "Cr" if self.elsewhere == "Gauss" else "Dec"
            notation = "Global" if self.elsewhere == "Global" else f"{role}({self.elsewhere})"
        else:
            notation = self.notation
        positions = "" if self.positions == "sinusoidal" else f" model.positions={self.positions}"
        return f'--attention "{notation}"{positions}'


PLAIN = LaboratoryKind(
    "Global",
    "global",
    "The plain Transformer's attention: every word sees every word.",
    r"A = \mathrm{softmax}(s) \qquad s_{ij} = q_i \cdot k_j / \sqrt{e}",
    "Global",
)
WINDOW = LaboratoryKind(
    "Additive window",
    "additive",
    "A second, local score is added to the first, as far as the window $M$ lets it through: words "
    "outside stay visible.",
    r"A = \mathrm{softmax}(s + o \odot M) \qquad o_{ij} = q^o_i \cdot k^o_j / \sqrt{e}",
    "Enc(AW)",
)
KINDS = (
    PLAIN,
    LaboratoryKind(
        "Multiplicative window",
        "multiplicative",
        "Two pointers over the words make a soft window $M$, and the attention is multiplied by it: "
        "what lies outside is not read ([method](method.md)).",
        r"A = \mathrm{softmax}(s) \odot M \qquad M = F_l \odot G_r + F_r \odot G_l",
        "Enc(MW)",
    ),
    LaboratoryKind(
        "Normalised window",
        "normalised",
        "The multiplicative window with weights that sum to one again.",
        r"A_{ij} = \frac{M_{ij} \exp s_{ij}}{\sum_l M_{il} \exp s_{il}}",
        "Enc(MW,Norm)",
    ),
    WINDOW,
    LaboratoryKind(
        "Window of segments",
        "segments",
        "Pointers choose among segments of five words, not words: each $\\phi$ is summed over its "
        "segment first.",
        r"A = \mathrm{softmax}(s + o \odot M) \qquad M_j = M_{j'}"
        r" \ \text{where}\ \lfloor j/5 \rfloor = \lfloor j'/5 \rfloor",
        "Enc(AW,Seg)",
    ),
    LaboratoryKind(
        "Window of phrases",
        "phrases",
        "A window holds whole phrases, here those of the grammar that made the sentence "
        "([phrases](phrases.md)).",
        r"M = \tilde F_l \odot \tilde G_r + \tilde F_r \odot \tilde G_l"
        r" \qquad T_{ij} = \prod_{m=i}^{j-1} (1 - g_m)",
        "Enc(AW,Phr)",
    ),
    LaboratoryKind(
        "Window of learned phrases",
        "learned-phrases",
        "The same with phrases that the model learns: it predicts a distance for each gap between words, "
        "and a phrase ends where it is large ([phrases](phrases.md#learned-phrases)).",
        r"M = \tilde F_l \odot \tilde G_r + \tilde F_r \odot \tilde G_l"
        r" \qquad g_m = \mathrm{sigmoid}((d_m - \tau) / t)",
        "Enc(AW,Tree)",
    ),
    LaboratoryKind(
        "Relative positions",
        "relative",
        "Keys and values learn a vector for each distance, up to 16 words (Shaw et al. 2018).",
        r"A = \mathrm{softmax}\!\left(q_i \cdot (k_j + a_{j-i}) / \sqrt{e}\right)"
        r" \qquad y_i = \sum_j A_{ij} (v_j + b_{j-i})",
        "Enc(Rel)",
    ),
    LaboratoryKind(
        "Rotary positions",
        "rotary",
        "Queries and keys are turned by their places, so that scores depend on the distance (Su et al. "
        "2021). They take the place of sinusoids.",
        r"A = \mathrm{softmax}(s) \qquad s_{ij} = q_i \cdot R_{j-i} k_j / \sqrt{e}",
        "Global",
        positions="rotary",
    ),
    LaboratoryKind(
        "Localness",
        "localness",
        "Each query predicts a centre and a width, and words far from the centre lose score (Yang et al. "
        "2018).",
        r"A = \mathrm{softmax}\!\left(s_{ij} - (j - P_i)^2 / 2\sigma_i^2\right)"
        r" \qquad \sigma_i = D_i / 2",
        "Enc(Loc)",
    ),
    LaboratoryKind(
        "Gaussian, local-p",
        "gaussian",
        "Each query predicts a centre; only the ten words on either side are seen, and a Gaussian weighs "
        "them (Luong et al. 2015). Made for cross-attention.",
        r"A = \mathrm{softmax}_{|j - p_i| \le D}(s_{ij}) \, \exp\!\left(-(j - p_i)^2 / 2\sigma^2\right)",
        elsewhere="Gauss",
    ),
    LaboratoryKind(
        "Adaptive span",
        "span",
        "Each head learns how far it looks, with a soft edge of 32 words (Sukhbaatar et al. 2019). These "
        "sentences are shorter than the edge.",
        r"A_{ij} \propto m(|i - j|) \exp s_{ij} \qquad m(x) = \mathrm{clamp}((32 + z - x) / 32, 0, 1)",
        "Enc(Span)",
    ),
    LaboratoryKind(
        "Global, left to right",
        "causal",
        "The plain attention with a causal mask: what the next two are to be compared with.",
        r"A = \mathrm{softmax}_{j \le i}(s_{ij})",
        elsewhere="Global",
        causal=True,
    ),
    LaboratoryKind(
        "Forgetting attention",
        "forgetting",
        "Every word has a gate, and a query sees past it only what the gate lets through (Lin et al. "
        "2025). It needs no positions.",
        r"A = \mathrm{softmax}_{j \le i}\!\left(s_{ij} + \sum_{l=j+1}^{i} \log f_l\right)"
        r" \qquad f = \mathrm{sigmoid}(w \cdot x + b)",
        positions="none",
        elsewhere="Fox",
        causal=True,
    ),
    LaboratoryKind(
        "Stick-breaking",
        "stick",
        "From the nearest word backwards, each takes its share of what the nearer ones have left (Tan et "
        "al. 2025). It needs no positions.",
        r"A_{ij} = \beta_{ij} \prod_{j < l < i} (1 - \beta_{il}) \qquad \beta = \mathrm{sigmoid}(s)",
        positions="none",
        elsewhere="Stick",
        causal=True,
    ),
)
