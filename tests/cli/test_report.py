"""``kvledger report`` and ``--html``: from saved results and from the commands themselves."""

import json
import re

import pytest

from ..report.html.results import replay
from .calling import CHAT, SMALL, call


def test_a_saved_result_becomes_a_page(capsys, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(replay()))
    called = call(capsys, "report", tmp_path / "run.json", "-o", tmp_path / "run.html")
    assert called.code == 0
    assert "Wrote" in called.err
    assert (tmp_path / "run.html").read_text("utf-8").startswith('<!doctype html>\n<html lang="en">')


def test_without_a_file_the_page_is_the_output(capsys, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(replay()))
    assert call(capsys, "report", tmp_path / "run.json", "--language", "zh").out.startswith("<!doctype html>")


def test_a_replay_writes_the_page_that_its_json_makes(capsys, tmp_path):
    (tmp_path / "t.csv").write_text(CHAT)
    flags = [*SMALL, "--policy", "max,paged", "--max-model-len", "150", "--json", "-q"]
    one, other = tmp_path / "one.html", tmp_path / "other.html"
    called = call(capsys, "replay", tmp_path / "t.csv", *flags, "--html", one)
    assert called.code == 0
    (tmp_path / "t.csv.json").write_text(called.out)
    call(capsys, "report", tmp_path / "t.csv.json", "-o", other)
    assert one.read_text().replace("t.csv", "") == other.read_text().replace("t.csv.json", "").replace("t.csv", "")


def test_a_page_is_not_written_over_its_input(capsys, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(replay()))
    called = call(capsys, "report", tmp_path / "run.json", "-o", tmp_path / "run.json", "--force")
    assert called.code == 2
    assert "is the input itself" in called.err


def test_what_is_no_result_is_said_with_what_to_give(capsys, tmp_path):
    (tmp_path / "x.json").write_text("{}")
    called = call(capsys, "report", tmp_path / "x.json", "-o", tmp_path / "x.html")
    assert called.code == 2
    assert "has no `schema`" in called.err
    assert "wrote with --json" in called.err
    assert not (tmp_path / "x.html").exists()


def test_three_runs_are_too_many(capsys):
    assert "3 runs were given" in call(capsys, "report", "a", "b", "c").err


def test_html_and_output_cannot_be_one_file(capsys, tmp_path):
    (tmp_path / "t.csv").write_text(CHAT)
    target = tmp_path / "x.html"
    called = call(capsys, "replay", tmp_path / "t.csv", *SMALL, "--html", target, "-o", target)
    assert "are the same file" in called.err


def test_two_results_are_compared(capsys, tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(replay()))
    called = call(capsys, "report", tmp_path / "a.json", tmp_path / "b.json")
    assert "Before and after" in called.out


def test_a_recording_becomes_a_page(capsys, tmp_path):
    from kvledger.measure.recording import MAGIC, FrameWriter, RecordedSample
    from tests.measure.recorded import rows, scrapes

    writer = FrameWriter()
    pairs = list(zip(rows("sync"), scrapes("sync"), strict=True))[:40]
    frames = [writer.write(RecordedSample(seconds=row["seconds"], source=0, scrape=scrape)) for row, scrape in pairs]
    (tmp_path / "monday.kvr").write_bytes(MAGIC + b"".join(frames))
    called = call(capsys, "report", tmp_path / "monday.kvr", "--bytes-per-token", 1000)
    assert called.code == 0, called.err
    assert "40 samples over" in called.out
    assert "Mean share of the pool over the samples" in called.out


LOG = """\
INFO 11-30 10:00:01 [core.py:105] Initializing a V1 LLM engine (v0.32.0) with config: model='m/Llama', max_seq_len=32768
INFO 11-30 10:00:09 [kv_cache_utils.py:1500] GPU KV cache size: 140,976 tokens, Maximum concurrency for 32,768 tokens per request: 4.30x
INFO 11-30 10:05:09 [loggers.py:200] Engine 000: Avg prompt throughput: 812.0 tokens/s, Avg generation throughput: 410.1 tokens/s, Running: 38 reqs, Waiting: 0 reqs, GPU KV cache usage: 31.4%, Prefix cache hit rate: 12.0%
"""  # noqa: E501


def test_a_log_becomes_the_same_page_by_report_and_by_measure(capsys, tmp_path):
    (tmp_path / "vllm.log").write_text(LOG)
    called = call(capsys, "report", tmp_path / "vllm.log")
    assert called.code == 0, called.err
    assert "883.3" in called.out
    call(capsys, "measure", tmp_path / "vllm.log", "--html", tmp_path / "x.html")
    assert (tmp_path / "x.html").read_text("utf-8") == called.out
    (tmp_path / "log.json").write_text(call(capsys, "measure", tmp_path / "vllm.log", "--json").out)
    assert call(capsys, "report", tmp_path / "log.json").out.replace("log.json", "vllm.log") == called.out


def test_a_log_whose_lines_begin_with_a_bracket_is_no_json(capsys, tmp_path):
    (tmp_path / "x.log").write_text("[2026-01-01 10:00:00] something else\n" * 3)
    called = call(capsys, "report", tmp_path / "x.log", "-o", tmp_path / "x.html")
    assert "neither metrics nor the log of an engine" in called.err


def test_a_saved_text_of_metrics_becomes_a_page(capsys, tmp_path):
    from tests.measure.recorded import rows

    (tmp_path / "metrics.txt").write_text(rows("sync")[60]["text"])
    called = call(capsys, "report", tmp_path / "metrics.txt", "--bytes-per-token", 1000)
    assert called.code == 0, called.err
    assert "one sample from" in called.out


def test_a_server_is_no_result(capsys, tmp_path):
    called = call(capsys, "report", "http://localhost:1", "-o", tmp_path / "x.html")
    assert called.code == 2
    assert "kvledger measure URL --for 10m --html" in called.err


def test_what_has_no_page_says_what_has(capsys, tmp_path):
    (tmp_path / "x.json").write_text(call(capsys, "explain", "KV012", "--json").out)
    called = call(capsys, "report", tmp_path / "x.json", "-o", tmp_path / "x.html")
    assert "has the schema `kvledger/explain`, of which there is no page" in called.err
    assert "`prove`" in called.err


def test_lines_of_watch_are_told_to_be_recorded(capsys, tmp_path):
    (tmp_path / "w.jsonl").write_text('{"schema": "kvledger/watch"}\n{"schema": "kvledger/watch"}\n')
    called = call(capsys, "report", tmp_path / "w.jsonl", "-o", tmp_path / "x.html")
    assert called.code == 2
    assert "holds the readings of `watch`" in called.err
    assert "--record FILE" in called.err


def test_a_sweep_gives_the_same_page_at_once_and_from_its_file(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "kvledger.cli.sweeping.run_in_processes",
        lambda jobs, run, *, workers: ((i, run(j)) for i, j in enumerate(jobs)),
    )
    (tmp_path / "grid.toml").write_text(
        '[settings]\ntrace = "synthetic:chat,requests=20,rate=20"\nbytes-per-token = 100\nmax-model-len = 4096\n'
        'policy = "max,paged"\n[grid]\ncapacity-tokens = [9000, 40_000]\n'
    )
    page, file = tmp_path / "s.html", tmp_path / "s.parquet"
    called = call(capsys, "sweep", tmp_path / "grid.toml", "-o", file, "--html", page, "--json", "-q")
    assert called.code == 0, called.err
    (tmp_path / "s.json").write_text(called.out)
    texts = [
        re.sub(r"grid\.toml|s\.parquet|s\.json|\"known_cells\":\d", "", text)
        for text in (
            page.read_text("utf-8"),
            call(capsys, "report", tmp_path / "s.json").out,
            call(capsys, "report", file).out,
        )
    ]
    assert texts[0] == texts[1] == texts[2]
    assert "wastes" in texts[0]


def test_a_parquet_file_of_something_else_is_refused(capsys, tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1" + b"x" * 100)
    called = call(capsys, "report", tmp_path / "x.parquet", "-o", tmp_path / "x.html")
    assert called.code == 2
    assert "is not the result of a sweep" in called.err


def test_standard_input_holds_one_run(capsys):
    assert "one run, not two" in call(capsys, "report", "-", "-").err


@pytest.mark.parametrize(
    "options",
    [
        ("--policy", "paged", "--prefix-caching", "on"),
        ("--policy", "paged", "--samples", 2),
        ("--policy", "paged", "--preemption", "swap"),
        ("--policy", "all", "--layers", 4, "--findings", "off"),
        ("--policy", "max,paged", "--mitigations", "max", "--try", "block-size=32", "--findings", "all"),
    ],
)
def test_every_kind_of_replay_makes_a_page(capsys, tmp_path, options):
    flags = ["--bytes-per-token", 4096, "--capacity-tokens", 6000, "--max-model-len", 512, "-q"]
    trace = "synthetic:fixed,prompt=40,output=60,requests=120,rate=inf"
    called = call(capsys, "replay", trace, *flags, *options, "--html", tmp_path / "x.html")
    assert called.code == 0, called.err
    assert "Where every byte goes" in (tmp_path / "x.html").read_text("utf-8")
