"""The verb `doctor`."""

from typing import Annotated

import typer

from diffwindow import __version__
from diffwindow.cli.library import kernels_doctor, ops, training_rendezvous


def doctor(
    rendezvous: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Check where torchrun is to meet other machines; print its line."
        ),
    ] = None,
) -> None:
    """Print versions, processor, compiler and whether the fused kernels are available."""
    if rendezvous is not None:
        rows = training_rendezvous.check_rendezvous(rendezvous).report()
    else:
        rows = {"diffwindow": __version__, **kernels_doctor.report(), **ops.support_report()}
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")
