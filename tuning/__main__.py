"""``python -m tuning``: the command line from a checkout that is not installed."""

from tuning.cli import console

if __name__ == "__main__":
    console()
