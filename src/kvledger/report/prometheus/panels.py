"""What the two dashboards show: one over the metrics of the exporter, one over the recording rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvledger.report.prometheus.dashboard import OPEN, Dashboard, Look, Panel, Query, Variable

__all__ = ["exporter_dashboard", "rules_dashboard"]

_WHOSE = "{{source}} {{engine}}"
_SERVER = "{{instance}} {{engine}}"

_IS_KNOWN, _IS_REST, _IS_IDLE = 'account!="unattributed"', 'account="unattributed"', 'account=~"free|cached"'

Find = Callable[..., str]
"""Gives the expression of a metric, narrowed to what is chosen at the top and to further labels."""


def exporter_dashboard() -> Dashboard:
    """Return the dashboard over what `kvledger export` serves."""
    return Dashboard(
        uid="kvledger-exporter",
        title="KV cache: where every byte goes",
        description="The ledgers of running servers, as `kvledger export` serves them",
        variables=(
            Variable(label="source", metric="kvledger_source_up"),
            Variable(label="engine", metric="kvledger_ledger_drawn"),
        ),
        panels=tuple(_exporter_panels()),
    )


def rules_dashboard() -> Dashboard:
    """Return the dashboard over the recording rules."""
    return Dashboard(
        uid="kvledger-rules",
        title="KV cache: where every token slot goes",
        description="The ledgers that the rules of `kvledger export --rules` draw up from the engines' own metrics",
        variables=(
            Variable(label="job", metric="kvledger:running_requests"),
            Variable(label="instance", metric="kvledger:running_requests"),
        ),
        panels=tuple(_rule_panels()),
    )


def _find(chosen: str) -> Find:
    def find(name: str, labels: str = "") -> str:
        return f"{name}{{{', '.join(part for part in (labels, chosen) if part)}}}"

    return find


def _exporter_panels() -> Iterator[Panel]:
    find = _find('source=~"$source", engine=~"$engine"')
    server = _find('source=~"$source"')

    def either(name: str, labels: str = "") -> str:
        return f"({find(f'kvledger_{name}_bytes', labels)} or {find(f'kvledger_{name}_tokens', labels)})"

    ups = server("kvledger_source_up")
    up = (Query(expr=f"sum({ups})", legend="answer"), Query(expr=f"count({ups})", legend="of"))
    yield Panel(title="Servers", queries=up, unit="short", look=Look.NUMBER, width=4)
    engines = (Query(expr=find("kvledger_engine_info")),)
    yield Panel(title="Engines", queries=engines, unit="short", look=Look.TABLE, width=20)
    yield _accounts(lambda labels="": either("pool", labels), either("available"))
    for figure, title in (("used", "Utilisation"), ("internal", "Held and holding nothing")):
        low, high = (find(f"kvledger_figure_{end}_ratio", f'figure="{figure}"') for end in ("low", "high"))
        yield Panel(title=f"{title}, of the pool", queries=_ends(low, high, _WHOSE), unit="percentunit")
    low, high = (find(f"kvledger_figure_{end}_tokens", 'figure=~"live|held|used"') for end in ("low", "high"))
    yield Panel(title="Tokens", queries=_ends(low, high, f"{_WHOSE} {{{{figure}}}}"), unit="short")
    yield from _reservation(
        find("kvledger_reservation_high_tokens"),
        find("kvledger_figure_low_tokens", 'figure="held"'),
        find("kvledger_admitted_low_requests"),
        _WHOSE,
    )
    preempted = find("kvledger_state_high_requests", 'state="preempted"')
    load = {"run": find("kvledger_running_requests"), "wait": find("kvledger_waiting_requests")}
    yield _lines("Requests", load | {"preempted at most": preempted}, _WHOSE)
    grown = {name: _increase(find(f"kvledger_{name}_total")) for name in ("preemptions", "restarts")}
    yield _lines("Preemptions and restarts", grown, _WHOSE)
    own = {
        "seconds": server("kvledger_source_scrape_seconds"),
        "failures": _increase(server("kvledger_source_failures_total")),
    }
    yield _lines("The exporter itself", own, "{{source}}")


def _rule_panels() -> Iterator[Panel]:
    find = _find('job=~"$job", instance=~"$instance"')
    yield _accounts(lambda labels="": find("kvledger:pool_tokens", labels), find("kvledger:available_tokens"))
    whole = f"sum without (account) ({find('kvledger:pool_tokens')})"
    for figure, title in (("used", "Utilisation"), ("internal", "Held and holding nothing")):
        low, high = (f"{find(f'kvledger:{figure}_{end}_tokens')} / {whole}" for end in ("low", "high"))
        yield Panel(title=f"{title}, of the pool", queries=_ends(low, high, _SERVER), unit="percentunit")
    low, high = (find(f"kvledger:live_{end}_tokens") for end in ("low", "high"))
    held = find("kvledger:held_tokens")
    tokens = (*_ends(low, high, f"{_SERVER} live"), Query(expr=held, legend=f"{_SERVER} held"))
    yield Panel(title="Tokens", queries=tokens, unit="short")
    hits = {"found in the prefix cache, at most": find("kvledger:hit_high_tokens")}
    yield _lines("Tokens of live requests from the prefix cache", hits, _SERVER)
    yield from _reservation(find("kvledger:reservation_tokens"), held, find("kvledger:admitted_requests"), _SERVER)
    load = {"run": find("kvledger:running_requests"), "wait": find("kvledger:waiting_requests")}
    yield _lines("Requests", load, _SERVER)


def _accounts(pool: Callable[..., str], available: str) -> Panel:
    """Return the pool as areas that sum to 1; of several pools the mean."""
    whole = f"sum without (account) ({pool()})"
    open_ = f"({available} - sum without (account) ({pool(_IS_IDLE)}))"
    by_account = f"avg by (account) ({pool(_IS_KNOWN)} / ignoring (account) group_left () {whole})"
    rest = f"avg(({pool(_IS_REST)} - ignoring (account) {open_}) / ignoring (account) {whole})"
    return Panel(
        title="The pool by account",
        queries=(
            Query(expr=by_account, legend="{{account}}"),
            Query(expr=f"avg({open_} / {whole})", legend=OPEN),
            Query(expr=rest, legend="unattributed"),
        ),
        unit="percentunit",
        look=Look.STACK,
        width=24,
        note="Shares of the pool, which sum to it; the mean of the pools chosen. What is free or cached, and not told "
        "apart, is taken out of what is unattributed.",
    )


def _ends(low: str, high: str, legend: str) -> tuple[Query, ...]:
    return Query(expr=low, legend=f"{legend} low"), Query(expr=high, legend=f"{legend} high")


def _reservation(reserved: str, held: str, admitted: str, whose: str) -> Iterator[Panel]:
    reserving = (
        Query(expr=reserved, legend=f"{whose} {{{{policy}}}}"),
        Query(expr=held, legend=f"{whose} block tables hold"),
    )
    yield Panel(title="The same requests under reservation", queries=reserving, unit="short")
    fitting = (Query(expr=admitted, legend=f"{whose} {{{{policy}}}}"),)
    yield Panel(title="Requests that would fit", queries=fitting, unit="short")


def _lines(title: str, queries: dict[str, str], whose: str) -> Panel:
    found = tuple(Query(expr=expr, legend=f"{whose} {name}") for name, expr in queries.items())
    return Panel(title=title, queries=found, unit="short")


def _increase(counter: str) -> str:
    return f"increase({counter}[$__rate_interval])"
