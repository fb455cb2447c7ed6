"""``python -m anchorfl``: the command line, also from a checkout that is not installed (with ``src`` on the path)."""

from anchorfl.tuning.cli import console

if __name__ == "__main__":
    console()
