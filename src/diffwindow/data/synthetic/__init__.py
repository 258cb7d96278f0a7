"""Generated corpora: deterministic, and with the right answer known."""

from diffwindow.data.synthetic.grammar import AgreementExample, agreement
from diffwindow.data.synthetic.translation import ReorderExample, reorder

__all__ = ["AgreementExample", "ReorderExample", "agreement", "reorder"]
