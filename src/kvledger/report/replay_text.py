"""A replay as text: the answer in words, the balance sheet of each policy, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvledger.ledger import Account
from kvledger.replay.fit import ClockFit
from kvledger.replay.mitigation import Mitigation
from kvledger.replay.outcome import Outcome
from kvledger.report.chips import account_chip
from kvledger.report.findings import findings_sections
from kvledger.report.replay import ReplayReport
from kvledger.report.replay_answer import answer
from kvledger.report.replay_samples import moving, samples_sections
from kvledger.report.tables import heading, new_table, percent, signed_points
from kvledger.report.what_if import what_if_sections
from kvledger.units import counted, format_bytes

__all__ = ["replay_text"]

_ALWAYS = (Account.USED, Account.RESERVED, Account.INTERNAL, Account.EXTERNAL, Account.FREE)
_WITH_CACHE = (Account.USED, Account.CACHED, *_ALWAYS[1:])
_MOVED = (Account.RESERVED, Account.INTERNAL, Account.EXTERNAL, Account.USED)
_WINDOWS = 6


def replay_text(report: ReplayReport) -> RenderableType:
    """Return the whole report, ready to print with rich."""
    return Group(*_sections(report))


def _sections(report: ReplayReport) -> Iterator[RenderableType]:
    yield _question(report)
    yield Text()
    yield Text(answer(report), style="bold")
    yield heading("Where every byte goes", _when(report.outcomes))
    yield _balance(report.outcomes)
    yield _legend(report.outcomes)
    yield heading("What happened to the requests")
    yield _requests(report.outcomes)
    yield from _prefix(report.outcomes)
    yield from _pools(report.outcomes)
    yield from samples_sections(report.outcomes)
    yield heading("The categories of the PagedAttention paper (Figure 2)", "share of the pool")
    yield _paper(report.outcomes)
    yield heading("Why: three factors", "each wastes on top of the others; their product is the share in use")
    yield _factors(report.outcomes)
    yield heading("Over uptime", "tokens in use / external fragmentation, share of the pool")
    yield _uptime(report.outcomes)
    for name, rows in report.mitigations.items():
        yield heading(f"What the usual mitigations do to `{name}`", "share of the pool, change in points")
        yield _mitigations(report.outcome(name), rows)
    if report.what_ifs:
        known = report.trace.workload.content is not None
        yield from what_if_sections(report.outcome(report.tried), report.what_ifs, content_known=known)
    yield from findings_sections(report.findings)
    yield heading("How these numbers are known")
    yield _provenance(report)


def _question(report: ReplayReport) -> Text:
    workload, pool = report.trace.workload, report.pool
    size = (
        format_bytes(pool.memory_bytes)
        if pool.memory_bytes is not None
        else counted(pool.capacity_tokens, "token")
        if pool.capacity_tokens is not None
        else counted(pool.num_blocks or 0, "block")
        + (f" of {counted(pool.block_size, 'token')}" if pool.block_size else "")
    )
    lines = [
        f"{counted(len(workload), 'request')} from {report.source} ({report.trace.format.sentence})",
        f"{size} of KV memory; {report.model}: {pool.bytes_per_token:,} bytes per token",
        f"max_model_len {report.settings.max_model_len:,} ({report.max_model_len_origin}), "
        f"max_num_seqs {report.settings.max_num_seqs:,}, "
        f"max_num_batched_tokens {report.settings.max_num_batched_tokens:,}",
    ]
    return Text("\n".join(lines))


def _running(outcome: Outcome) -> float:
    return outcome.saturated_running if outcome.held_up else outcome.mean_running


def _when(outcomes: Sequence[Outcome]) -> str:
    waited = [o.held_up for o in outcomes if o.busy_seconds]
    if waited and all(waited):
        return "mean share of the pool while a request waits"
    if not any(waited):
        rarely = "hardly any" if any(o.saturated_seconds for o in outcomes) else "none"
        return f"mean share of the pool while requests run; {rarely} ever waited"
    return "mean share of the pool while a request waits (* hardly any ever waited: while requests run)"


def _name(outcome: Outcome, outcomes: Sequence[Outcome]) -> str:
    mixed = any(o.held_up for o in outcomes) and not outcome.held_up and outcome.busy_seconds
    return outcome.policy + ("*" if mixed else "")


def _if_run(outcome: Outcome, text: str) -> str:
    """Say nothing of a mean over no time: a policy that rejected every request has none."""
    return text if outcome.busy_seconds else "-"


def _balance(outcomes: Sequence[Outcome]) -> Table:
    shown = _shown(outcomes)
    table = new_table("policy", *map(account_chip, shown), "running", "pool")
    for o in outcomes:
        ratios = (_if_run(o, percent(o.headline_ratio[account])) for account in shown)
        running = _if_run(o, f"{_running(o):.1f}")
        table.add_row(_name(o, outcomes), *ratios, running, format_bytes(o.capacity_bytes))
    return table


def _shown(outcomes: Sequence[Outcome]) -> tuple[Account, ...]:
    return _WITH_CACHE if any(o.prefix for o in outcomes) else _ALWAYS


def _legend(outcomes: Sequence[Outcome]) -> Text:
    rows = [
        Text.assemble("  ", account_chip(account), " " * (10 - len(account)), (account.meaning, "dim"))
        for account in _shown(outcomes)
    ]
    return Text("\n").join(rows)


def _requests(outcomes: Sequence[Outcome]) -> Table:
    table = new_table("policy", "finished", "rejected", "cut", "refused while free", "preempted", "queue", "end to end")
    for o in outcomes:
        table.add_row(
            o.policy,
            f"{o.finished:,}",
            f"{sum(o.rejected.values()):,}",
            f"{o.truncated:,}",
            f"{o.refused_while_free:,}",
            f"{o.preemptions:,}",
            _seconds(o.queue.mean if o.queue else None),
            _seconds(o.end_to_end.mean if o.end_to_end else None),
        )
    return table


def _prefix(outcomes: Sequence[Outcome]) -> Iterator[RenderableType]:
    known = [(o, o.prefix) for o in outcomes if o.prefix]
    if not known:
        return
    yield heading(
        "What the prefix cache gave",
        "tokens found when first admitted, of those asked for; found again after preemption",
    )
    table = new_table("policy", "found", "asked for", "share", "found again", "saved by sharing")
    for o, hits in known:
        table.add_row(
            o.policy,
            f"{hits.hit_tokens:,}",
            f"{hits.queried_tokens:,}",
            percent(hits.hit_ratio),
            f"{hits.again_tokens:,}",
            percent(o.shared_saving_ratio),
        )
    yield table


def _pools(outcomes: Sequence[Outcome]) -> Iterator[RenderableType]:
    known = [(o, use) for o in outcomes for use in o.pools]
    if not known:
        return
    yield heading(
        "How the two pools fill",
        "tokens held of the pool's own; steps whose head request was refused because this pool had too little",
    )
    table = new_table("policy", "pool", "tokens", "bytes a token", "held", "while waiting", "at most", "refused")
    for o, use in known:
        table.add_row(
            o.policy,
            use.name,
            f"{use.tokens:,}",
            f"{use.token_bytes:,}",
            percent(use.mean_held_ratio),
            percent(use.saturated_held_ratio),
            percent(use.peak_held_ratio),
            f"{use.refused:,}",
        )
    yield table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f} s" if value < 100 else f"{value:,.0f} s"


def _paper(outcomes: Sequence[Outcome]) -> Table:
    kept = any(o.paper_ratio.kept_for_reuse for o in outcomes)
    columns = ("token states", "reservation", "internal frag.", "external & others")
    table = new_table("policy", *columns, *(("kept for reuse",) if kept else ()))
    for o in outcomes:
        view = o.paper_ratio
        table.add_row(
            _name(o, outcomes),
            *(
                _if_run(o, percent(share))
                for share in (
                    view.token_states,
                    view.reservation,
                    view.internal_fragmentation,
                    view.external_and_others,
                )
            ),
            *((_if_run(o, percent(view.kept_for_reuse)),) if kept else ()),
        )
    return table


def _factors(outcomes: Sequence[Outcome]) -> Table:
    table = new_table("policy", "length ratio", "x block efficiency", "x usable share", "= product", "measured use")
    for o in outcomes:
        f = o.factors
        table.add_row(
            _name(o, outcomes),
            *(_if_run(o, f"{v:.3f}") for v in (f.length_ratio, f.block_efficiency, f.usable_share)),
            *(_if_run(o, percent(share)) for share in (f.product, o.utilisation)),
        )
    return table


def _uptime(outcomes: Sequence[Outcome]) -> Table:
    columns = [f"{i + 1}/{_WINDOWS}" for i in range(_WINDOWS)]
    table = new_table("policy", *columns, "each part")
    for o in outcomes:
        cells = ["-" if w is None else f"{100 * w[0]:.0f}/{100 * w[1]:.1f}" for w in _windows(o)]
        table.add_row(o.policy, *cells, _if_run(o, _span(o.makespan_seconds / _WINDOWS)))
    return table


def _windows(outcome: Outcome) -> Iterable[tuple[float, float] | None]:
    """Mean use and external fragmentation over equal parts of the makespan, idle time left out; None: all idle."""
    whole = outcome.makespan_seconds or 1.0
    for part in range(_WINDOWS):
        points = [p for p in outcome.timeline if part == min(_WINDOWS - 1, int(p.start_seconds / whole * _WINDOWS))]
        seconds = sum(p.seconds for p in points)
        if not seconds:
            yield None
            continue
        yield (
            sum(p.ratio[Account.USED] * p.seconds for p in points) / seconds,
            sum(p.ratio[Account.EXTERNAL] * p.seconds for p in points) / seconds,
        )


def _span(seconds: float) -> str:
    return (
        f"{seconds / 86400:,.1f} days"
        if seconds >= 172_800
        else f"{seconds / 3600:.1f} h"
        if seconds >= 5400
        else f"{seconds / 60:.1f} min"
        if seconds >= 90
        else f"{seconds:.1f} s"
    )


def _mitigations(before: Outcome, rows: Sequence[Mitigation]) -> Table:
    table = new_table("change", *map(account_chip, _MOVED), "running", price=True)
    table.add_row(
        "(as it is)",
        *(percent(before.headline_ratio[account]) for account in _MOVED),
        f"{_running(before):.1f}",
        "",
    )
    for row in rows:
        after = row.outcome
        changes = (signed_points(after.headline_ratio[account] - before.headline_ratio[account]) for account in _MOVED)
        table.add_row(row.change, *changes, f"{_running(after):.1f}", row.price)
    return table


def _goodness(fit: ClockFit) -> Iterator[str]:
    """Say how well a fitted clock meets what was observed."""
    rest = (
        f", and by {fit.error_outside_seconds:.2f} s over the {fit.moments_outside:,} after it, which it has not seen"
        if fit.moments_outside
        else "; nothing was left to try it on"
    )
    yield (
        f"the clock was fitted under `{fit.policy}` in {counted(fit.tries, 'try', 'tries')}; first-token and end "
        "times are off by "
        f"{fit.error_inside_seconds:.2f} s on average over the {counted(fit.moments_inside, 'moment')} it was "
        f"fitted to{rest}"
    )
    if not math.isnan(fit.latency_error_ratio):
        yield (
            f"over the whole run the mean time from arrival to end is off by {100 * fit.latency_error_ratio:+.1f} %, "
            f"the makespan by {100 * fit.makespan_error_ratio:+.1f} %"
        )


def _provenance(report: ReplayReport) -> Text:
    clock = report.settings.clock
    if clock.name == "steps":
        time = "every step lasts one second, so seconds are steps"
    else:
        time = (
            f"a step lasts {clock.base:g} s + {clock.a:.3g} a prefill token + {clock.b:.3g} a decode + {clock.c:.3g} a "
            f"stored token read{moving(report.outcomes, clock)} ({clock.name}; {clock.accuracy})"
        )
    known = report.trace.accuracy
    lines = [
        f"lengths: {known.prompts}; arrivals: {known.arrivals}; time: {time}",
        *(_goodness(report.fit) if report.fit else ()),
        "bytes and counts: derived, step by step, and checked to sum to the pool",
        *report.trace.notes,
        *(f"dropped {count:,}: {reason}" for reason, count in report.trace.dropped.items()),
        *(f"adjusted {count:,}: {what}" for what, count in report.trace.adjusted.items()),
        *report.notes,
    ]
    for o in report.outcomes:
        lines += [f"`{o.policy}` rejected {count:,}: {reason}" for reason, count in o.rejected.items()]
    return Text("\n".join(f"- {line}" for line in lines))
