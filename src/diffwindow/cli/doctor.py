"""The verb `doctor`."""

from diffwindow import __version__
from diffwindow.cli.library import kernels_doctor, ops


def doctor() -> None:
    """Print versions, processor, compiler and whether the fused kernels are available."""
    rows = {"diffwindow": __version__, **kernels_doctor.report(), **ops.support_report()}
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")
