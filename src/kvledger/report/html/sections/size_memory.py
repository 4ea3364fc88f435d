"""Where the memory of the device goes, and what the pool holds at a load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvledger.ledger import Account
from kvledger.report.html.figures import amount, count, percent
from kvledger.report.html.frame import section
from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.saved_size import SavedKvMemory, SavedSizeSheet, SavedStructure, SavedTerm
from kvledger.report.html.sections.balance import account_bar
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import account_name, both, told

__all__ = ["load_section", "memory_section"]

_REQUESTED = "requested"
_TONES = 4


def memory_section(identifier: str, memory: SavedKvMemory, device: tuple[str, int] | None) -> Markup:
    """Return where the memory of one device goes; ``device`` is its name and bytes, where the estimate has one."""
    taken = [term for term in memory.terms if term.name != _REQUESTED]
    drawn = _device(memory, taken, device) if device is not None else None
    title = both("memory.title")
    parts = [*_parts(memory, taken), *([_rest(memory, taken, device)] if device is not None and drawn else [])]
    return section(
        f"memory-{identifier}",
        title,
        both("memory.note" if drawn else "memory.given"),
        join(drawn, _terms(f"terms-{identifier}", parts)),
    )


_Part = tuple[str, Markup, int, int, int, str, Markup]
"""Kind, name, bytes, their bounds, how they are known, and why."""


def _parts(memory: SavedKvMemory, taken: Sequence[SavedTerm]) -> list[_Part]:
    pool: _Part = (
        "kv",
        both("memory.kv"),
        memory.smallest_bytes,
        memory.low_bytes,
        memory.high_bytes,
        str(memory.accuracy),
        told(memory.source),
    )
    return [pool, *(_taken(number, term) for number, term in enumerate(taken))]


def _taken(number: int, term: SavedTerm) -> _Part:
    low, high = sorted((abs(term.low_bytes), abs(term.high_bytes)))
    return (
        f"tone-{number % _TONES}",
        told(term.name),
        abs(term.value_bytes),
        low,
        high,
        str(term.accuracy),
        told(term.why),
    )


def _rest(memory: SavedKvMemory, taken: Sequence[SavedTerm], device: tuple[str, int]) -> _Part:
    rest = _left(memory, taken, device)
    return "rest", both("memory.rest"), rest, rest, rest, "derived", both("memory.rest.why")


def _left(memory: SavedKvMemory, taken: Sequence[SavedTerm], device: tuple[str, int]) -> int:
    return device[1] - memory.smallest_bytes - sum(abs(term.value_bytes) for term in taken)


def _device(memory: SavedKvMemory, taken: Sequence[SavedTerm], device: tuple[str, int]) -> Markup | None:
    """Draw the memory of the device as one bar; None where the addends are no partition of it."""
    if not taken or _left(memory, taken, device) < 0:
        return None
    parts = [*_parts(memory, taken), _rest(memory, taken, device)]
    shapes, left = [], 0.0
    for kind, _, size, *_ in parts:
        width = 100 * size / device[1]
        if width > 0:
            shapes.append(
                element("rect", x=f"{left:.3f}%", y=0, width=f"{width:.3f}%", height="100%", class_=f"m-{kind}")
            )
        left += width
    drawn = element("svg", *shapes, class_="bar device", aria_hidden="true", focusable="false")
    name = element("bdi", device[0])
    row = element(
        "div",
        element("span", name, class_="name"),
        drawn,
        element(
            "span", join(element("b", percent(parts[0][2] / device[1])), " ", both("memory.kv.short")), class_="of"
        ),
        class_="row",
        role="listitem",
    )
    return element("div", row, class_="bars log", role="list")


def _terms(identifier: str, parts: Sequence[_Part]) -> Markup:
    columns = [
        Column(title=both("comparison.what"), text=True),
        Column(title=both("engine.amount")),
        Column(title=both("log.bounds")),
        Column(title=both("engine.known"), text=True),
        Column(title=both("engine.from"), prose=True),
    ]
    rows: list[list[Cell]] = []
    for kind, name, size, low, high, known, why in parts:
        bounds = cell("–", quiet=True)
        if low != high:
            bounds = cell(both("between", low=amount(low, "bytes"), high=amount(high, "bytes")))
        swatch = element("i", class_=f"swatch m-{kind}")
        rows.append(
            [
                cell(join(swatch, name), kind),
                cell(amount(size, "bytes"), size),
                bounds,
                cell(element("em", both(f"accuracy.{known}"), class_=f"known {known}"), known),
                cell(why),
            ]
        )
    title = both("memory.table")
    heading = element("h3", title, id=f"{identifier}-title", class_="unseen")
    return join(heading, table(identifier, title, columns, rows))


def load_section(identifier: str, structures: Sequence[SavedStructure]) -> Markup:
    """Return where every byte of the pool goes at full load, and at the load that was asked for."""
    if not structures:
        return Markup("")
    bars = [_bar(one, sheet) for one in structures for sheet in (one.ranks if len(one.ranks) > 1 else [one.deployment])]
    accounts = [
        a for a in Account if any(sheet.accounts.get(f"{a}_bytes") for one in structures for sheet in _sheets(one))
    ]
    legend = [
        element(
            "div",
            element("dt", element("i", class_=f"swatch s-{a}"), account_name(a)),
            element("dd", both(_meaning(a))),
        )
        for a in accounts
    ]
    return section(
        f"load-{identifier}",
        both("balance.title"),
        both("load.note"),
        element("div", *bars, class_="bars", role="list"),
        element("dl", *legend, class_="legend"),
        *(_sheet(f"sheet-{identifier}-{number}", one) for number, one in enumerate(structures)),
    )


def _meaning(account: Account) -> str:
    """Return the phrase of an account; a plan holds nothing for reuse and has no holes."""
    return f"meaning.{account}" if account in (Account.CACHED, Account.EXTERNAL) else f"load.{account}"


def _sheets(structure: SavedStructure) -> list[SavedSizeSheet]:
    several = structure.deployment.ranks > 1
    return [*structure.ranks, structure.deployment] if several else list(structure.ranks)


def _bar(structure: SavedStructure, sheet: SavedSizeSheet) -> Markup:
    used = join(element("b", percent(sheet.ratio[Account.USED])), " ", account_name(Account.USED))
    count_words = both("load.bar", count=count(structure.requests), length=count(structure.length_tokens))
    rank = element("small", _name(sheet), class_="run") if len(structure.ranks) > 1 else None
    return element(
        "div",
        element("span", both(f"load.when.{structure.moment}"), rank, class_="name"),
        account_bar(sheet.ratio),
        element("span", used, class_="of"),
        element("span", count_words, class_="at"),
        class_="row",
        role="listitem",
    )


def _name(sheet: SavedSizeSheet) -> Markup:
    name = told(sheet.name)
    return both("load.ranks", name=name, count=count(sheet.ranks)) if sheet.ranks > 1 else name


def _sheet(identifier: str, structure: SavedStructure) -> Markup:
    sheets = _sheets(structure)
    title = both(f"load.{structure.moment}", count=count(structure.requests), length=count(structure.length_tokens))
    columns = [
        Column(title=both("load.part"), text=True),
        *(Column(title=_name(sheet)) for sheet in sheets),
        Column(title=both("load.why"), prose=True),
    ]
    rows = [*_entries(sheets), *_outside(sheets)]
    heading = element("h3", title, id=f"{identifier}-title")
    return join(heading, table(identifier, title, columns, rows))


def _entries(sheets: Sequence[SavedSizeSheet]) -> Iterator[list[Cell]]:
    found = {entry.name: entry for sheet in sheets for entry in sheet.entries}
    for entry in sorted(found.values(), key=lambda one: list(Account).index(one.account)):
        amounts = [sum(e.value_bytes for e in sheet.entries if e.name == entry.name) for sheet in sheets]
        swatch = element("i", class_=f"swatch s-{entry.account}")
        part = element("small", told(entry.name)) if entry.name != entry.account else None
        yield [
            cell(join(swatch, account_name(entry.account), part), entry.name),
            *(
                cell(join(amount(n, "bytes"), element("small", percent(n / sheet.capacity_bytes))), n)
                for n, sheet in zip(amounts, sheets, strict=True)
            ),
            cell(told(entry.why)),
        ]


def _outside(sheets: Sequence[SavedSizeSheet]) -> Iterator[list[Cell]]:
    """Yield what was given and is no part of the pool, or is allocated beyond what was given."""
    for key, sign in (("outside", 1), ("beyond", -1)):
        amounts = [max(0, sign * sheet.unallocated_bytes) for sheet in sheets]
        if any(amounts):
            numbers = [cell(amount(n, "bytes"), n) for n in amounts]
            yield [cell(both(f"load.{key}"), key), *numbers, cell(both(f"load.{key}.why"))]
