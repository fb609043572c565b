"""ixc compiles a model file to machine code for this CPU, and runs it.

>>> import ixc
>>> with ixc.Model() as model:  # the built-in demo model
...     text = model.generate("The borrow checker", max_tokens=16)

Exceptions are subclasses of `IxcError`. docs/python.md describes the package.
"""

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
