import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from diffwindow.data.tokenizer import Tokenizer

PREPARING = """
import multiprocessing, sys, time
from pathlib import Path
from diffwindow.data.encoding import RawChunk, encoded_chunks

def chunks():
    while True:
        yield RawChunk(1, {"text": ["the keys"]}, {})

if __name__ == "__main__":
    for chunk in encoded_chunks(chunks(), Path(sys.argv[1]), {}, workers=2):
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        time.sleep(600)
"""


def running(process: int) -> bool:
    """Return whether a process is there and not a zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_workers_end_with_a_killed_parent(tmp_path):
    Tokenizer.train_words(["the keys"]).save(tmp_path / "tokenizer.json")
    script = tmp_path / "preparing.py"
    script.write_text(PREPARING)
    command = [sys.executable, str(script), str(tmp_path / "tokenizer.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert len(workers) == 2
        assert all(map(running, workers))
        parent.kill()
    end = time.monotonic() + 20
    try:
        while any(map(running, workers)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not any(map(running, workers))
    finally:
        for worker in filter(running, workers):
            os.kill(worker, signal.SIGKILL)
