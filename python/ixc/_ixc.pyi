"""The extension module. The package's other modules document the interface."""

from os import PathLike
from typing import Optional, Union

_Path = Optional[Union[str, PathLike[str]]]

class Floats:
    @property
    def __array_interface__(self) -> dict[str, object]: ...

class Stream:
    def next(self) -> Optional[str]: ...
    def close(self) -> None: ...

class Host:
    @staticmethod
    def open(
        path: _Path,
        *,
        memory: Optional[int],
        context: Optional[int],
        threads: Optional[int],
        parallel: int,
        target: Optional[str],
        model_file: _Path,
        embeddings: Optional[bool],
        pooling: Optional[str],
        chat_template: Optional[str],
        program: _Path,
    ) -> Host: ...
    def post(self, kind: str, body: str) -> str: ...
    def stream(self, kind: str, body: str) -> Stream: ...
    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]: ...
    def decode(self, tokens: list[int]) -> str: ...
    def embed(self, texts: list[str], dimensions: Optional[int]) -> Floats: ...
    def logits(self, tokens: list[int]) -> Floats: ...
    def save(self, slot: int, path: str) -> tuple[int, int]: ...
    def restore(self, slot: int, path: str) -> tuple[int, int]: ...
    def facts(self) -> str: ...
    def status(self) -> str: ...
    def close(self) -> None: ...

class Job:
    def done(self) -> bool: ...
    def wait(self) -> Floats: ...

class Experts:
    @staticmethod
    def open(
        path: _Path,
        *,
        memory: Optional[int],
        threads: Optional[int],
        target: Optional[str],
        max_rows: Optional[int],
    ) -> Experts: ...
    def layers(self) -> list[tuple[int, int, int, int]]: ...
    def submit(self, layer: int, is_bf16: bool, rows: bytes, ids: bytes, weights: bytes) -> Job: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...

def compile(
    path: _Path,
    output: Union[str, PathLike[str]],
    *,
    memory: Optional[int],
    threads: Optional[int],
    target: Optional[str],
    embeddings: bool,
    experts: bool,
    self_contained: bool,
    force: bool,
) -> int: ...
def dump(
    path: _Path,
    stage: str,
    *,
    memory: Optional[int],
    threads: Optional[int],
    target: Optional[str],
) -> str: ...
