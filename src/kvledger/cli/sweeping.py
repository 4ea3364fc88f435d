"""From a grid to its report: reads it, runs what is not known yet, and keeps what was found."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import click
import msgspec

import kvledger
from kvledger.cli.output import new_file, refuse_overwrite
from kvledger.cli.sweep_cell import run_cell
from kvledger.cli.sweep_gathering import gather
from kvledger.cli.sweep_progress import SweepProgress
from kvledger.cli.sweep_settings import SweepSettings
from kvledger.errors import Error, SourceError, UsageError
from kvledger.report.sweep import SweepReport
from kvledger.report.sweep_failures import failure_lines, reasons_of
from kvledger.sources.kernels import KernelCache
from kvledger.sweep.cluster import run_on_ray
from kvledger.sweep.grid import MOST_BYTES, Cells, Values, read_grid
from kvledger.sweep.inputs import digest_of
from kvledger.sweep.job import Job, JobResult, failed, key_of
from kvledger.sweep.journal import Journal
from kvledger.sweep.results import Provenance, read_results, write_results
from kvledger.sweep.workers import Answer, Lost, run_in_processes
from kvledger.units import agree, counted

__all__ = ["Sweep", "SweepQuestion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepQuestion:
    """The options of ``sweep``, as given."""

    grid: str
    output: str | None
    update: bool
    force: bool
    workers: int | None
    address: str | None
    quiet: bool


class Sweep:
    """One sweep: the cells of a grid, what is known of them, and what is still to do."""

    def __init__(self, question: SweepQuestion) -> None:
        if question.address is not None and question.workers is not None:
            raise UsageError(
                "--workers are processes of this machine, and --ray runs none here", hint="give one of them"
            )
        self._question = question
        self._path = Path(question.grid)
        self._settings = SweepSettings()
        self._text = _read_file(self._path)
        self._cells: Cells = read_grid(
            self._text, names=self._settings.names, read=self._settings.read, source=f"`{self._path.name}`"
        )

    def listed(self) -> Iterator[str]:
        """Yield one line for each cell: the settings in which it differs from others."""
        for values in self._cells.cells:
            shown = {name: values[name] for name in self._cells.varying if name in values} or values
            yield "  ".join(f"{name}={value}" for name, value in shown.items())

    def run(self) -> SweepReport:
        """Run what is not known yet, write the results, and return the report.

        Raises:
            UsageError: The output holds another grid, or no cell has a result.
            MissingExtra: Ray is not installed.
            SourceError: No Ray cluster answers.
        """
        if self._question.output is None:
            results = self._finish({}, None)
            self._check_any(results)
            return self._report(results, known=0, output=None)
        output = Path(self._question.output)
        known = self._known_in(output)
        is_written = len(known) == len(self._by_key)
        with Journal(output.with_name(f"{output.name}.journal")) as journal:
            known |= self._known_in_journal(journal)
            results = known if is_written else self._continue(known, journal, output)
            journal.remove()
        return self._report(results, known=len(known), output=output.name)

    def _continue(self, known: dict[str, JobResult], journal: Journal, output: Path) -> dict[str, JobResult]:
        """Do the rest and write all of it; what is done is in the journal until then."""
        journal.begin(self._plan, known.values())
        try:
            results = self._finish(known, journal)
        except KeyboardInterrupt:
            click.echo(f"`{journal.path.name}` keeps what is finished; the same command goes on from there", err=True)
            raise
        self._check_any(results)
        self._write(output, results)
        return results

    @cached_property
    def _inputs(self) -> dict[str, str]:
        files: dict[str, Path] = {}
        for values in self._cells.cells:
            files |= self._settings.files(values, folder=self._path.parent)
        return {text: digest_of(path) for text, path in files.items()}

    @cached_property
    def _by_key(self) -> dict[str, Values]:
        return {
            key_of(values, inputs=self._inputs_of(values), version=kvledger.__version__): values
            for values in self._cells.cells
        }

    def _inputs_of(self, values: Values) -> dict[str, str]:
        return {
            value: self._inputs[value] for value in values.values() if isinstance(value, str) and value in self._inputs
        }

    @property
    def _plan(self) -> str:
        return hashlib.sha256("\n".join(sorted(self._by_key)).encode()).hexdigest()[:24]

    def _known_in(self, output: Path) -> dict[str, JobResult]:
        refuse_overwrite(output, force=True)
        if not output.is_file() or self._question.force:
            return {}
        with output.open("rb") as stream:
            provenance, results = read_results(stream, settings=self._settings.columns, name=output.name)
        return self._usable(results, plan=provenance.plan, name=output.name)

    def _known_in_journal(self, journal: Journal) -> dict[str, JobResult]:
        if self._question.force:
            return {}
        progress = journal.read()
        return {} if progress is None else self._usable(progress.results, plan=progress.plan, name=journal.path.name)

    def _usable(self, results: Sequence[JobResult], *, plan: str, name: str) -> dict[str, JobResult]:
        """Return the results that are cells of this grid and final.

        Raises:
            UsageError: They belong to another grid, and it was not said to take them over.
        """
        same = {result.key: result for result in results if result.key in self._by_key and result.is_final}
        if plan != self._plan and not self._question.update:
            raise UsageError(
                f"`{name}` holds another sweep: the grid, one of its inputs or the version has changed, and "
                f"{len(same):,} of the {len(self._by_key):,} cells of this grid are among its "
                f"{len(results):,}",
                hint="add --update to take these over and replace the rest, or --force to start anew",
            )
        return same

    def _finish(self, known: dict[str, JobResult], journal: Journal | None) -> dict[str, JobResult]:
        """Run what is not known; every result is kept in the journal as it comes."""
        todo = [key for key in self._by_key if key not in known]
        results = dict(known)
        with (
            SweepProgress(total=len(self._by_key), known=len(known), quiet=self._question.quiet) as progress,
            redirect_stdout(sys.stderr),  # Ray prints what became of its workers; here stdout is for the result
        ):
            for index, answer in self._answers([self._job(key) for key in todo]):
                result = _result(todo[index], answer)
                results[result.key] = result
                if journal is not None:
                    journal.add(result)
                progress.advance(has_errors=result.has_errors)
        return {key: results[key] for key in self._by_key}

    def _answers(self, jobs: Sequence[bytes]) -> Iterator[tuple[int, Answer]]:
        if not jobs:
            return iter(())
        if self._question.address is None and not self._question.quiet and KernelCache().is_empty:
            click.echo("compiling the replay kernels, once (about 10 s) ...", err=True)
        if self._question.address is not None:
            return run_on_ray(jobs, run_cell, address=self._question.address)
        return run_in_processes(jobs, run_cell, workers=self._question.workers or _cores())

    def _job(self, key: str) -> bytes:
        values = self._by_key[key]
        job = Job(
            key=key,
            version=kvledger.__version__,
            inputs=tuple(self._inputs_of(values).values()),
            folder=str(self._path.parent.absolute()),
            values=values,
        )
        return msgspec.msgpack.encode(job)

    def _check_any(self, results: dict[str, JobResult]) -> None:
        report = self._report(results, known=0, output=None)
        if report.failures and not report.rows:
            reasons = list(reasons_of(report.failures))
            why = f" {reasons[0]}" if len(reasons) == 1 else "\n".join(["", *failure_lines(report.failures)])
            raise UsageError(
                f"none of the {len(results):,} cells has a result:{why}",
                hint="--dry-run lists the cells",
                reasons=reasons,
            )

    def _write(self, output: Path, results: dict[str, JobResult]) -> None:
        provenance = Provenance(
            kvledger_version=kvledger.__version__,
            plan=self._plan,
            grid=self._text.decode("utf-8-sig"),
            inputs=self._inputs,
        )
        with new_file(str(output), force=True) as stream:
            write_results(
                stream,
                ((results[key], self._settings.cells_of(values)) for key, values in self._by_key.items()),
                settings=self._settings.columns,
                provenance=provenance,
            )

    def _report(self, results: dict[str, JobResult], *, known: int, output: str | None) -> SweepReport:
        return gather(
            results,
            {key: self._by_key[key] for key in results},
            source=self._path.name,
            varying=self._cells.varying,
            known=known,
            output=output,
            notes=tuple(self._notes(output)),
        )

    def _notes(self, output: str | None) -> Iterator[str]:
        yield from self._cells.notes
        if repeated := self._cells.repeated:
            yield f"{counted(repeated, 'cell')} {agree(repeated, 'is', 'are')} listed more than once, and run once"
        if output is None:
            yield "give -o FILE.parquet to keep all columns, and to be able to stop and go on"


def _result(key: str, answer: Answer) -> JobResult:
    if isinstance(answer, Lost):
        return failed(key, code=Error.code, message=answer.reason)
    return msgspec.json.decode(answer, type=JobResult)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no file name"
        raise SourceError(f"`{path.name[:80]}` cannot be opened: {why}", hint="give a grid in TOML") from error
