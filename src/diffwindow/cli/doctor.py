"""The verb `doctor`."""


def doctor() -> None:
    """Print versions, processor, compiler and whether the fused kernels are available."""
    from diffwindow import __version__
    from diffwindow.kernels.doctor import report
    from diffwindow.ops import support_report

    rows = {"diffwindow": __version__, **report(), **support_report()}
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")
