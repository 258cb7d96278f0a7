import errno
import json
import math
import os

import pytest

from diffwindow.files import (
    lock_folder,
    make_folder,
    open_within,
    read_json,
    replacing,
    write_atomically,
    write_json,
)
from samples.processes import small_files


@pytest.mark.parametrize("follow", [True, False])
def test_a_link_is_replaced_or_the_file_behind_it(tmp_path, follow):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with replacing(tmp_path / "link", follow_link=follow) as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink() == follow
    assert (tmp_path / "link").read_text() == "new"
    assert (tmp_path / "real").read_text() == ("new" if follow else "old")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_json_has_no_numbers_that_json_does_not_have(tmp_path):
    values = {"nan": math.nan, "nested": [{"inf": -math.inf}, (1.5, math.nan)], "whole": 3, "text": "NaN"}
    write_json(tmp_path / "file.json", values)

    def refuse(constant):
        raise AssertionError(constant)

    read = json.loads((tmp_path / "file.json").read_text(), parse_constant=refuse)
    assert read == {"nan": None, "nested": [{"inf": None}, [1.5, None]], "whole": 3, "text": "NaN"}


def test_only_files_of_the_folder_are_opened_to_write(tmp_path):
    (tmp_path / "outside").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(ValueError, match=rf"{name} is not a regular file; move it away"):
            open_within(tmp_path / name, "ab")
    assert (tmp_path / "outside").read_text() == "old"


def test_what_is_not_a_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ValueError, match="is not a regular file"):
            write_atomically(path, b"new")
    (tmp_path / "link").symlink_to("pipe")
    with (
        pytest.raises(ValueError, match="link is not a regular file"),
        replacing(tmp_path / "link", follow_link=True),
    ):
        pass
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(FileNotFoundError, match=r"no such folder: .*nowhere'"):
        write_atomically(tmp_path / "nowhere/file", b"new")


def test_a_full_disk_names_the_file_that_was_asked_for(tmp_path):
    with pytest.raises(OSError, match="file") as error, small_files():
        write_atomically(tmp_path / "file", bytes(2000))
    assert (error.value.errno, error.value.filename) == (errno.EFBIG, str(tmp_path / "file"))
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file/a/b"):
        with pytest.raises(ValueError, match=r"/file is not a folder; choose another place"):
            make_folder(folder)
    with pytest.raises(ValueError, match=r"/file is not a folder"):
        write_atomically(tmp_path / "file/page.html", b"new")


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
    busy = pytest.raises(ValueError, match="another process is at work in")
    with lock_folder(tmp_path), busy, lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):
        pass
