"""The same prompts held in different ways: what each did, how fast, and whether the answers are the same."""

from __future__ import annotations

from collections.abc import Sequence

from kvledger.report.html.figures import amount, count, duration
from kvledger.report.html.frame import section, subsection
from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.saved_prove import SavedAgreement, SavedProve, SavedSide
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import both, code, prose, told

__all__ = ["prove_facts", "prove_section"]

_WIDTH = 100


def prove_section(run: int, result: SavedProve, *, name: str | None) -> Markup:
    """Return the section of one proof."""
    done = [side for side in result.sides if side.failure is None]
    return section(
        f"ways-{run}",
        both("ways.title"),
        both("ways.note"),
        _speeds(run, done),
        _answers(run, done),
        _failures(result.sides),
        run=name,
    )


def _speeds(run: int, sides: Sequence[SavedSide]) -> Markup:
    columns = [
        Column(title=both("balance.way"), text=True),
        Column(title=both("balance.running"), accuracy="measured", formula="formula.running"),
        Column(title=both("ways.most"), accuracy="measured", formula="formula.running"),
        Column(title=both("ways.speed"), text=True, accuracy="measured", formula="formula.speed"),
        Column(title=both("ways.prefill"), accuracy="measured", formula="formula.prefill"),
        Column(title=both("ways.decode"), accuracy="measured", formula="formula.decode"),
        Column(title=both("ways.seconds"), accuracy="measured", formula="formula.wall"),
        Column(title=both("requests.preempted"), accuracy="measured", formula="formula.count"),
    ]
    fastest = max((side.tokens_per_second for side in sides), default=0.0)
    rows: list[list[Cell]] = [
        [
            cell(code(side.way), side.way),
            cell(f"{side.saturated_running or side.mean_running:.1f}", side.saturated_running or side.mean_running),
            cell(count(side.peak_running), side.peak_running),
            cell(_speed(side.tokens_per_second, fastest), side.tokens_per_second),
            _rate(side.prefill_tokens, side.prefill_seconds),
            _rate(side.decode_tokens, side.decode_seconds),
            cell(duration(side.seconds), side.seconds),
            cell(count(side.preemptions), side.preemptions, quiet=not side.preemptions),
        ]
        for side in sides
    ]
    identifier = f"speeds-{run}-table"
    return subsection(identifier, both("ways.speeds"), None, table(identifier, both("ways.speeds"), columns, rows))


def _speed(rate: float, fastest: float) -> Markup:
    """Return a rate with a bar beside it, so that the ways can be compared at a glance."""
    width = _WIDTH * rate / fastest if fastest else 0.0
    rule = element("rect", x=0, y=0, width=f"{width:.1f}%", height="100%")
    drawn = element("svg", rule, class_="measure", aria_hidden="true", focusable="false")
    return join(element("span", f"{rate:,.1f}", class_="rate"), drawn)


def _rate(tokens: int, seconds: float) -> Cell:
    if not seconds:
        return cell("–", quiet=True)
    rate = tokens / seconds
    return cell(f"{rate:,.1f}" if rate < 100 else f"{rate:,.0f}", rate)


def _answers(run: int, sides: Sequence[SavedSide]) -> Markup:
    compared = [(side, side.agreement) for side in sides if side.agreement is not None]
    if not compared:
        return element("p", both("ways.alone"), class_="note")
    columns = [
        Column(title=both("balance.way"), text=True),
        *(
            Column(title=both(f"ways.{name}"), accuracy="measured", formula=f"formula.{name}")
            for name in ("same", "tie", "different", "missing")
        ),
        Column(title=both("ways.verdict"), text=True),
    ]
    rows = [[cell(code(side.way), side.way), *_counts(found)] for side, found in compared]
    identifier = f"answers-{run}-table"
    return subsection(
        identifier,
        both("ways.answers"),
        both("ways.answers.note"),
        table(identifier, both("ways.answers"), columns, rows),
    )


def _counts(found: SavedAgreement) -> list[Cell]:
    counts = (found.same, found.tie, found.different, found.missing)
    key = "fault" if found.different else "partly" if found.missing else "tied" if found.tie else "equal"
    verdict = element("span", both(f"ways.{key}"), class_="worse" if found.different else "better")
    return [*(cell(count(n), n, quiet=not n) for n in counts), cell(verdict, key)]


def _failures(sides: Sequence[SavedSide]) -> Markup:
    told_here = [
        both("ways.failed", way=code(side.way), why=prose(side.failure.message)) for side in sides if side.failure
    ]
    told_here += [join(code(side.way), ": ", told(note)) for side in sides for note in side.notes]
    told_here += [
        both("ways.unseen", way=code(side.way)) for side in sides if side.failure is None and side.ratio is None
    ]
    return element("ul", *(element("li", one) for one in told_here), class_="notes") if told_here else Markup("")


def prove_facts(result: SavedProve) -> list[Markup]:
    """Return what was asked, as the facts above the answer."""
    tokens = result.memory_bytes // max(1, result.token_bytes)
    return [
        both("question.requests", count=count(result.requests), source=element("bdi", result.trace)),
        both("ways.tokens", prompt=count(result.prompt_tokens), output=count(result.output_tokens)),
        both("ways.model", model=element("bdi", result.model), dtype=element("bdi", result.dtype)),
        both("ways.memory", memory=amount(result.memory_bytes, "bytes"), tokens=count(tokens)),
        both("question.length", length=count(result.max_model_len)),
    ]
