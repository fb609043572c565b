"""Routed experts as an operator for other engines."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _ixc
from ._errors import UsageError
from ._options import Path, model_path, size


@dataclass(frozen=True)
class Layer:
    """A layer with routed experts.

    Attributes:
        number: Number of the layer in the model.
        width: Number of elements of a row.
        used: Number of experts that each row uses.
        experts: Number of experts of the layer.
    """

    number: int
    width: int
    used: int
    experts: int


def _array(tensor: Any) -> NDArray[Any]:
    """Returns a tensor on the CPU as an array, without a copy if its strides allow it."""
    if isinstance(tensor, (np.ndarray, np.generic, list, tuple)):
        return np.asarray(tensor)
    if not hasattr(tensor, "__dlpack__"):
        raise UsageError(f"{type(tensor).__name__} is no tensor: it lacks __dlpack__")
    try:
        return np.from_dlpack(tensor)
    except (BufferError, RuntimeError, TypeError) as error:
        raise UsageError(f"NumPy cannot read the tensor: {error}; expected a tensor on the CPU") from error


def _is_bf16(tensor: Any) -> bool:
    return str(getattr(tensor, "dtype", "")).endswith("bfloat16")


def _bf16_bits(tensor: Any) -> NDArray[Any]:
    """Returns the bits of bf16 numbers, which NumPy lacks."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _array(tensor.detach().view(torch.int16))
    return np.asarray(tensor).view(np.uint16)


def _matrix(name: str, array: NDArray[Any], columns: int, rows: int | None) -> NDArray[Any]:
    """Returns an array [rows, columns]; a vector is one row."""
    array = array[np.newaxis, :] if array.ndim == 1 else array
    if array.ndim != 2 or array.shape[1] != columns or rows not in (None, array.shape[0]):
        expected = "rows" if rows is None else str(rows)
        raise UsageError(f"{name} has the shape {list(array.shape)}; expected [{expected}, {columns}]")
    return array


def _whole(name: str, array: NDArray[Any]) -> NDArray[np.int32]:
    if array.dtype.kind not in "iu":
        raise UsageError(f"{name} has the type {array.dtype}; expected integers")
    if array.size and (int(array.min()) < -(2**31) or int(array.max()) >= 2**31):
        raise UsageError(f"{name} has a number that no i32 holds")
    return array.astype(np.int32, copy=False)


class Job:
    """Submitted rows that are being computed."""

    def __init__(self, raw: _ixc.Job, like: Any) -> None:
        self._raw = raw
        self._like = like

    def done(self) -> bool:
        """Returns whether the result is ready."""
        return self._raw.done()

    def wait(self) -> Any:
        """Waits for the sums, f32 [rows, width]: for each row, the weighted sum over its experts.

        Returns:
            A torch tensor if the rows were one, otherwise a NumPy array. It can be taken only once.
        """
        sums: NDArray[np.float32] = np.asarray(self._raw.wait())
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(self._like, torch.Tensor):
            return torch.from_numpy(sums)
        return sums


class MoELayer:
    """The routed experts of a model: takes rows, expert ids and weights, and returns rows.

    Args:
        path: Model, or plan of `Model.compile(experts=True)`. By default it is the demo model.
        memory: Max memory of the process: bytes, or text such as `"24GiB"`. Experts that do not
            fit are read from the drive.
        threads: Threads that compute. The default is one for each CPU.
        target: Target of the kernels. The default is this machine's.
        max_rows: Max rows of a step. More rows take several steps.
        layer: Layer to compute. The default is the first with experts.
    """

    def __init__(
        self,
        path: Path = None,
        *,
        memory: int | str | None = None,
        threads: int | None = None,
        target: str | None = None,
        max_rows: int | None = None,
        layer: int | None = None,
    ) -> None:
        self._experts = _ixc.Experts.open(
            model_path(path), memory=size(memory), threads=threads, target=target, max_rows=max_rows
        )
        self.layers: list[Layer] = [Layer(*facts) for facts in self._experts.layers()]
        self.layer = self.layers[0].number if layer is None else layer
        self._find(self.layer)

    def _find(self, number: int) -> Layer:
        for layer in self.layers:
            if layer.number == number:
                return layer
        numbers = ", ".join(str(layer.number) for layer in self.layers)
        raise UsageError(f"layer {number} has no experts; layers with experts are {numbers}")

    def submit(self, rows: Any, ids: Any, weights: Any, *, layer: int | None = None) -> Job:
        """Submits rows to the experts, and returns at once. The tensors are copied.

        Args:
            rows: Hidden states, f32 or bf16 [rows, width]: NumPy, torch, or any tensor with
                `__dlpack__` on the CPU.
            ids: Experts of each row, integers [rows, used]. The id -1 skips an expert, for example
                one that another device computes.
            weights: Weight of each expert, [rows, used].
            layer: Number of the layer. The default is this object's.
        """
        of = self._find(self.layer if layer is None else layer)
        is_bf16 = _is_bf16(rows)
        states = _bf16_bits(rows) if is_bf16 else _array(rows)
        if not is_bf16 and states.dtype.kind != "f":
            raise UsageError(f"rows has the type {states.dtype}; expected f32 or bf16")
        states = _matrix("rows", states if is_bf16 else states.astype(np.float32, copy=False), of.width, None)
        count = states.shape[0]
        experts = _matrix("ids", _whole("ids", _array(ids)), of.used, count)
        factors = _matrix("weights", _array(weights).astype(np.float32, copy=False), of.used, count)
        job = self._experts.submit(of.number, is_bf16, states.tobytes(), experts.tobytes(), factors.tobytes())
        return Job(job, rows)

    def __call__(self, rows: Any, ids: Any, weights: Any, *, layer: int | None = None) -> Any:
        """Submits rows and waits for their sums: see `submit` and `Job.wait`."""
        return self.submit(rows, ids, weights, layer=layer).wait()

    def sync(self) -> None:
        """Waits for all submitted rows."""
        self._experts.sync()

    def close(self) -> None:
        """Frees the experts after the submitted rows."""
        self._experts.close()

    def __enter__(self) -> MoELayer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
