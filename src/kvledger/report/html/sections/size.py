"""What a model's KV cache costs: the answer, what groups of layers and requests take, what the engine prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kvledger.ledger import Account, Accuracy
from kvledger.report.html.figures import amount, count, percent
from kvledger.report.html.frame import section
from kvledger.report.html.markup import Markup, element, join
from kvledger.report.html.saved_size import SavedClaim, SavedPlan, SavedRequestCost, SavedSize, SavedSizeEngine
from kvledger.report.html.sections.balance import account_bar
from kvledger.report.html.sections.size_memory import load_section, memory_section
from kvledger.report.html.table import Cell, Column, cell, table
from kvledger.report.html.words import both, engine_name, prose, told

__all__ = ["size_answers", "size_notes", "size_sections"]

_PARALLEL = ("tp", "pp", "dcp", "pcp", "dp")


def size_answers(result: SavedSize) -> Iterator[tuple[list[Markup], Markup, Markup | None]]:
    """Yield facts, answer and advice: of the one engine, or of all of them together."""
    planned = [engine for engine in result.engines if engine.plan is not None]
    if len(result.engines) == 1 and planned:
        (engine,) = planned
        advice = None
        if result.log is not None:
            follows = both("size.follows" if result.log.follows else "size.not.follows")
            advice = join(follows, " ", told(result.log.explanation))
        yield _facts(result, engine), told(engine.answer), advice
        return
    facts = [element("bdi", result.model)]
    if result.gpu is not None:
        facts.append(element("bdi", result.gpu.name))
    most = [(_longest(engine), engine) for engine in planned if engine.requests]
    if not most:
        yield facts, both("size.none"), None
        return
    (low, few), (high, many) = min(most, key=lambda one: one[0]), max(most, key=lambda one: one[0])
    yield (
        facts,
        both(
            "size.several",
            count=count(len(result.engines)),
            low=count(low),
            few=element("bdi", engine_name(few.engine)),
            high=count(high),
            many=element("bdi", engine_name(many.engine)),
        ),
        None,
    )


def size_sections(run: int, result: SavedSize, *, name: str | None) -> list[Markup]:
    """Return the sections of one answer; of several engines, their comparison."""
    del name  # it is never shown beside another result
    planned = [engine for engine in result.engines if engine.plan is not None]
    if len(result.engines) == 1 and planned:
        return _one(str(run), result, planned[0])
    refused = [engine for engine in result.engines if engine.plan is None]
    return [_several(f"engines-{run}", planned), _refused(f"refused-{run}", refused)]


def size_notes(result: SavedSize) -> Iterator[Markup]:
    """Yield what was assumed, and what the rules of an engine leave open."""
    yield both("size.rule")
    for engine in result.engines:
        label = join(element("bdi", engine_name(engine.engine)), ": ") if len(result.engines) > 1 else None
        if engine.largest_max_model_len is not None:
            yield join(label, both("size.largest", length=count(engine.largest_max_model_len)))
        if engine.plan_low is not None and engine.plan_high is not None:
            low, high = (plan.printed_tokens for plan in (engine.plan_low, engine.plan_high))
            if low is not None and high is not None:
                yield join(label, both("size.interval", low=count(low), high=count(high)))
        if engine.plan is not None:
            yield from (join(label, told(note)) for note in engine.plan.notes)
    yield from (told(note) for note in result.notes)


def _facts(result: SavedSize, engine: SavedSizeEngine) -> list[Markup]:
    facts = [element("bdi", result.model), element("bdi", f"{engine_name(engine.engine)} {engine.version}")]
    parallel = [(name, engine.settings.get(name)) for name in _PARALLEL]
    shown = ", ".join(f"{name} {value}" for name, value in parallel if isinstance(value, int) and value > 1)
    if shown:
        facts.append(join(shown))
    if engine.memory is not None:
        facts.append(both("size.memory", memory=amount(engine.memory.smallest_bytes, "bytes")))
    if engine.model_cost is not None:
        facts.append(both("size.token", bytes=count(engine.model_cost.growth_bytes_per_token)))
        if engine.model_cost.fixed_bytes_per_sequence:
            fixed = amount(engine.model_cost.fixed_bytes_per_sequence, "bytes")
            facts.append(both("size.sequence", bytes=fixed))
    dtype = engine.settings.get("kv_dtype")
    if isinstance(dtype, str):
        facts.append(both("size.dtype", dtype=element("bdi", dtype)))
    facts.append(both("question.length", length=count(engine.max_model_len)))
    return facts


def _one(run: str, result: SavedSize, engine: SavedSizeEngine) -> list[Markup]:
    plan = engine.plan
    assert plan is not None
    device = None if result.gpu is None else (result.gpu.name, result.gpu.memory_bytes)
    structures = [one for one in (engine.structure, engine.load) if one is not None]
    return [
        memory_section(run, engine.memory, device) if engine.memory is not None else Markup(""),
        load_section(run, structures),
        _groups(run, plan, engine.max_model_len),
        _costs(run, plan, engine),
        _lines(run, plan),
    ]


def _groups(run: str, plan: SavedPlan, longest: int) -> Markup:
    claims = [claim for claim in plan.claims if claim.content_bytes is not None]
    if not claims:
        return Markup("")
    columns = [
        Column(title=both("groups.group"), text=True),
        Column(title=both("groups.kind"), text=True),
        Column(title=both("groups.layers"), accuracy=str(plan.accuracy), formula="formula.groups"),
        Column(title=both("groups.unit")),
        Column(title=both("groups.content"), accuracy=str(plan.accuracy), formula="formula.content"),
        Column(title=both("groups.padding"), accuracy=str(plan.accuracy), formula="formula.padding"),
        Column(title=both("groups.token"), accuracy=str(plan.accuracy), formula="formula.token"),
        Column(
            title=both("groups.longest", length=count(longest)), accuracy=str(plan.accuracy), formula="formula.request"
        ),
    ]
    whole = sum(claim.request_bytes or 0 for claim in claims)
    rows = [_group(claim, plan, whole) for claim in claims]
    title = both("groups.title")
    identifier = f"groups-{run}"
    return section(identifier, title, both("groups.note"), table(identifier, title, columns, rows))


def _group(claim: SavedClaim, plan: SavedPlan, whole: int) -> list[Cell]:
    content, padding = claim.content_bytes or 0, claim.padding_bytes or 0
    units = {pool.name: pool.unit for pool in plan.pools}
    window = both("groups.window", tokens=count(claim.window_tokens)) if claim.window_tokens else None
    unit = join(told(units.get(claim.pool, "")), element("small", both("engine.tokens", low=count(claim.unit_tokens))))
    token = cell("–", quiet=True)
    if claim.unit_tokens and not claim.window_tokens:
        token = cell(count((content + padding) / claim.unit_tokens), (content + padding) / claim.unit_tokens)
    request = cell("–", quiet=True)
    if claim.request_bytes is not None:
        share = element("small", percent(claim.request_bytes / whole)) if whole else None
        request = cell(join(amount(claim.request_bytes, "bytes"), share), claim.request_bytes)
    return [
        cell(element("bdi", claim.name), claim.name),
        cell(join(_kind(claim), element("small", window) if window else None), claim.kind),
        cell(count(claim.layers), claim.layers),
        cell(unit if claim.unit_tokens else both("groups.state"), claim.unit_tokens),
        cell(amount(content, "bytes"), content),
        cell(amount(padding, "bytes"), padding, quiet=not padding),
        token,
        request,
    ]


def _kind(claim: SavedClaim) -> Markup:
    known = claim.kind in ("full", "window", "chunk", "state", "cross")
    return both(f"groups.kind.{claim.kind}") if known else element("bdi", claim.kind)


def _costs(run: str, plan: SavedPlan, engine: SavedSizeEngine) -> Markup:
    unit = f"{plan.pools[0].unit}s" if len(plan.pools) == 1 else ""
    columns = [
        Column(title=both("cost.length")),
        Column(title=both("cost.fit"), accuracy=str(plan.accuracy), formula="formula.fit"),
        Column(title=told(unit) if unit else both("cost.units")),
        Column(title=both("cost.held"), accuracy=str(plan.accuracy), formula="formula.held"),
        Column(title=both("cost.needed"), accuracy="derived", formula="formula.needed"),
        Column(title=both("cost.share"), text=True, accuracy="derived", formula="formula.stored"),
    ]
    limit = engine.request_limit
    rows = [
        [
            cell(count(cost.length_tokens), cost.length_tokens),
            _fit(cost, limit),
            cell(count(cost.units), cost.units),
            cell(amount(cost.held_bytes, "bytes"), cost.held_bytes),
            cell(amount(cost.needed_bytes, "bytes"), cost.needed_bytes),
            cell(_share(cost), cost.used_ratio),
        ]
        for cost in engine.requests
    ]
    title = both("cost.title")
    note = element("p", both("cost.limit", limit=count(limit)), class_="note") if limit is not None else Markup("")
    identifier = f"cost-{run}"
    return section(identifier, title, both("cost.note"), table(identifier, title, columns, rows), note)


def _share(cost: SavedRequestCost) -> Markup:
    """Return what of a request's memory stores something, as a number and as a bar."""
    parts = element("rect", x=0, y=0, width=f"{100 * min(1.0, cost.used_ratio):.1f}%", height="100%", class_="s-used")
    drawn = element("svg", parts, class_="measure share", aria_hidden="true", focusable="false")
    return join(element("span", percent(cost.used_ratio), class_="rate"), drawn)


def _fit(cost: SavedRequestCost, limit: int | None) -> Cell:
    if limit is None or cost.requests <= limit:
        return cell(element("b", count(cost.requests)), cost.requests)
    return cell(
        join(element("b", count(limit)), element("small", both("cost.room", count=count(cost.requests)))), limit
    )


def _lines(run: str, plan: SavedPlan) -> Markup:
    if not plan.lines and plan.failure is None:
        return Markup("")
    rows = []
    if plan.failure is not None:
        rows.append(element("div", element("dt", element("code", f"ERROR {plan.failure.text}")), class_="worse"))
    for line in plan.lines:
        known = element("em", both(f"accuracy.{line.accuracy}"), class_=f"known {line.accuracy}")
        meaning = element("dd", told(line.meaning), " ", known)
        rows.append(element("div", element("dt", element("code", line.text)), meaning))
    return section(f"prints-{run}", both("prints.title"), both("prints.note"), element("dl", *rows, class_="lines"))


def _several(identifier: str, engines: Sequence[SavedSizeEngine]) -> Markup:
    if not engines:
        return Markup("")
    bars = [_full(engine) for engine in engines]
    memory = _weakest(engine.memory.accuracy for engine in engines if engine.memory is not None)
    plan = _weakest(engine.plan.accuracy for engine in engines if engine.plan is not None)
    columns = [
        Column(title=both("balance.engine"), text=True),
        Column(title=both("engines.memory"), accuracy=memory, formula="formula.memory"),
        Column(title=Markup("max_model_len")),
        Column(title=both("engines.requests"), accuracy=plan, formula="formula.fit"),
        Column(title=both("engines.short"), accuracy=plan, formula="formula.fit"),
        Column(title=both("engines.used"), accuracy=plan, formula="formula.full"),
        Column(title=both("engines.starts"), accuracy=plan, formula="formula.starts"),
    ]
    title = both("engines.title")
    return section(
        identifier,
        title,
        both("engines.note"),
        element("div", *bars, class_="bars log", role="list"),
        table(identifier, title, columns, [_engine(engine) for engine in engines]),
    )


def _weakest(accuracies: Iterable[Accuracy]) -> str:
    """Return how the least certain of several numbers is known."""
    order = list(Accuracy)
    return str(max(accuracies, key=order.index, default=Accuracy.DERIVED))


def _full(engine: SavedSizeEngine) -> Markup:
    sheet = None if engine.structure is None else engine.structure.deployment
    used = percent(sheet.ratio[Account.USED]) if sheet is not None else "–"
    return element(
        "div",
        element("span", element("bdi", engine_name(engine.engine)), class_="name"),
        account_bar(sheet.ratio if sheet is not None else {}),
        element("span", element("b", used), " ", both("account.used"), class_="of"),
        class_="row",
        role="listitem",
    )


def _longest(engine: SavedSizeEngine) -> int:
    most = engine.requests[-1].requests
    return most if engine.request_limit is None else min(most, engine.request_limit)


def _engine(engine: SavedSizeEngine) -> list[Cell]:
    memory, sheet = engine.memory, engine.structure
    short = next((cost for cost in engine.requests if cost.length_tokens == 800), None)
    few = None if short is None else min(short.requests, engine.request_limit or short.requests)
    used = sheet.deployment.ratio[Account.USED] if sheet is not None else None
    longest = _longest(engine) if engine.requests else None
    version = element("small", element("bdi", engine.version), class_="run")
    return [
        cell(join(element("bdi", engine_name(engine.engine)), version), f"{engine.engine} {engine.version}"),
        cell(
            "–" if memory is None else amount(memory.smallest_bytes, "bytes"), memory.smallest_bytes if memory else None
        ),
        cell(count(engine.max_model_len or None), engine.max_model_len),
        cell(element("b", count(longest)), longest),
        cell(count(few), few),
        cell("–" if used is None else percent(used), used),
        cell(count(engine.largest_max_model_len), engine.largest_max_model_len),
    ]


def _refused(identifier: str, engines: Sequence[SavedSizeEngine]) -> Markup:
    rows = [
        element(
            "div", element("dt", element("bdi", engine_name(engine.engine))), element("dd", prose(engine.error.message))
        )
        for engine in engines
        if engine.error is not None
    ]
    if not rows:
        return Markup("")
    return section(identifier, both("refused.title"), None, element("dl", *rows, class_="facts-list"))
