import pytest

from diffwindow.training import trainer


@pytest.fixture(autouse=True)
def curves(request, monkeypatch):
    """Draw curves only in the test that looks at them: drawing takes longer than training here."""
    if "curves" not in request.node.name:
        monkeypatch.setattr(trainer, "draw_curves", lambda records, path: None)
