"""Where the numbers come from: inputs, versions, the clock, accuracy, notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

from kvledger.report.html.checks import Result
from kvledger.report.html.figures import count
from kvledger.report.html.frame import section, subsection
from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.reading import Run
from kvledger.report.html.saved import SavedReplay
from kvledger.report.html.saved_check import SavedCheck
from kvledger.report.html.saved_log import SavedLog
from kvledger.report.html.saved_measure import SavedMeasure
from kvledger.report.html.saved_prove import SavedProve
from kvledger.report.html.saved_sharing import SavedSharing
from kvledger.report.html.saved_size import SavedSize
from kvledger.report.html.saved_sweep import SavedSweep
from kvledger.report.html.saved_traffic import SavedCache, SavedTraceFile
from kvledger.report.html.sections.cache import cache_notes
from kvledger.report.html.sections.check import check_notes
from kvledger.report.html.sections.size import size_notes
from kvledger.report.html.sections.trace import trace_notes
from kvledger.report.html.words import both, code, prose, told

__all__ = ["provenance_section"]

_KINDS = ("lengths", "arrivals", "ratios", "counts", "seconds")


def provenance_section(runs: Sequence[Run], version: str) -> Markup:
    """Return the last section."""
    return section(
        "provenance",
        both("provenance.title"),
        both("provenance.measured"),
        *(_run(number, run, version) for number, run in enumerate(runs)),
    )


def _run(number: int, run: Run, version: str) -> Markup:
    facts = [(both("provenance.input"), element("bdi", run.name))]
    result = run.result
    unsigned = (SavedMeasure, SavedLog, SavedTraceFile, SavedCheck)
    written = version if isinstance(result, unsigned) else result.kvledger_version
    facts.append((both("provenance.version"), Markup(f"kvledger {element('bdi', written)}")))
    if isinstance(result, SavedReplay):
        facts.append((both("provenance.clock"), _clock(result.settings.get("clock"))))
        facts += [
            (both(f"provenance.{kind}"), _known(result.accuracy[kind])) for kind in _KINDS if kind in result.accuracy
        ]
    elif isinstance(result, SavedProve):
        facts += [(element("bdi", name), element("bdi", release or "–")) for name, release in result.versions.items()]
        facts.append((both("provenance.threads"), join(count(result.threads))))
        facts += [
            (both(f"provenance.{k}"), _known(result.accuracy[k])) for k in ("bytes", "seconds") if k in result.accuracy
        ]
    elif isinstance(result, SavedSweep):
        facts += [(both("provenance.ratios"), _known("derived")), (both("provenance.seconds"), _known("modelled"))]
    elif isinstance(result, SavedTraceFile):
        known = result.accuracy
        facts += [
            (both("provenance.arrivals"), _known(known.arrivals)),
            (both("lengths.prompt"), _known(known.prompts)),
            (both("lengths.output"), _known(known.outputs)),
        ]
    elif isinstance(result, SavedSharing):
        facts += [(both("provenance.seed"), join(count(result.seed))), (both("provenance.ratios"), _known("derived"))]
        facts.append((both("provenance.lengths"), _known("modelled")))
    rows = element("dl", *(element("div", element("dt", k), element("dd", v)) for k, v in facts), class_="facts-list")
    notes = list(_notes_of(result))
    listed = element("ul", *(element("li", note) for note in notes), class_="notes") if notes else None
    return subsection(f"run-{number}", element("bdi", run.name), None, join(rows, listed))


def _known(accuracy: str) -> Markup:
    return element("em", both(f"accuracy.{accuracy}"), class_=f"known {accuracy}")


def _notes_of(result: Result) -> Iterator[Markup]:
    match result:
        case SavedReplay():
            yield from _notes(result)
        case SavedMeasure():
            yield from _measure_notes(result)
        case SavedProve():
            yield from (both(f"ways.rule.{rule}") for rule in ("bytes", "seconds", "start"))
            yield from (told(note) for note in result.notes)
        case SavedSweep():
            yield both("sweep.rule")
            yield from (told(note) for note in result.notes if not note.startswith("give -o "))
        case SavedSharing():
            yield from (both(f"sharing.rule.{rule}") for rule in ("lengths", "beams"))
        case SavedSize():
            yield from size_notes(result)
        case SavedCache():
            yield from cache_notes(result)
        case SavedTraceFile():
            yield from trace_notes(result)
        case SavedCheck():
            yield from check_notes(result)
        case SavedLog():
            yield both("log.rule")
        case _:
            assert_never(result)


def _measure_notes(result: SavedMeasure) -> Iterator[Markup]:
    yield from (told(note) for note in result.notes)
    for source in result.sources:
        if source.missed:
            yield both(
                "engine.missed",
                missed=count(source.missed),
                samples=count(source.samples),
                name=element("bdi", source.name),
                reason=prose(source.last_error or "?"),
            )


def _clock(clock: object) -> Markup:
    if not isinstance(clock, Mapping) or not isinstance(clock.get("name"), str):
        return Markup("–")
    if clock["name"] == "steps":
        return both("provenance.steps")
    numbers = {
        key: f"{clock[key]:.3g}" if isinstance(clock.get(key), (int, float)) else "?" for key in ("base", "a", "b", "c")
    }
    return both("provenance.clock.sentence", name=element("bdi", clock["name"]), **numbers)


def _notes(result: SavedReplay) -> Iterator[Markup]:
    yield from (told(note) for note in result.trace.notes)
    for kind, rows in (("dropped", result.trace.dropped), ("adjusted", result.trace.adjusted)):
        for reason, number in rows.items():
            yield both(f"provenance.{kind}", count=count(number), reason=told(reason))
    yield from (told(note) for note in result.notes)
    for policy in result.policies:
        for reason, number in policy.rejected.items():
            known = f"reason.{reason}"
            why = both(known) if reason in ("prompt_too_long", "larger_than_pool", "cannot_grow") else prose(reason)
            yield both("provenance.rejected", policy=code(policy.policy), count=count(number), reason=why)
