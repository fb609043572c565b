"""Exceptions, one class for each kind of failure. The program's exit status has the same kinds."""

from __future__ import annotations


class IxcError(Exception):
    """Failure of ixc. `code` is the kind of failure."""

    code = "failed"


class UsageError(IxcError, ValueError):
    """An argument is wrong, or contradicts another one."""

    code = "usage"


class DataError(IxcError, ValueError):
    """A model, a plan or a request is malformed or not supported."""

    code = "data"


class NoInputError(IxcError, FileNotFoundError):
    """A file is missing or may not be read."""

    code = "no_input"


class UnavailableError(IxcError):
    """The CPU lacks a feature of the target, the queue is full, or the model is closing."""

    code = "unavailable"


class InputOutputError(IxcError, OSError):
    """Reading or writing failed."""

    code = "io"


class InterruptedWorkError(IxcError):
    """The user interrupted the work."""

    code = "interrupted"


class FailedError(IxcError, RuntimeError):
    """Other failures, such as a lack of memory or a bug."""

    code = "failed"


_CLASSES: tuple[type[IxcError], ...] = (
    UsageError,
    DataError,
    NoInputError,
    UnavailableError,
    InputOutputError,
    InterruptedWorkError,
    FailedError,
)


def of_code(code: str, message: str) -> IxcError:
    """Returns the exception for a kind of failure."""
    return next(kind for kind in _CLASSES if kind.code == code)(message)
