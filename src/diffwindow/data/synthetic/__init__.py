"""Generated corpora: deterministic, and with the right answer known."""

from diffwindow.data.synthetic.agreement import AgreementExample, agreement
from diffwindow.data.synthetic.reorder import ReorderExample, reorder

__all__ = ["AgreementExample", "ReorderExample", "agreement", "reorder"]
