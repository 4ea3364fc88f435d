"""What would give memory back: each finding with its remedies, their proof, and what gets worse."""

from __future__ import annotations

from collections.abc import Sequence

from kvledger.report.html.figures import amount
from kvledger.report.html.frame import section
from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.saved import SavedFigure, SavedFinding, SavedFindings, SavedRemedy
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import both, code, prose, told

__all__ = ["findings_section"]

_MOST_SHOWN = 4


def findings_section(run: int, findings: SavedFindings, *, name: str | None) -> Markup:
    """Return the findings of one run; empty when there are none."""
    if not findings.told and not findings.unproved:
        return Markup("")
    told_here = [_finding(f"finding-{run}-{number}", finding) for number, finding in enumerate(findings.told)]
    parts = told_here[:_MOST_SHOWN]
    if rest := told_here[_MOST_SHOWN:]:
        more = element("summary", both("findings.more", count=str(len(rest))))
        parts.append(element("details", more, *rest, class_="more"))
    if findings.unproved:
        codes = Markup(", ".join(code(name) for name in findings.unproved))
        parts.append(element("p", both("findings.unproved", codes=codes), class_="note"))
    return section(f"findings-{run}", both("findings.title"), both("findings.note"), *parts, run=name)


def _finding(identifier: str, finding: SavedFinding) -> Markup:
    head = element("h3", code(finding.code), " ", told(finding.title), id=f"{identifier}-title")
    size = join(both("findings.speaks"), " ", element("b", _figure(finding.size)), " ", _known(finding.size))
    subject = both("findings.about", subject=prose(finding.subject))
    about = element("p", element("span", subject), element("span", size), class_="facts")
    sentence = element("p", told(finding.sentence), class_="sentence")
    remedies = _remedies(identifier, finding) if finding.remedies else None
    return element("div", head, about, sentence, remedies, _how(finding), class_="part finding")


def _how(finding: SavedFinding) -> Markup:
    """Return the formulas of the finding and of what each remedy gives back."""
    figures = [(both("findings.speaks"), finding.size)]
    figures += [(join(both("findings.gives"), " (", told(r.setting), ")"), r.returned) for r in finding.remedies]
    known = [
        element("li", element("b", what), " ", _known(figure), " ", told(figure.formula)) for what, figure in figures
    ]
    return element("details", element("summary", both("how")), element("ul", *known), class_="how")


def _remedies(identifier: str, finding: SavedFinding) -> Markup:
    columns = [
        Column(title=both("findings.setting"), prose=True),
        Column(title=both("findings.gives")),
        Column(title=both("findings.kind"), text=True),
        Column(title=both("findings.proof"), prose=True),
        Column(title=both("findings.worse"), prose=True),
    ]
    rows: list[Sequence[Cell]] = [
        [
            cell(told(remedy.setting), remedy.setting),
            _returned(remedy),
            cell(both(f"findings.{'safe' if remedy.trade == 'safe' else 'trade-off'}"), remedy.trade),
            cell(told(remedy.proof), remedy.proof),
            cell(
                told(remedy.worse) if remedy.worse else both("findings.nothing"), remedy.worse, quiet=not remedy.worse
            ),
        ]
        for remedy in finding.remedies
    ]
    return table(identifier, both("findings.title"), columns, rows)


def _returned(remedy: SavedRemedy) -> Cell:
    """Return what a change gives back; where that is no memory, what it is good for."""
    if not remedy.returned.high:
        good = element("small", told(remedy.gain)) if remedy.gain else None
        return cell(join(both("findings.no_memory"), good), 0)
    return cell(join(_figure(remedy.returned), element("small", _known(remedy.returned))), remedy.returned.low)


def _figure(figure: SavedFigure) -> Markup:
    low = amount(figure.low, figure.unit)
    if figure.low == figure.high:
        return join(low)
    return both("between", low=low, high=amount(figure.high, figure.unit))


def _known(figure: SavedFigure) -> Markup:
    return element("em", both(f"accuracy.{figure.accuracy}"), class_=f"known {figure.accuracy}")
