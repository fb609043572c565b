"""Streams: answers in parts, for `for` and `async for`."""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any, Callable, Generic, TypeVar

from . import _ixc
from ._errors import FailedError

T = TypeVar("T")


class Stream(Generic[T]):
    """Answer in parts, as an iterator and an asynchronous iterator.

    Parts come as they are generated. Closing the stream, or freeing it, cancels the answer.
    """

    def __init__(self, raw: _ixc.Stream, read: Callable[[dict[str, Any]], T | None]) -> None:
        self._raw = raw
        self._read = read

    def _next(self) -> tuple[T] | None:
        """Returns the next part; `None` after the last one."""
        while (text := self._raw.next()) is not None:
            event = json.loads(text)
            if "error" in event:
                self.close()
                raise FailedError(event["error"]["message"])
            part = self._read(event)
            if part is not None:
                return (part,)
        return None

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        part = self._next()
        if part is None:
            raise StopIteration
        return part[0]

    def __aiter__(self) -> Stream[T]:
        return self

    async def __anext__(self) -> T:
        try:
            part = await asyncio.to_thread(self._next)
        except asyncio.CancelledError:
            self.close()
            raise
        if part is None:
            raise StopAsyncIteration
        return part[0]

    def close(self) -> None:
        """Cancels the answer, unless it has ended."""
        self._raw.close()

    async def aclose(self) -> None:
        """Cancels the answer, unless it has ended."""
        self.close()

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Stream[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
