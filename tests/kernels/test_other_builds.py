"""The kernels as other machines would compile them, and under the sanitizers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diffwindow.kernels import toolchain
from samples.kernel_marks import NEEDS_COMPILER

SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
PORTABLE = "no vector instructions to speak of"
FLAGS = (*toolchain.FLAGS, *toolchain.levels()[0].flags)
BUILDS = {
    "sanitizers": (*FLAGS, *SANITIZERS),
    "sixteen lanes": (*FLAGS, "-DDW_LANES=16"),
    "clang": FLAGS,
    PORTABLE: toolchain.FLAGS,
}
# A fresh process takes the library that was built for it in the place of the usual one.
RUN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from diffwindow.kernels import build
library = build.open_library(Path(sys.argv[2]))
build.load = lambda: library
import torch
from samples.configurations import LENGTHS, Configuration, check, draw
torch.set_num_threads(2)
for length in LENGTHS:
    for additive in (False, True):
        check(Configuration(additive=additive, queries=length, keys=length, batch=1, causal=True))
for config in map(draw, range(60)):
    if config.scale != 1.0 or sys.argv[3] == "any scores":
        check(config)
print("done")
"""


@pytest.mark.slow
@NEEDS_COMPILER
@pytest.mark.parametrize("name", BUILDS)
def test_build(name, tmp_path, monkeypatch):
    if name == "clang":
        if shutil.which("clang++") is None:
            pytest.skip("no clang++")
        monkeypatch.setenv("CXX", "clang++")
    library = tmp_path / "window.so"
    toolchain.compile_library(library, BUILDS[name])
    environment = dict(os.environ)
    if name == "sanitizers":
        runtime = [*toolchain.compiler(), "-print-file-name=libasan.so"]
        found = subprocess.run(runtime, capture_output=True, text=True, check=True).stdout.strip()
        # Python itself leaks at exit, by design.
        environment |= {"LD_PRELOAD": found, "ASAN_OPTIONS": "detect_leaks=0"}
    # This build rounds products before it adds them; eager does not, and is out of reach at huge scores.
    scores = "ordinary scores" if name == PORTABLE else "any scores"
    command = [sys.executable, "-c", RUN, str(Path(__file__).parents[1]), str(library), scores]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "done\n", done.stderr[-3000:]
