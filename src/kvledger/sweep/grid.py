"""A grid of settings: what a TOML file asks for, as cells.

A cell is one value for each setting that is given; what a cell does not give has the default of ``replay``. This module
knows nothing of the settings but their names: whoever reads a grid says which there are, and what a value may be.
"""

from __future__ import annotations

import difflib
import itertools
import math
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kvledger.errors import UsageError
from kvledger.sweep.axis import Range, Scalar, values_of
from kvledger.units import counted

__all__ = ["MOST_CELLS", "Cells", "Values", "read_grid"]

MOST_CELLS = 100_000
MOST_BYTES = 2**20
_EXAMPLE = "see docs/sweep.md; a grid has [settings], [grid], [[cells]] and [[exclude]]"

Values = dict[str, Scalar]
Read = Callable[[str, Scalar], Scalar]


class _Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    settings: dict[str, object] = {}
    grid: dict[str, object] = {}
    cells: list[dict[str, object]] = []
    exclude: list[dict[str, object]] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    settings: Values
    grid: dict[str, list[Scalar] | Range]
    cells: list[Values]
    exclude: list[dict[str, Scalar | list[Scalar]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """The cells of a grid in its order, each once; ``varying`` names the settings that differ between them."""

    cells: list[Values]
    varying: tuple[str, ...]
    excluded: int
    repeated: int
    notes: tuple[str, ...] = ()


def read_grid(text: bytes, *, names: Collection[str], read: Read, source: str) -> Cells:
    """Read a grid file.

    Args:
        text: The TOML as stored.
        names: The settings there are, as a grid writes them.
        read: Turns a value of a setting into the one that counts; raises UsageError when it cannot be one.
        source: What messages call the file.

    Raises:
        UsageError: It is no TOML, a table, setting or value is unknown, or it has no or too many cells.
    """
    file = _typed(_decoded(text, source), names, source)
    fixed = {name: read(name, value) for name, value in file.settings.items()}
    axes = {name: [read(name, value) for value in values_of(name, axis)] for name, axis in file.grid.items()}
    both = sorted(fixed.keys() & axes.keys())
    if both:
        raise UsageError(f"`{both[0]}` is given in [settings] and in [grid] of {source}", hint="keep one of the two")
    _check_count(math.prod(len(values) for values in axes.values()) + len(file.cells), source)
    exclusions = [_Exclusion(table, read) for table in file.exclude]
    found: dict[tuple[tuple[str, Scalar], ...], Values] = {}
    excluded = repeated = 0
    for values in _listed(file, fixed, axes, read):
        if any(exclusion.holds(values) for exclusion in exclusions):
            excluded += 1
            continue
        key = tuple(sorted(values.items()))
        repeated += key in found
        found.setdefault(key, values)
    if not found:
        raise UsageError(f"{source} has no cell left: all {excluded:,} are excluded", hint="exclude less")
    cells = list(found.values())
    return Cells(
        cells=cells,
        varying=_varying(cells),
        excluded=excluded,
        repeated=repeated,
        notes=tuple(f"exclusion {i + 1} matches no cell" for i, e in enumerate(exclusions) if not e.matched),
    )


def _decoded(text: bytes, source: str) -> _Tables:
    if len(text) > MOST_BYTES:
        raise UsageError(f"{source} has {len(text):,} bytes, more than a grid of {MOST_BYTES:,}", hint=_EXAMPLE)
    try:
        return msgspec.convert(tomllib.loads(text.decode("utf-8-sig")), _Tables)
    except UnicodeDecodeError:
        raise UsageError(f"{source} is not text in UTF-8", hint=_EXAMPLE) from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source} is no TOML: {error}", hint=_EXAMPLE) from None
    except RecursionError:
        raise UsageError(f"{source} is nested too deeply", hint=_EXAMPLE) from None
    except msgspec.ValidationError as error:
        raise UsageError(f"{source} is no grid: {error}", hint=_EXAMPLE) from None


def _typed(tables: _Tables, names: Collection[str], source: str) -> _File:
    """Check the names of all settings, and that values are where values belong."""

    def table(given: Mapping[str, object], where: str, kind: Any) -> dict[str, Any]:
        where = f"{where} of {source}"
        for name in given:
            _check_name(name, names, where)
        return {name: _one(value, kind, f"`{name}` in {where}") for name, value in given.items()}

    for i, given in enumerate(tables.exclude):
        if not given:
            raise UsageError(
                f"[[exclude]] {i + 1} of {source} is empty and would exclude everything", hint="name a setting"
            )
    return _File(
        settings=table(tables.settings, "[settings]", Scalar),
        grid=table(tables.grid, "[grid]", list[Scalar] | Range),
        cells=[table(given, f"[[cells]] {i + 1}", Scalar) for i, given in enumerate(tables.cells)],
        exclude=[table(given, f"[[exclude]] {i + 1}", Scalar | list[Scalar]) for i, given in enumerate(tables.exclude)],
    )


def _check_name(name: str, names: Collection[str], where: str) -> None:
    if name in names:
        return
    near = difflib.get_close_matches(name[:40].replace("_", "-"), names, n=1)
    meant = f"did you mean `{near[0]}`? " if near else ""
    raise UsageError(
        f"{where} names `{name[:40]}`, which is no setting of `replay`",
        hint=f"{meant}the settings are {', '.join(names)}",
    )


def _one(value: object, kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        wants = "a list or a range" if kind == list[Scalar] | Range else "a value"
        raise UsageError(f"{where} is not {wants}: {error}", hint=_EXAMPLE) from None


def _check_count(count: int, source: str) -> None:
    if count > MOST_CELLS:
        raise UsageError(
            f"{source} has {counted(count, 'cell')}, more than {MOST_CELLS:,}", hint="split it into several grids"
        )


def _listed(file: _File, fixed: Values, axes: Mapping[str, Sequence[Scalar]], read: Read) -> Iterator[Values]:
    if axes or not file.cells:
        for combination in itertools.product(*axes.values()):
            yield fixed | dict(zip(axes, combination))
    for cell in file.cells:
        yield fixed | {name: read(name, value) for name, value in cell.items()}


class _Exclusion:
    """Settings and the values that, all together, exclude a cell; remembers whether it ever did."""

    def __init__(self, table: Mapping[str, Scalar | list[Scalar]], read: Read) -> None:
        self._wanted = {
            name: [read(name, value) for value in (given if isinstance(given, list) else [given])]
            for name, given in table.items()
        }
        self.matched = False

    def holds(self, values: Values) -> bool:
        holds = all(name in values and values[name] in listed for name, listed in self._wanted.items())
        self.matched |= holds
        return holds


def _varying(cells: Sequence[Values]) -> tuple[str, ...]:
    names = dict.fromkeys(name for values in cells for name in values)
    first = cells[0]
    return tuple(name for name in names if any(values.get(name) != first.get(name) for values in cells))
