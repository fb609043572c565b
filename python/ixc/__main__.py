"""The program: `ixc run …`, or `python -m ixc run …`."""

import sys

from . import _ixc
from ._options import program


def main() -> int:
    """Runs the command of the process's arguments, and returns its exit status."""
    return _ixc.main(["ixc", *sys.argv[1:]], program())


if __name__ == "__main__":
    sys.exit(main())
