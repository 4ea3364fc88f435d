"""From the results of cells to the report of a sweep: of one that just ran, or of one whose file was kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kvledger.cli.sweep_settings import SweepSettings
from kvledger.errors import SourceError, UsageError
from kvledger.report.sweep import SweepReport
from kvledger.report.sweep_failures import Failure
from kvledger.sweep.columns import Cell
from kvledger.sweep.grid import Values, read_grid
from kvledger.sweep.job import JobResult, key_of
from kvledger.sweep.results import read_results
from kvledger.sweep.summary import FIGURES, Row
from kvledger.units import counted

__all__ = ["gather", "read_sweep"]


def gather(
    results: Mapping[str, JobResult],
    values: Mapping[str, Values],
    *,
    source: str,
    varying: Sequence[str],
    known: int,
    output: str | None,
    notes: tuple[str, ...],
) -> SweepReport:
    """Return the report of results whose settings are ``values``, both by the key of their cell."""
    rows, failures = [], []
    for key, result in results.items():
        mine = {name: values[key][name] for name in varying if name in values[key]}
        for row in result.rows:
            if row.get("error_code") is None:
                figures: dict[str, Cell] = {name: row.get(name) for name in FIGURES}
                rows.append(Row(cell=key, policy=str(row["policy"]), values=mine, figures=figures))
            else:
                policy = row.get("policy")
                failures.append(
                    Failure(
                        cell=key,
                        policy=None if policy is None else str(policy),
                        values=mine,
                        code=str(row["error_code"]),
                        message=str(row["error"]),
                    )
                )
    return SweepReport(
        source=source,
        cells=len(results),
        known=known,
        varying=varying,
        rows=rows,
        failures=failures,
        output=output,
        notes=notes,
    )


def read_sweep(path: Path) -> SweepReport:
    """Return the report of a file that a sweep wrote; the grid it keeps tells the settings of its cells.

    Raises:
        SourceError: It is no such file, or its cells are not those of its grid.
    """
    settings = SweepSettings()
    try:
        with path.open("rb") as stream:
            provenance, found = read_results(stream, settings=settings.columns, name=path.name)
    except UsageError:
        raise SourceError(
            f"`{path.name[:80]}` is not the result of a sweep of this version",
            hint="give what `kvledger sweep -o` wrote",
        ) from None
    cells = read_grid(
        provenance.grid.encode(), names=settings.names, read=settings.read, source=f"the grid in `{path.name}`"
    )
    values = {}
    for cell in cells.cells:
        inputs = {v: provenance.inputs[v] for v in cell.values() if isinstance(v, str) and v in provenance.inputs}
        values[key_of(cell, inputs=inputs, version=provenance.kvledger_version)] = cell
    results = {result.key: result for result in found if result.key in values}
    if not results or len(results) < len(found):
        raise SourceError(
            f"`{path.name[:80]}` holds {counted(len(found), 'cell')}, of which {len(results):,} are of its own grid",
            hint="run the sweep again",
        )
    return gather(
        results,
        values,
        source=path.name,
        varying=cells.varying,
        known=len(results),
        output=path.name,
        notes=tuple(cells.notes),
    )
