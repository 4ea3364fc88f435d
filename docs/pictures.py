"""Draw the pictures of the documentation from replays: ``python docs/pictures.py`` writes ``docs/pictures/*.svg``.

A picture is for light and for dark pages alike and has no words but the names of accounts and policies. Hatched is what
nobody can use. The same replay gives the same file; a test draws them again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from kvledger.ledger import Account
from kvledger.model.gpus import find_gpu
from kvledger.pool import parse_policy
from kvledger.replay import Pool, Settings, Workload, replay
from kvledger.replay.clock import roofline_clock
from kvledger.replay.moments import take_snapshots
from kvledger.replay.snapshot import Moment, Snapshot
from kvledger.report.palette import PALETTE
from kvledger.sources.files import load_trace
from kvledger.units import GIB, MIB

FOLDER = Path(__file__).parent / "pictures"
DEMO_POLICIES = ("max", "pow2", "exact", "grow@doubling", "static-batch", "paged", "upfront", "no-evict", "vmm")
MAPS = {
    "reservation": ("max", Moment.FULLEST),
    "internal": ("grow@doubling", Moment.FULLEST),
    "external": ("exact", Moment.MOST_HOLES),
    "blocks": ("paged", Moment.FULLEST),
}
"""By the name of the picture: the policy and the moment."""
_TOKEN_BYTES = 131_072
_A100 = find_gpu("a100-80gb")
_CLOCK = roofline_clock(
    name="a100-80gb:8b",
    parameters=8e9,
    bandwidth_bytes_per_second=_A100.bandwidth_bytes_per_second,
    flops_per_second=_A100.bf16_flops,
    bytes_per_token=_TOKEN_BYTES,
)
_SETTINGS = Settings(max_model_len=4096, clock=_CLOCK)
_SHOWN = (Account.USED, Account.RESERVED, Account.INTERNAL, Account.EXTERNAL, Account.FREE)
_NEVER = "never"
_WIDTH, _MARGIN, _STEP = 720, 12, 30


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the pool in one colour; ``kind`` is an account, or what of `reserved` will never be filled."""

    start: int
    end: int
    kind: str


def draw_all() -> dict[str, str]:
    """Return every picture by its file name."""
    return {"demo.svg": draw_demo()} | {f"{name}.svg": draw_map(*what) for name, what in MAPS.items()}


def draw_demo() -> str:
    """Draw the accounts of `kvledger demo`, a bar for each policy."""
    workload = load_trace("synthetic:chat,requests=10000,rate=inf").workload
    pool = Pool(bytes_per_token=_TOKEN_BYTES, memory_bytes=50 * GIB, tensors_per_token=64)
    rows: list[str] = []
    for at, name in enumerate(DEMO_POLICIES):
        outcome = replay(workload, parse_policy(name), pool=pool, settings=_SETTINGS)
        rows += _bar(name, outcome.saturated_ratio, y=_MARGIN + _STEP * at)
    return _picture(rows, kinds=list(map(str, _SHOWN)), height=_MARGIN + _STEP * len(DEMO_POLICIES))


def _bar(name: str, ratios: Mapping[Account, float], *, y: int) -> Iterator[str]:
    x = 122.0
    yield f'<text x="{x - 10:.0f}" y="{y + 16}" text-anchor="end">{escape(name)}</text>'
    for account in _SHOWN:
        width = ratios[account] * (_WIDTH - _MARGIN - 122)
        if width >= 0.05:
            yield f'<rect class="{account}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="22"/>'
        if width >= 52:
            yield f'<text class="on {account}-ink" x="{x + 6:.1f}" y="{y + 16}">{100 * ratios[account]:.1f} %</text>'
        x += width


def draw_map(name: str, moment: Moment) -> str:
    """Draw what lies where in a pool of 4 GiB, line by line, at a moment of the replay under a policy."""
    workload = load_trace("synthetic:chat,requests=400,rate=inf").workload
    pool, policy = Pool(bytes_per_token=_TOKEN_BYTES, memory_bytes=4 * GIB), parse_policy(name)
    outcome = replay(workload, policy, pool=pool, settings=_SETTINGS)
    shots = take_snapshots(workload, policy, pool=pool, settings=_SETTINGS, outcome=outcome)
    (shot,) = (shot for shot in shots if shot.moment is moment)
    rows, line_bytes = [], 512 * MIB
    parts = list(parts_of(shot, workload, pool_bytes=4 * GIB))
    for line in range(8):
        for part in parts:
            rows += _piece(part, line * line_bytes, (line + 1) * line_bytes, y=_MARGIN + _STEP * line)
    height = _MARGIN + _STEP * 8
    rows.append(f'<text x="{_MARGIN}" y="{height + 14}">{escape(_caption(name, shot, parts))}</text>')
    shares = {str(account): size / (4 * GIB) for account, size in shot.ledger.accounts().items() if size}
    shares[_NEVER] = sum(part.end - part.start for part in parts if part.kind == _NEVER) / (4 * GIB)
    kinds = [kind for kind in (Account.USED, Account.RESERVED, _NEVER, *_SHOWN[2:]) if _is_there(kind, parts, shares)]
    return _picture(rows, kinds=kinds, height=height + 26, shares=shares)


def parts_of(shot: Snapshot, workload: Workload, *, pool_bytes: int) -> Iterator[Part]:
    """Divide the pool into stretches: of each request what is used, reserved and internal, and the holes between."""
    at, pieces = 0, shot.pieces
    assert pieces is not None
    hole = Account.EXTERNAL if shot.ledger.accounts()[Account.EXTERNAL] else Account.FREE
    for i in range(len(pieces)):
        start = int(pieces.start_bytes[i])
        if start > at:
            yield Part(at, start, hole)
        request, used = int(pieces.request[i]), int(pieces.used_bytes[i])
        tokens = int(workload.prompt_tokens[request]) + int(workload.output_tokens[request])
        at = start + int(pieces.size_bytes[i])
        reserved = start + used + int(pieces.reserved_bytes[i])
        filled = min(reserved, max(start + used, start + tokens * _TOKEN_BYTES))
        yield Part(start, start + used, Account.USED)
        yield Part(start + used, filled, Account.RESERVED)
        yield Part(filled, reserved, _NEVER)
        yield Part(reserved, at, Account.INTERNAL)
    if at < pool_bytes:
        yield Part(at, pool_bytes, hole)


def _piece(part: Part, start: int, end: int, *, y: int) -> Iterator[str]:
    """Draw what of a part lies on the line from ``start`` to ``end``; each request begins with a thin gap."""
    low, high = max(part.start, start), min(part.end, end)
    if low >= high:
        return
    scale = (_WIDTH - 2 * _MARGIN) / (end - start)
    x, width = _MARGIN + (low - start) * scale, (high - low) * scale
    gap = 1.5 if part.kind == Account.USED and low == part.start else 0
    box = f'x="{x + gap:.1f}" y="{y}" width="{max(0.3, width - gap):.1f}" height="26"'
    yield f'<rect class="{Account.RESERVED if part.kind == _NEVER else part.kind}" {box}/>'
    if part.kind == _NEVER:
        yield f'<rect fill="url(#hatch)" {box}/>'


def _is_there(kind: str, parts: list[Part], shares: Mapping[str, float]) -> bool:
    drawn = any(part.kind == kind and part.end > part.start for part in parts)
    return drawn or (kind != _NEVER and kind in shares)


def _caption(name: str, shot: Snapshot, parts: list[Part]) -> str:
    holes = [part.end - part.start for part in parts if part.kind == Account.EXTERNAL]
    text = f"{name}: {shot.running} running, {shot.waiting} waiting"
    if not holes:
        return text
    largest = f"{max(holes) / MIB:,.0f} MiB the largest"
    return (
        f"{text}; {sum(holes) / MIB:,.0f} MiB in holes, {largest}; the next asks for {shot.asked_bytes / MIB:,.0f} MiB"
    )


def _picture(rows: list[str], *, kinds: list[str], height: int, shares: Mapping[str, float] | None = None) -> str:
    legend, x = [], _MARGIN
    for kind in kinds:
        share = "" if shares is None else f" {100 * shares.get(kind, 0):.1f} %"
        text = f"(reserved_never_used{share})" if kind == _NEVER else f"{kind}{share}"
        box = f'x="{x}" y="{height + 6}" width="12" height="12"'
        legend.append(f'<rect class="{Account.RESERVED if kind == _NEVER else kind}" {box}/>')
        if kind == _NEVER:
            legend.append(f'<rect fill="url(#hatch)" {box}/>')
        legend.append(f'<text x="{x + 18}" y="{height + 17}">{text}</text>')
        x += 34 + 8 * len(text)
    size = f'width="{_WIDTH}" height="{height + 30}" viewBox="0 0 {_WIDTH} {height + 30}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    ground = f'<rect class="ground" width="{_WIDTH}" height="{height + 30}" rx="6"/>'
    return "\n".join([head, _style(), ground, *rows, *legend, "</svg>", ""])


def _style() -> str:
    solid = [account for account in _SHOWN if account is not Account.EXTERNAL]
    light = "".join(f".{account}{{fill:{PALETTE[account].light}}}" for account in solid)
    dark = "".join(f".{account}{{fill:{PALETTE[account].dark}}}" for account in solid)
    hole = PALETTE[Account.EXTERNAL]
    ink = ".on{fill:#fff}.reserved-ink,.free-ink{fill:#1b1d21}"
    ink_dark = ".on{fill:#101214}.internal-ink{fill:#101214}.free-ink{fill:#e6e8eb}"
    return f"""\
<style>
text{{font:13px system-ui,sans-serif;fill:#1b1d21}}.ground{{fill:#fff}}
.line{{stroke:#fff;stroke-width:3}}.hole{{stroke:{hole.light};stroke-width:2}}.external{{fill:url(#holes)}}
{light}{ink}
@media (prefers-color-scheme:dark){{text{{fill:#e6e8eb}}.ground{{fill:#131416}}.line{{stroke:#131416}}
.hole{{stroke:{hole.dark}}}{dark}{ink_dark}}}
</style>
<defs>
<pattern id="hatch" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">\
<path class="line" d="M0 4H8"/></pattern>
<pattern id="holes" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">\
<rect class="free" width="6" height="6"/><path class="hole" d="M0 3H6"/></pattern>
</defs>"""


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in draw_all().items():
        (FOLDER / name).write_text(text, "utf-8")
