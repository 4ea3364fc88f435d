"""``kvledger report`` and ``--html``: from saved results and from the commands themselves."""

import json

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
    assert "kvledger replay --json" in called.err
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
