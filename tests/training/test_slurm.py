"""The job script of the guide, with stubs of Slurm and torchrun that say what they were asked."""

import os
import re
import subprocess
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs/guides/several-machines.md"
STUBS = {
    "scontrol": 'test "$*" = "show hostnames node[3-4]" && printf "node3\\nnode4\\n"',
    # a task on each node
    "srun": 'for node in 0 1; do SLURM_NODEID=$node SLURM_GPUS_ON_NODE=8 "$@" || exit 1; done',
    "torchrun": 'echo "$TORCH_DISABLE_SHARE_RDZV_TCP_STORE $*"',
}


def test_the_job_script_starts_torchrun_on_each_node(tmp_path):
    (script,) = re.findall(r"```sh\n(#!/bin/bash\n.*?)```", GUIDE.read_text(), re.DOTALL)
    for name, body in STUBS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_NODELIST": "node[3-4]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "77"}
    done = subprocess.run(
        ["bash", "-eu", "-c", script],
        env={**job, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    lines = done.stdout.splitlines()
    meeting = "--rdzv-backend c10d --rdzv-endpoint node3:29500 --rdzv-id 77 --rdzv-conf is_host="
    for line, hosts in zip(lines, "10", strict=True):
        assert line.startswith(
            f"1 --nnodes 2 --nproc-per-node 8 {meeting}{hosts} --max-restarts 3 -m diffwindow"
        )
