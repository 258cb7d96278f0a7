"""Run the command line with `python -m diffwindow`."""

from diffwindow.cli import main

if __name__ == "__main__":
    main()
