"""ixc compiles a model file to machine code for this CPU, and runs it.

>>> import ixc
>>> with ixc.Model() as model:  # the built-in demo model
...     text = model.generate("The borrow checker", max_tokens=16)

Exceptions are subclasses of `IxcError`. docs/python.md describes the package.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._errors import (
        DataError,
        FailedError,
        InputOutputError,
        InterruptedWorkError,
        IxcError,
        NoInputError,
        UnavailableError,
        UsageError,
    )
    from ._model import Answer, Delta, Message, Model, ToolCall, Usage
    from ._moe import Job, Layer, MoELayer
    from ._stream import Stream

__all__ = [
    "Answer",
    "DataError",
    "Delta",
    "FailedError",
    "InputOutputError",
    "InterruptedWorkError",
    "IxcError",
    "Job",
    "Layer",
    "Message",
    "Model",
    "MoELayer",
    "NoInputError",
    "Stream",
    "ToolCall",
    "UnavailableError",
    "Usage",
    "UsageError",
]

if not TYPE_CHECKING:
    # Modules are imported at their first use: NumPy takes a while to load, and the program `ixc`
    # does not need it.
    _MODULES = {"Job": "_moe", "Layer": "_moe", "MoELayer": "_moe", "Stream": "_stream"}
    _MODULES.update({name: "_errors" for name in __all__ if name.endswith("Error")})

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module 'ixc' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f".{_MODULES.get(name, '_model')}", __name__), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
