import os

import pytest

from diffwindow.files import locked, read_json, replacing, write_atomically


def test_a_link_stays_and_the_file_behind_it_is_replaced(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_what_is_not_a_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ValueError, match="is not a regular file"):
            write_atomically(path, b"new")
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(FileNotFoundError, match=r"no such folder: .*nowhere'"):
        write_atomically(tmp_path / "nowhere/file", b"new")


def test_a_failed_write_leaves_the_old_content(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff{}", b"[" * 100_000])
def test_damaged_json_is_named(tmp_path, content):
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"run\.json is damaged: "):
        read_json(path)


def test_a_folder_is_one_process_at_a_time(tmp_path):
    with locked(tmp_path), pytest.raises(ValueError, match="another process is at work in"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
