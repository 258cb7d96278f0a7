import json

import pytest

from diffwindow.data.writer import PartialStore, SplitWriter


def unfinished(tmp_path, state):
    folder = tmp_path / "store.partial"
    folder.mkdir()
    (folder / "progress.json").write_text(json.dumps({"fingerprint": {}, "splits": {"train": state}}))
    return folder


@pytest.mark.parametrize(
    "state", [{"rows": 1, "bytes": {"../mine.tokens": 0}}, {"rows": 1, "bytes": None}, None]
)
def test_a_record_that_is_damaged_or_leads_elsewhere_starts_again(tmp_path, state):
    (tmp_path / "mine.tokens").write_text("mine")
    unfinished(tmp_path, state)
    with PartialStore.opened(tmp_path / "store", {}) as partial:
        assert partial.state["splits"] == {}
    assert (tmp_path / "mine.tokens").read_text() == "mine"


def test_what_a_kill_left_of_a_write_is_removed(tmp_path):
    folder = unfinished(tmp_path, {"rows": 0, "bytes": {}})
    (folder / ".progress.json.4711.tmp").write_text("{")
    with PartialStore.opened(tmp_path / "store", {}) as partial:
        assert partial.state["splits"] == {"train": {"rows": 0, "bytes": {}}}
    assert [path.name for path in folder.glob(".*.tmp")] == []


def test_a_file_that_lost_its_end_is_not_filled_with_zeros(tmp_path):
    folder = unfinished(tmp_path, {"rows": 2, "bytes": {"train.text.tokens": 8}})
    (folder / "train.text.tokens").write_bytes(b"1234")
    with pytest.raises(ValueError, match=r"train\.text\.tokens has lost its end; remove"):
        SplitWriter(folder, "train", 2, {"rows": 2, "bytes": {"train.text.tokens": 8}})
    assert (folder / "train.text.tokens").read_bytes() == b"1234"
