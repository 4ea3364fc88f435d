"""Where the numbers come from: inputs, versions, the clock, accuracy, notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kvledger.report.html.figures import count
from kvledger.report.html.frame import section, subsection
from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.reading import Run
from kvledger.report.html.saved import SavedReplay
from kvledger.report.html.saved_measure import SavedMeasure
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
    if isinstance(result, SavedReplay):
        facts.append((both("provenance.version"), Markup(f"kvledger {element('bdi', result.kvledger_version)}")))
        facts.append((both("provenance.clock"), _clock(result.settings.get("clock"))))
        for kind in _KINDS:
            accuracy = result.accuracy.get(kind)
            if accuracy is not None:
                known = element("em", both(f"accuracy.{accuracy}"), class_=f"known {accuracy}")
                facts.append((both(f"provenance.{kind}"), known))
    else:
        facts.append((both("provenance.version"), Markup(f"kvledger {element('bdi', version)}")))
    rows = element("dl", *(element("div", element("dt", k), element("dd", v)) for k, v in facts), class_="facts-list")
    notes = list(_notes(result) if isinstance(result, SavedReplay) else _measure_notes(result))
    listed = element("ul", *(element("li", note) for note in notes), class_="notes") if notes else None
    return subsection(f"run-{number}", element("bdi", run.name), None, join(rows, listed))


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
