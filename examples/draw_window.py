"""Draw what a window is: two boundary distributions, their sums, and the window between them."""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch

from diffwindow import functional

NUM_KEYS, LEFT, RIGHT = 30, 8.0, 20.0


def pointer(center: float, width: float) -> torch.Tensor:
    """Point at `center`: a softmax of a parabola, as a trained pointer's might look."""
    return (-(((torch.arange(NUM_KEYS) - center) / width) ** 2)).softmax(-1)


def draw(path: Path) -> None:
    figure, axes = plt.subplots(3, 2, figsize=(10, 6), sharex=True, sharey="row", layout="constrained")
    for column, width in enumerate((0.5, 4.0)):
        phi_left, phi_right = pointer(LEFT, width), pointer(RIGHT, width)
        pointers, sums, windows = axes[:, column]
        pointers.set_title("sure pointers" if column == 0 else "unsure pointers")
        pointers.bar(range(NUM_KEYS), phi_left, label="φ left")
        pointers.bar(range(NUM_KEYS), phi_right, label="φ right", alpha=0.7)
        sums.step(range(NUM_KEYS), functional.rightward(phi_left), where="mid", label="rightward(φ left)")
        sums.step(range(NUM_KEYS), functional.leftward(phi_right), where="mid", label="leftward(φ right)")
        for segment_size in (1, 5):
            window = functional.soft_window(phi_left, phi_right, segment_size=segment_size)
            label = "by token" if segment_size == 1 else f"by segments of {segment_size}"
            windows.step(range(NUM_KEYS), window, where="mid", label=f"window {label}")
        windows.set_xlabel("key")
        for axis in (pointers, sums, windows):
            axis.margins(y=0.4)
            axis.legend(loc="upper right", fontsize="small", ncols=2)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("window.png"), help="the picture to write")
    out = parser.parse_args().out
    draw(out)
    print(f"wrote {out}")
