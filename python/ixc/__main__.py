"""Runs the program: `python -m ixc run …`."""

import os
import sys

from ._options import program

path = program()
if path is None:
    sys.exit("ixc: the program is not installed with this package; `pip install ixc` installs it")
os.execv(path, ["ixc", *sys.argv[1:]])
