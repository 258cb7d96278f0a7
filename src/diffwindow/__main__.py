"""Run the command line: `diffwindow` or `python -m diffwindow`."""

import sys

from diffwindow.extras import EXTRAS, MissingExtraError, require


def main() -> None:
    """Run the command line if the packages it needs are installed."""
    try:
        require(*EXTRAS["toolkit"])
    except MissingExtraError as error:
        print(f"diffwindow: {error}", file=sys.stderr)
        sys.exit(2)
    from diffwindow.cli import main as run

    run()


if __name__ == "__main__":
    main()
