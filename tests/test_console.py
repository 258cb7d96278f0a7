import subprocess
import sys

import pytest

SAYING = """
import sys
from diffwindow.console import lossy_stderr
with lossy_stderr():
    with open(sys.argv[1], "w") as log:
        # a file that is opened must not become stderr
        assert log.fileno() > 2
        for _ in range(3):
            print("x" * 10_000, file=sys.stderr, flush=True)
        sys.stderr.isatty()
        log.write("done")
"""


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full", "2>/dev/null"])
def test_a_lost_stderr_loses_nothing_else(tmp_path, stderr):
    command = ["sh", "-c", f'exec "$0" -c "$1" "$2" {stderr}', sys.executable, SAYING, str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "log").read_text() == "done"
