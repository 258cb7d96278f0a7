"""What a run writes down: records that a resumed run repeats to the letter, and timings apart."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from diffwindow.files import open_within, to_json

LOG = "log.jsonl"
TIMING = "timing.jsonl"
TENSORBOARD = "tensorboard"
Record = dict[str, Any]


class Lines:
    """A file of JSON lines that can be cut back to a position."""

    def __init__(self, path: Path, position: int) -> None:
        self._file = open_within(path, "ab")
        size = self._file.tell()
        if size < position:
            self._file.close()
            raise ValueError(
                f"{path} has lost its end: it has {size} bytes instead of {position}; restore it"
            )
        self._file.truncate(position)

    def write(self, record: Record) -> None:
        """Append a record, visible to readers at once."""
        self._file.write(f"{to_json(record)}\n".encode())
        self._file.flush()

    def position(self) -> int:
        """Flush to disk, and give the size."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Journal:
    """The logs of a run folder: `log.jsonl`, `timing.jsonl` and TensorBoard's events.

    To go on from a checkpoint, the log is cut to the position that it had, the others after its update.
    """

    def __init__(self, folder: Path, position: int = 0, update: int = 0) -> None:
        self._lines: dict[str, Lines] = {}
        with ExitStack() as opened:
            for name, end in ((LOG, position), (TIMING, _end_of(folder / TIMING, update))):
                self._lines[name] = Lines(folder / name, end)
                opened.callback(self._lines[name].close)
            self._events = _rewound(folder / TENSORBOARD, update)
            opened.callback(self._events.close)
            self._opened = opened.pop_all()

    def train(self, update: int, values: Record) -> None:
        """Write what an update gave."""
        self._write(LOG, update, "train", values)

    def valid(self, update: int, values: Record) -> None:
        """Write the metrics of a validation."""
        self._write(LOG, update, "valid", values)

    def final(self, update: int, values: Record) -> None:
        """Write the metrics of the final model."""
        self._write(LOG, update, "final", values)

    def timing(self, update: int, values: Record) -> None:
        """Write how fast the run goes; kept apart, because no two runs agree on it."""
        self._write(TIMING, update, "speed", values)

    def position(self) -> int:
        """Flush to disk, and give where the log ends."""
        return self._lines[LOG].position()

    def close(self) -> None:
        """Close all files."""
        self._opened.close()

    def _write(self, file: str, update: int, kind: str, values: Record) -> None:
        self._lines[file].write({"update": update, "kind": kind, **values})
        for name, value in values.items():
            if isinstance(value, int | float) and math.isfinite(value):
                self._events.add_scalar(f"{kind}/{name}", value, update)


def _rewound(folder: Path, update: int) -> SummaryWriter:
    """Go on with TensorBoard's events after an update: one file of the points up to it, each once.

    What was written after it is repeated, and so is the final model's, which has the last update's number.
    """
    old = sorted(folder.glob("events.out.tfevents.*"))
    points = {(event.summary.value[0].tag, event.step): event for path in old for event in _points(path)}
    # a viewer that is open drops what it has when the new file begins
    writer = SummaryWriter(str(folder), purge_step=0 if old else None)
    events: Any = writer._get_file_writer().event_writer
    for (tag, step), event in points.items():
        if step <= update and not tag.startswith("final/"):
            events.add_event(event)
    writer.flush()
    for path in old:
        path.unlink()
    return writer


def _points(path: Path) -> Iterator[Any]:
    """Read the scalars of a file of events, up to where it was cut short."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    for event in LegacyEventFileLoader(str(path)).Load():
        if event.summary.value:
            yield event


def _end_of(path: Path, update: int) -> int:
    """Give the position after the last record of an update or one before it.

    Timings are not flushed to disk as the log is: what a power cut left of them is cut off.
    """
    end = 0
    for line in path.read_bytes().splitlines(keepends=True) if path.is_file() else ():
        try:
            if not line.endswith(b"\n") or json.loads(line)["update"] > update:
                break
        except (ValueError, KeyError, TypeError, RecursionError):
            break
        end += len(line)
    return end


def read_records(path: Path) -> list[Record]:
    """Read a log; a last line that was cut short is left out."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]
