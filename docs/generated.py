"""The parts of the documentation that are read off the program, so that they cannot go stale.

A page asks for one with a comment on a line of its own: ``<!-- generated: commands -->``.
"""

import importlib
import inspect
import re
import types
from collections.abc import Callable, Iterator

import click

from kvledger.cli.main import _COMMANDS
from kvledger.errors import Error
from kvledger.findings.catalogue import RULES
from kvledger.findings.rule import Page, read_page
from kvledger.ledger import Account
from kvledger.pool import Policy, parse_policies, parse_policy
from kvledger.report.prometheus.table import METRICS
from kvledger.report.schema import SCHEMAS

_MARK = re.compile(r"^<!-- generated: (\S+) -->$", re.MULTILINE)


def fill_in(page: str) -> str:
    """Replace every mark of a page by what it stands for."""
    return _MARK.sub(lambda mark: PARTS[mark.group(1)](), page)


def commands() -> dict[str, click.Command]:
    """Return every subcommand by its name."""
    return {name: importlib.import_module(f"kvledger.cli.{name}").command for name in _COMMANDS}


def options_of(command: click.Command) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


def command_reference() -> str:
    return "\n".join(line for name, command in commands().items() for line in _command(name, command))


def _command(name: str, command: click.Command) -> Iterator[str]:
    given = [p for p in command.params if isinstance(p, click.Argument)]
    arguments = [p.human_readable_name if p.required else f"[{p.human_readable_name}]" for p in given]
    yield f"## kvledger {name}"
    yield ""
    yield f"`kvledger {' '.join([name, '[OPTIONS]', *arguments])}`"
    yield ""
    for paragraph in (command.help or "").split("\n\n"):
        yield from _paragraph(paragraph)
    yield "| option | value | default | what it does |"
    yield "|---|---|---|---|"
    for option in options_of(command):
        names = ", ".join(f"`{opt}`" for opt in (*option.opts, *option.secondary_opts))
        yield f"| {names} | {_value(option)} | {_default(option)} | {_cell(meaning_of(option))} |"
    yield ""


def meaning_of(option: click.Option) -> str:
    """Return what an option does; empty when neither the program nor this page says it."""
    return option.help or _WELL_KNOWN.get(option.name or "", "")


_WELL_KNOWN = {
    "no_color": "No colours; `NO_COLOR` does the same.",
    "seed": "Seed of what is drawn.",
    "format_": "What is printed: text for people, JSON for programs, Markdown for tickets and pull requests.",
    "max_num_seqs": "The most requests that run at a time.",
    "max_num_batched_tokens": "The most tokens that one step computes.",
}


def _paragraph(paragraph: str) -> Iterator[str]:
    kept, text = paragraph.startswith("\b\n"), paragraph.removeprefix("\b\n")
    if not kept:
        yield " ".join(text.split())
    elif text.startswith("Examples:"):
        yield "```console"
        yield from (f"$ {line.strip()}" for line in text.splitlines()[1:])
        yield "```"
    else:
        yield from ("```text", text, "```")
    yield ""


def _value(option: click.Option) -> str:
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice):
        return ", ".join(f"`{choice}`" for choice in option.type.choices)
    if option.metavar:
        return f"`{option.metavar}`"
    if isinstance(option.type, click.IntRange | click.FloatRange):
        kind = "whole number" if isinstance(option.type, click.IntRange) else "number"
        low, high = option.type.min, option.type.max
        if high is None:
            return f"{kind} from {low:,}" if low else kind
        return f"{kind} {low or 0:,} to {_bound(high)}"
    return "number" if option.type is click.FLOAT else "text"


def _bound(high: float) -> str:
    power = int(high).bit_length() - 1
    return f"2^{power}" if power >= 20 and high == 2**power else f"{high:,}"


def _default(option: click.Option) -> str:
    if option.is_flag and option.secondary_opts:
        return f"`{(option.opts if option.default else option.secondary_opts)[0]}`"
    if option.is_flag or not isinstance(option.default, str | int | float):
        return ""
    return f"`{option.default}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def accounts() -> str:
    return _table(("account", "bytes that"), ((f"`{a}`", a.meaning) for a in Account))


def policies() -> str:
    """Return every policy by name, as it describes itself."""
    return _table(("policy", "what it does"), ((f"`{p.name}`", p.meaning) for p in every_policy()))


def every_policy() -> list[Policy]:
    variants = ("doubling", "step", "segments")
    others = [*(f"grow@{variant}" for variant in variants), "paged:radix", "paged:pools"]
    return [*parse_policies("all"), *map(parse_policy, others)]


def sweep_columns() -> str:
    """Return every column of the results of a sweep, in their order."""
    from kvledger.cli.sweep_settings import SweepSettings
    from kvledger.sweep.results import columns_of

    rows = ((f"`{c.name}`", str(c.kind), c.unit, c.known, c.meaning) for c in columns_of(SweepSettings().columns))
    return _table(("column", "type", "unit", "known", "meaning"), rows)


def errors() -> str:
    rows = ((f"`{e.code}`", f"`{e.__name__}`", (e.__doc__ or "").split("\n")[0]) for e in every_error())
    return _table(("code", "error", "when"), rows)


def every_error() -> list[type[Error]]:
    found, todo = [], [Error]
    while todo:
        found.append(todo.pop())
        todo += found[-1].__subclasses__()
    return sorted(found, key=lambda error: error.code)


def metrics() -> str:
    """Return the table of metrics that `kvledger export` serves."""
    rows = (
        (f"`{m.name}`", m.kind.value, ", ".join(f"`{label}`" for label in (*m.whose, *m.labels)), m.meaning)
        for m in METRICS
    )
    return _table(("metric", "type", "labels", "meaning"), rows)


def findings() -> str:
    """Return the page of every finding, from its class."""
    return "\n".join(line for rule in RULES for line in _page(read_page(type(rule))))


def schemas() -> str:
    """Return the name of every JSON Schema, with the tables that it is made from."""
    return _table(
        ("schema", "made from the tables"), ((f"`kvledger/{name}`", ", ".join(SCHEMAS[name])) for name in SCHEMAS)
    )


ROOMS = ("ledger", "units", "errors", "model", "pool", "replay", "traces", "runtime", "testing")
"""Modules whose public names are listed; what a name means is the first sentence of its docstring."""


def names() -> str:
    """Return every public name of the rooms, with what it is."""
    return "\n\n".join(f"### kvledger.{room}\n\n{_names_of(room)}" for room in ROOMS)


def _names_of(room: str) -> str:
    module = importlib.import_module(f"kvledger.{room}")
    found = ((name, getattr(module, name)) for name in module.__all__)
    return _table(("name", "what it is"), ((f"`{name}`", _first_sentence(value)) for name, value in found))


def _first_sentence(value: object) -> str:
    if isinstance(value, types.UnionType):
        return "one of " + ", ".join(f"`{one.__name__}`" for one in value.__args__)
    if kind := getattr(value, "__supertype__", None):
        return f"a type of its own for `{kind.__name__}`"
    if not callable(value):
        return f"a constant, `{value}`" if isinstance(value, int) else "a constant"
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split()).removesuffix(".")


def _page(page: Page) -> Iterator[str]:
    yield f"({page.code.lower()})="
    yield f"### {page.code}: {page.title}"
    yield ""
    for name, text in page.sections.items():
        yield f"**{name}.** {text}"
        yield ""


def _table(head: tuple[str, ...], rows: "Iterator[tuple[str, ...]]") -> str:
    lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(map(_cell, row)) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


PARTS: dict[str, Callable[[], str]] = {
    "accounts": accounts,
    "commands": command_reference,
    "errors": errors,
    "metrics": metrics,
    "findings": findings,
    "names": names,
    "policies": policies,
    "schemas": schemas,
    "sweep-columns": sweep_columns,
}
