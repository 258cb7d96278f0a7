"""Measure what a `window_tolerance` changes of the output, for windows on a tenth of the keys.

Errors are shares of the largest |v|: of the worst element, and of the worst element of a typical query.
Scores four times as large stand for a trained model, whose largest scores may lie outside of a window.

    python benchmarks/tolerance.py [--keys 512]
"""

import argparse

from attention import Case, inputs
from diffwindow.ops import Boundaries, window_attention


def error(case: Case, scale: float) -> tuple[float, float]:
    """Return the largest and the median query's error of the output, in double precision."""
    q, k, v, *pointers = (x.detach().double() for x in inputs(case))
    exact, cut = (
        window_attention(
            scale * q, k, v, Boundaries(*pointers), normalize=case.normalize, window_tolerance=tolerance
        )
        for tolerance in (0.0, case.tolerance)
    )
    by_query = (exact - cut).abs().amax(-1) / v.abs().max()
    return by_query.max().item(), by_query.median().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--keys", type=int, default=512)
    options = parser.parse_args()
    print("scores  tolerance  multiplicative, worst and median  normalised, worst and median")
    for scale in (1.0, 4.0):
        for tolerance in (1e-4, 1e-3, 1e-2):
            shape = (1, 8, options.keys, 64)
            case = Case("multiplicative", 1, False, shape, "cpu", "fp32", 8, 0.1, tolerance)
            pairs = [error(case._replace(normalize=normalize), scale) for normalize in (False, True)]
            print(f"x{scale:<7g}{tolerance:<9g}" + "".join(f"{a:>17.0e}{b:>16.0e}" for a, b in pairs))


if __name__ == "__main__":
    main()
