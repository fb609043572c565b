"""Arguments that several classes take."""

from __future__ import annotations

import os
import sysconfig
from typing import Union

from ._errors import UsageError

Path = Union[str, "os.PathLike[str]", None]

_UNITS = {
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "b": 1,
    "": 1,
}


def size(memory: int | str | None) -> int | None:
    """Returns a size in bytes: a number, or text such as "24GiB", "512 MiB" or "1.5G"."""
    if memory is None or isinstance(memory, int):
        bytes_ = memory
    else:
        text = memory.strip().lower()
        number = text.rstrip("kmgtib ")
        unit = _UNITS.get(text[len(number) :].strip())
        is_plain = number.replace(".", "", 1).isdigit() and number.isascii()
        bytes_ = int(float(number) * unit) if unit is not None and is_plain else -1
    if bytes_ is not None and not 0 <= bytes_ < 2**64:
        raise UsageError(f"{memory!r} is not a size; expected 6GiB, 512MiB, 1.5G or a number of bytes")
    return bytes_


def model_path(path: Path) -> str | None:
    """Returns the path of a model; `None` for the built-in demo model."""
    name = None if path is None else os.fspath(path)
    return None if name == "demo" else name


def program() -> str | None:
    """Returns the script `ixc` of this package, if it is installed.

    The script renders chat templates and compiles grammars in processes with bounds on memory and time.
    """
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", "posix_user")]
    scripts = (os.path.join(folder, "ixc") for folder in folders)
    return next((script for script in scripts if os.access(script, os.X_OK)), None)
