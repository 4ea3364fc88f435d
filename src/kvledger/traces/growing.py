"""A column that grows while a trace is read, so that its rows are never in memory twice."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["GrowingColumn"]

T = TypeVar("T", bound=np.generic)

_LEAST_ROWS = 1 << 16
_SPARE = 8


class GrowingColumn(Generic[T]):
    """Values of one type, appended batch by batch.

    The array is resized where it lies (Linux moves pages and copies nothing) with an eighth to spare, so the peak is
    near the size of the result; joining a list of batches at the end would need twice as much.
    """

    def __init__(self, kind: type[T]) -> None:
        self._data: NDArray[T] = np.empty(0, kind)
        self._size = 0
        self._given = False

    def __bool__(self) -> bool:
        """Tell whether anything was appended, be it no row."""
        return self._given

    def append(self, values: ArrayLike) -> None:
        """Append values, cast to the column's type."""
        added = np.asarray(values)
        end = self._size + len(added)
        if end > len(self._data):
            self._data.resize(max(end + end // _SPARE, _LEAST_ROWS), refcheck=False)
        self._data[self._size : end] = added
        self._size, self._given = end, True

    def take(self) -> NDArray[T] | None:
        """Return the values and let go of them; None when nothing was ever appended."""
        if not self._given:
            return None
        data = self._data
        data.resize(self._size, refcheck=False)
        self._data, self._size, self._given = np.empty(0, data.dtype), 0, False
        return data
