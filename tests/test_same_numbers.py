"""Whatever shows an instant of a server, the numbers are the same: text, JSON, page, watch, export and rules."""

import json
import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kvledger.cli.exporting import make_collector
from kvledger.live.view import WatchModel
from kvledger.measure.figure import Span
from kvledger.report.measure_sheet import format_amount, format_span

from .cli.calling import call
from .measure.recorded import measure, rows
from .measure.test_pool_meter import TGI, pool_of, sglang
from .sources.engine_server import serving_paths
from .sources.servers import answering, reply
from .sources.test_endpoints import DATA, llamacpp

FIGURES = ("used", "internal", "free", "cached", "reserved")
OPTIONS = {
    "timeout": "5s", "max_size": "1MiB", "ca_file": None, "insecure": False, "token_file": None, "model": None,
    "kv_dtype": None, "kv_memory": None,
    "log": None, "kv_unified": None, "max_model_len": None, "scheduling": "unknown", "quiet": True,
}  # fmt: skip


@pytest.fixture(params=["plain", "shared", "preempted"])
def url(request):
    """Serve one busy sample for ever: everybody sees the same instant."""
    text = [row["text"] for row in rows("async") if row["phase"] == request.param][15]
    with answering(reply(text, headers="Content-Type: text/plain\r\n")) as address:
        yield address


@pytest.fixture(params=[None, 131_072], ids=["token slots", "bytes"])
def price(request):
    return request.param


def flags(price):
    return () if price is None else ("--bytes-per-token", price)


def exported(url, price, **options):
    """Return the figures and the accounts of one scrape of the exporter, in the unit of the sheet."""
    registry = CollectorRegistry()
    registry.register(make_collector([url], OPTIONS | {"bytes_per_token": price} | options))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = [sample for family in families for sample in family.samples]
    unit = "bytes" if any(s.name == "kvledger_pool_bytes" for s in samples) else "tokens"
    accounts = {s.labels["account"]: s.value for s in samples if s.name == f"kvledger_pool_{unit}"}
    ends = {
        end: {s.labels["figure"]: int(s.value) for s in samples if s.name == f"kvledger_figure_{end}_{unit}"}
        for end in ("low", "high")
    }
    load = {s.name: s.value for s in samples if s.name.endswith(("running_requests", "waiting_requests"))}
    return unit, accounts, ends, load


def test_everything_shows_the_same_numbers_of_the_same_instant(capsys, monkeypatch, url, price):
    monkeypatch.setenv("COLUMNS", "120")  # so that no row of the text is divided
    unit, accounts, ends, load = exported(url, price)
    measured = call(capsys, "measure", url, *flags(price), "-q", "--json").json()
    last = measured["sources"][0]["engines"][0]["last"]
    assert last["ledger"]["unit"] == unit
    assert last["ledger"][f"accounts_{unit}"] == accounts
    assert {one["name"]: one["low"] for one in last["ledger"]["figures"]} == ends["low"]
    assert {one["name"]: one["high"] for one in last["ledger"]["figures"] if one["high"] is not None} == ends["high"]
    assert [last["running"], last["waiting"]] == list(load.values())

    (line,) = call(capsys, "watch", url, *flags(price), "--for", "0s", "--json").out.splitlines()
    watched = json.loads(line)
    assert watched["ledger"] == last["ledger"]
    assert watched["tokens"] == last["tokens"]

    text = call(capsys, "measure", url, *flags(price), "-q").out
    spans = {name: Span(ends["low"][name], ends["high"][name]) for name in FIGURES}
    for name, span in spans.items():
        row = re.search(rf"^{name} .*$", text, re.MULTILINE)[0]
        assert f" {format_span(span, unit)} " in row, name
    assert f" {format_amount(int(accounts['unattributed']), unit)} " in text
    assert f"{last['running']} running, {last['waiting']} waiting" in text

    shares = {name: _share(ends, name, sum(accounts.values())) for name in ("held", "used", "internal")}
    (line,) = call(capsys, "watch", url, *flags(price), "--for", "0s", "--lines").out.splitlines()
    assert " ".join(f"{name} {share}" for name, share in shares.items()) in line


def _share(ends, name, capacity):
    low, high = (100 * ends[end][name] / capacity for end in ("low", "high"))
    return f"{low:.1f} %" if high - low < 0.05 else f"{low:.1f} - {high:.1f} %"


def test_the_screen_shows_what_the_reading_says():
    """The last of a phase, as `watch` would draw it on a terminal."""
    reading = [reading for _, reading in measure("async", phases={"plain"}, settled=False) if reading.running][-1]
    model = WatchModel()
    model.add("server", 0, reading)
    drawn = "\n".join(model.lines(width=100))
    for name in ("used", "internal", "held"):
        assert format_span(reading.sheet.figure(name).span, reading.sheet.unit) in drawn


def test_the_page_holds_the_numbers_of_the_json(capsys, url, price, tmp_path):
    measured = call(capsys, "measure", url, *flags(price), "-q", "--json").json()
    assert call(capsys, "measure", url, *flags(price), "-q", "--html", tmp_path / "p.html").code == 0
    page = (tmp_path / "p.html").read_text()
    (run,) = json.loads(re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)[1])["runs"]
    ledger, shown = (one["sources"][0]["engines"][0]["last"]["ledger"] for one in (measured, run["result"]))
    for name in (f"capacity_{ledger['unit']}", f"accounts_{ledger['unit']}"):
        assert shown[name] == ledger[name]
    ends = ({one["name"]: (one["low"], one["high"]) for one in which["figures"]} for which in (ledger, shown))
    assert next(ends) == next(ends)


POOLS = {
    "llama.cpp, strips of slots": (llamacpp(), {"log": str(DATA / "server-split.log")}),
    "llama.cpp, shared cells": (llamacpp(), {"kv_unified": True}),
    "SGLang": ({"/metrics": sglang(**pool_of(400, prompt_tokens_total=400))}, {"bytes_per_token": 10}),
    "SGLang, token slots": ({"/metrics": sglang(**pool_of(400, prompt_tokens_total=400))}, {}),
}


def spelled(options):
    """Return options as they are given on the command line."""
    flags = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        flags += [flag] if value is True else [flag, str(value)]
    return flags


@pytest.mark.parametrize("name", POOLS)
def test_everything_shows_the_same_numbers_of_a_pool_that_an_engine_tells_itself(capsys, monkeypatch, tmp_path, name):
    monkeypatch.setenv("COLUMNS", "120")
    paths, options = POOLS[name]
    flags = spelled(options)
    with serving_paths(paths) as (url, _):
        unit, accounts, ends, load = exported(url, options.get("bytes_per_token"), **options)
        measured = call(capsys, "measure", url, *flags, "-q", "--json", "--html", tmp_path / "p.html").json()
        (line,) = call(capsys, "watch", url, *flags, "--for", "0s", "--json").out.splitlines()
        (plain,) = call(capsys, "watch", url, *flags, "--for", "0s", "--lines").out.splitlines()
        text = call(capsys, "measure", url, *flags, "-q").out
    (pool,) = measured["sources"][0]["pools"]
    last = pool["last"]
    figures = {one["name"]: (one["low"], one["high"]) for one in last["ledger"]["figures"]}
    assert last["ledger"]["unit"] == unit
    assert last["ledger"][f"accounts_{unit}"] == accounts
    assert {one: ends["low"][one] for one in figures} == {one: low for one, (low, _) in figures.items()}
    assert [last["running"], last["waiting"]] == list(load.values())

    watched = json.loads(line)
    assert watched["ledger"] == last["ledger"]
    assert watched.get("slots") == last.get("slots")

    capacity = sum(accounts.values())
    for account in ("used", "cached", "reserved", "internal", "free"):
        low, high = figures.get(account, (int(accounts[account]),) * 2)
        row = re.search(rf"^{account} .*$", text, re.MULTILINE)[0]
        assert f" {format_span(Span(low, high), unit)} " in row
    assert f" {_share(ends, 'used', capacity)} " in f"{plain} "
    for slot in last.get("slots") or ():
        assert re.search(rf"\b{slot['tokens']:,}\b", text)

    page = (tmp_path / "p.html").read_text("utf-8")
    (run,) = json.loads(re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)[1])["runs"]
    (shown,) = run["result"]["sources"][0]["pools"]
    assert shown["last"]["ledger"][f"accounts_{unit}"] == accounts
    assert format_amount(int(accounts["used"]), unit).replace(" ", "\u202f") in page


def test_a_pool_that_tells_nothing_of_its_requests_is_the_same_everywhere(capsys):
    with serving_paths({"/metrics": TGI}) as (url, _):
        measured = call(capsys, "measure", url, "-q", "--json").json()
        (line,) = call(capsys, "watch", url, "--for", "0s", "--json").out.splitlines()
    (pool,) = measured["sources"][0]["pools"]
    assert json.loads(line)["ledger"] == pool["last"]["ledger"]
    assert json.loads(line)["problem"] == pool["last"]["problem"]
