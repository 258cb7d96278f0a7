"""Jobs in processes of their own."""

import signal
import subprocess
import sys
import time


def test_an_interruption_lets_running_jobs_save_and_starts_no_others(agreement_store, tmp_path):
    command = [sys.executable, "-m", "diffwindow", "compare", str(agreement_store.folder), "--jobs", "1"]
    command += ["--out", "out", "model.embed_dim=16", "model.ffn_dim=16", "model.num_heads=2"]
    command += ["train.max_updates=100000", "train.save_every=2"]
    # a background job of a shell ignores Ctrl-C, and so would what it starts
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("out/runs/**/checkpoints/0*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.splitlines()[-1] == "interrupted; the same command resumes"
    (output,) = tmp_path.glob("out/runs/**/output.txt")
    assert "stopped by SIGINT after update" in output.read_text()
