"""The pages that are opened in a browser."""

from __future__ import annotations

from pathlib import Path

from kvledger.measure.meter import Meter
from kvledger.measure.summary import summarise
from kvledger.report.html import render_page, run_of
from kvledger.report.measure import MeasureReport, SourceReport
from kvledger.report.measure_json import measure_json
from tests.measure.recorded import rows, scrapes

from .results import PAGED, RATIO, finding, layout, log, policy, prove, replay, sharing, sweep
from .results_on_paper import cache, check, size, sizes, trace

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"' \u202eevil\u202c \x00\x1b[31m"
SPREADSHEET = "=1+1;@SUM(A1)"


def with_maps(**changes):
    """Return a replay whose first policy has maps, and one finding."""
    result = replay(findings={"told": [finding()], "unproved": []}, **changes)
    result["policies"][0]["layouts"] = [layout("fullest"), layout("most-waste", pieces=5)]
    return result


def without_maps():
    """Return a replay of policies whose pages have no numbers."""
    apart = {"mean_held_ratio": 0.5, "saturated_held_ratio": 0.9, "peak_held_ratio": 1.0, "token_bytes": 4096}
    two = [
        {"name": "full", "tokens": 1000, "refused": 7, **apart},
        {"name": "window", "tokens": 500, "refused": 0, **apart},
    ]
    return replay(policies=[policy("paged:radix", PAGED), policy("paged:pools", PAGED) | {"pools": two}])


def measured():
    """Return the measurement of a recorded server."""
    meter = Meter()
    for row, scrape in zip(rows("sync"), scrapes("sync"), strict=True):
        meter.take(scrape, seconds=row["seconds"])
    engines = tuple(summarise(readings, meter.spans(index)) for index, readings in meter.settle().items())
    return measure_json(
        MeasureReport(sources=(SourceReport(name="server", engines=engines, samples=143, missed=2, last_error="no"),))
    )


def hostile():
    """Return a replay in which everything that is text attacks the page."""
    result = with_maps(answer=HOSTILE, notes=[HOSTILE, "x" * 10**5])
    result["policies"][0]["policy"] = HOSTILE
    result["policies"][1]["policy"] = SPREADSHEET
    result["policies"][0]["meaning"] = HOSTILE
    result["policies"][1]["rejected"] = {HOSTILE: 2}
    result["pool"]["model"] = HOSTILE
    result["trace"]["source"] = HOSTILE
    result["trace"]["notes"] = [HOSTILE]
    result["trace"]["dropped"] = {HOSTILE: 1}
    result["settings"]["clock"]["name"] = HOSTILE
    row = result["mitigations"].pop("max")[0]
    result["mitigations"][HOSTILE] = [row | {"price": HOSTILE, "change": HOSTILE}]
    texts = dict.fromkeys(("code", "title", "subject", "sentence"), HOSTILE)
    result["findings"] = {"told": [finding(**texts)], "unproved": [HOSTILE]}
    return result


FIXED = {
    "schema",
    "accuracy",
    "account",
    "moment",
    "limit",
    "outcome",
    "eviction",
    "arrivals",
    "prompts",
    "outputs",
    "cell",
    "trade",
    "unit",
}
"""What is one of a few words, or only an identity."""


def attacked(value, key=""):
    """Return a result in which everything that is text attacks the page."""
    if isinstance(value, dict):
        return {name: item if name in FIXED else attacked(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [attacked(item, key) for item in value]
    return HOSTILE if isinstance(value, str) else value


def largest():
    """Return a replay of nine policies with as much as there ever is of each."""
    policies = [policy(f"policy {i}", RATIO if i % 2 else PAGED, points=2048) for i in range(9)]
    for one in policies:
        one["layouts"] = [layout(moment, pieces=2048) for moment in ("fullest", "most-waste", "most-holes")]
        for number, point in enumerate(one["timeline"]):
            shift = number % 97 / 1000 + number / 10**6
            point["ratio"] = RATIO | {"used": RATIO["used"] - shift, "free": RATIO["free"] + shift}
            point["running"] += shift
    return replay(policies=policies)


def write_pages(folder: Path) -> None:
    """Write every page into a folder."""
    pages = {
        "replay": [with_maps()],
        "measure": [measured()],
        "compared": [with_maps(), with_maps(settings=replay()["settings"] | {"max_model_len": 2048})],
        "unmapped": [without_maps()],
        "hostile": [hostile()],
        "largest": [largest()],
        "prove": [prove()],
        "sweep": [sweep()],
        "sharing": [sharing()],
        "log": [log()],
        "size": [size()],
        "sizes": [sizes()],
        "trace": [trace()],
        "cache": [cache()],
        "check": [check()],
    }
    plain = ("prove", "sweep", "sharing", "log", "size", "sizes", "trace", "cache", "check")
    pages |= {f"hostile-{name}": [attacked(pages[name][0])] for name in plain}
    for name, results in pages.items():
        runs = [
            run_of(result, name=HOSTILE if name.startswith("hostile") else f"run {i}.json")
            for i, result in enumerate(results)
        ]
        (folder / f"{name}.html").write_text(render_page(runs), "utf-8")
