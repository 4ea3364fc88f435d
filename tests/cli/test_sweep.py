"""`kvledger sweep`: the same numbers as `replay`, once for every cell, whatever happens in between."""

import os
import signal
import subprocess
import time

import pyarrow.parquet as pq
import pytest

from kvledger.cli.sweep_settings import SweepSettings
from kvledger.sweep.results import columns_of

from .calling import call, command, environment

CHAT = "synthetic:chat,requests=40,rate=20"
GRID = f"""
[settings]
trace = "{CHAT}"
bytes-per-token = 100
max-model-len = 4096
policy = "max,paged"

[grid]
capacity-tokens = [9000, 40_000]
block-size = [16, 32]
"""


def in_this_process(jobs, run, *, workers):
    return ((index, run(job)) for index, job in enumerate(jobs))


@pytest.fixture
def _here(monkeypatch):
    """Run cells in this process, where a test is not about processes: starting one takes a second."""
    monkeypatch.setattr("kvledger.cli.sweeping.run_in_processes", in_this_process)


here = pytest.mark.usefixtures("_here")


@pytest.fixture
def grid(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(GRID)
    return path


def rows_of(path):
    return pq.read_table(path).to_pylist()


@here
def test_every_row_is_what_replay_finds(capsys, grid, tmp_path):
    assert call(capsys, "sweep", grid, "-o", tmp_path / "r.parquet", "-q").code == 0
    rows = rows_of(tmp_path / "r.parquet")
    assert [(row["capacity_tokens"], row["block_size"], row["policy"]) for row in rows] == [
        (tokens, block, policy) for tokens in (9000, 40_000) for block in (16, 32) for policy in ("max", "paged")
    ]
    flags = ("--bytes-per-token", 100, "--max-model-len", 4096, "--policy", "max,paged", "--json", "-q")
    found = call(capsys, "replay", CHAT, *flags, "--capacity-tokens", 9000, "--block-size", 32).json()
    for policy, row in zip(found["policies"], rows[2:4]):
        shared = {name for name, value in policy.items() if name in row and isinstance(value, int | float | str)}
        assert len(shared) >= 20
        assert {name: row[name] for name in shared} == {name: policy[name] for name in shared}
        assert row["queue_p99_seconds"] == policy["latency_seconds"]["queue"]["p99"]
        assert row["mean_used_ratio"] == policy["mean_ratio"]["used"]
        assert row["clock_c"] == found["settings"]["clock"]["c"]


def test_a_killed_sweep_goes_on_where_it_was_and_ends_the_same(capsys, grid, tmp_path, monkeypatch):
    done = tmp_path / "done.parquet"
    grid.write_text(GRID.replace("[16, 32]", "{from = 1, to = 20, step = 1}"))
    monkeypatch.setattr("kvledger.cli.sweeping.run_in_processes", in_this_process)  # the killed one has its own
    assert call(capsys, "sweep", grid, "-o", done, "-q").code == 0
    out, journal = tmp_path / "r.parquet", tmp_path / "r.parquet.journal"
    line = command("sweep", grid, "-o", out, "--workers", 1)
    with subprocess.Popen(line, env=environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
    finished = journal.read_bytes().count(b"\n") - 1
    assert not out.exists()
    found = call(capsys, "sweep", grid, "-o", out, "--json")
    assert found.json()["known_cells"] == finished >= 2
    assert f"{finished} of 40 cells known from before" in found.err
    assert not journal.exists()
    assert out.read_bytes() == done.read_bytes()


@here
def test_a_finished_sweep_is_not_run_again(capsys, grid, tmp_path):
    out = tmp_path / "r.parquet"
    first = call(capsys, "sweep", grid, "-o", out, "-q", "--json").json()
    written = out.stat()
    again = call(capsys, "sweep", grid, "-o", out, "-q", "--json").json()
    assert out.stat().st_mtime_ns == written.st_mtime_ns
    assert again["known_cells"] == 4
    assert {**again, "known_cells": 0} == first


@here
def test_a_changed_grid_is_recognised_and_taken_over_only_when_told(capsys, grid, tmp_path):
    out = tmp_path / "r.parquet"
    call(capsys, "sweep", grid, "-o", out, "-q")
    grid.write_text(GRID.replace("[16, 32]", "[16, 64]"))
    refused = call(capsys, "sweep", grid, "-o", out, "--json")
    assert refused.code == 2
    assert "2 of the 4 cells of this grid are among its 4" in refused.error()["message"]
    found = call(capsys, "sweep", grid, "-o", out, "--update", "-q", "--json")
    assert found.json()["known_cells"] == 2
    assert sorted({row["block_size"] for row in rows_of(out)}) == [16, 64]


@here
def test_a_changed_trace_is_recognised(capsys, trace, tmp_path):
    grid, out = tmp_path / "grid.toml", tmp_path / "r.parquet"
    grid.write_text(f'settings = {{trace="{trace.name}", bytes-per-token=1, capacity-tokens=900, policy="paged"}}')
    assert call(capsys, "sweep", grid, "-o", out, "-q").code == 0
    trace.write_text(trace.read_text() + "6,10,10\n")
    assert "inputs or the version has changed" in call(capsys, "sweep", grid, "-o", out).err
    assert call(capsys, "sweep", grid, "-o", out, "--force", "-q").code == 0
    (row,) = rows_of(out)
    assert (row["requests"], row["trace"]) == (4, "chat.csv")


@here
def test_what_fails_in_one_cell_is_told_and_stops_no_other(capsys, tmp_path):
    grid, out = tmp_path / "grid.toml", tmp_path / "r.parquet"
    grid.write_text(GRID.replace("[9000, 40_000]", "[9000, 20]") + '[[cells]]\nmodel = "llama-3-8b"\n')
    found = call(capsys, "sweep", grid, "-o", out, "-q", "--json")
    assert found.code == 0
    codes = [(row["block_size"], row["policy"], row["error_code"]) for row in rows_of(out)]
    assert codes == [
        (16, "max", None), (16, "paged", None), (32, "max", None), (32, "paged", None),
        (16, "max", None), (16, "paged", None),
        (32, "max", None), (32, "paged", "KVE005"),
        (16, None, "KVE001"),
    ]  # fmt: skip
    failures = found.json()["failures"]
    assert [failure["policy"] for failure in failures] == ["paged", None]
    assert "given twice" in failures[1]["message"]
    text = call(capsys, "sweep", grid, "-o", out, "-q").out
    assert "2 rows without a result" in text
    told = text[text.index("2 rows without a result") :]
    assert "- the pool of" in told
    assert "    capacity-tokens 20, block-size 32, paged\n" in told
    assert "given twice" in told


@here
def test_every_reason_of_failed_rows_is_told_with_rows_that_it_took(capsys, tmp_path):
    grid = tmp_path / "grid.toml"
    shared = f'trace = "{CHAT}", policy = "paged", memory = "1GiB", max-model-len = 4096'
    grid.write_text(
        f"settings = {{ {shared} }}\n"
        'grid = { model = ["opt-13b", "none", "nothing"], max-num-seqs = [1, 2, 3, 4, 5, 6] }\n'
    )
    text = call(capsys, "sweep", grid, "-q").out
    told = text[text.index("12 rows without a result") :]
    for name in ("none", "nothing"):
        assert f"- the catalogue has no model `{name}`" in told
        assert f"    model {name}, max-num-seqs 1\n" in told
        assert f"    and 3 more, all with model {name}\n" in told


@here
def test_where_no_cell_has_a_result_every_reason_is_told(capsys, grid):
    grid.write_text(GRID.replace(CHAT, "none.csv") + '[[cells]]\nmodel = "llama-3-8b"\n')
    found = call(capsys, "sweep", grid, "-q", "--json")
    assert found.code == 2
    reasons = found.error()["attributes"]["reasons"]
    assert len(reasons) == 2
    assert all(reason in found.error()["message"] for reason in reasons)


@here
def test_where_no_cell_has_a_result_the_reason_is_the_answer(capsys, grid, tmp_path):
    grid.write_text(GRID.replace(CHAT, "none.csv"))
    found = call(capsys, "sweep", grid, "-o", tmp_path / "r.parquet", "-q")
    assert found.code == 2
    assert "none of the 4 cells has a result: `none.csv` cannot be opened" in found.err
    assert not (tmp_path / "r.parquet").exists()


def test_a_foreign_file_is_not_overwritten_by_accident(capsys, grid, tmp_path):
    out = tmp_path / "r.parquet"
    out.write_text("mine")
    assert "not of a sweep" in call(capsys, "sweep", grid, "-o", out).err
    assert out.read_text() == "mine"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("block-size = [16, 32]", "block-size = [0]", "`block-size` cannot be `0`"),
        ("block-size = [16, 32]", "block-size = [16.5]", "`block-size` cannot be `16.5`"),
        ("block-size = [16, 32]", 'prefix-caching = ["maybe"]', "`prefix-caching` cannot be `maybe`"),
        ("block-size = [16, 32]", 'series = ["x"]', "`series`, which is no setting"),
        ("block-size = [16, 32]", 'block_size = ["x"]', "did you mean `block-size`?"),
        (CHAT, "-", "none can be standard input"),
    ],
)
def test_values_that_replay_would_refuse_are_refused_before_anything_runs(capsys, grid, old, new, says):
    grid.write_text(GRID.replace(old, new))
    found = call(capsys, "sweep", grid, "--dry-run")
    assert found.code == 2
    assert says in found.err


def test_a_dry_run_lists_the_cells(capsys, grid):
    found = call(capsys, "sweep", grid, "--dry-run")
    assert found.out.splitlines()[0] == "capacity-tokens=9000  block-size=16"
    assert len(found.out.splitlines()) == 4


def test_a_grid_that_is_not_there_is_said(capsys, tmp_path):
    assert "cannot be opened" in call(capsys, "sweep", tmp_path / "no.toml").err


def test_without_ray_the_extra_is_named(capsys, grid, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    found = call(capsys, "sweep", grid, "--ray", "auto", "-q")
    assert "pip install 'kvledger[ray]'" in found.err


def test_every_setting_of_replay_can_be_swept():
    settings = SweepSettings()
    assert {"trace", "model", "memory", "policy", "block-size", "clock", "rate", "full-sequence-must-fit"} <= set(
        settings.names
    )
    names = [column.name for column in columns_of(settings.columns)]
    assert len(names) == len(set(names))


def test_a_switch_is_set_by_true_and_false():
    settings = SweepSettings()
    assert settings.read("full-sequence-must-fit", False) is False
    assert settings.cells_of({})["full_sequence_must_fit"] is True


def test_workers_here_and_on_a_cluster_contradict(capsys, grid):
    assert "give one of them" in call(capsys, "sweep", grid, "--ray", "auto", "--workers", 2).err


@here
def test_compiling_is_announced_where_nothing_was_compiled_before(capsys, grid, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "compiling the replay kernels, once" in call(capsys, "sweep", grid).err
    assert "compiling" not in call(capsys, "sweep", grid, "-q").err


def test_an_interrupted_sweep_says_where_it_goes_on_and_leaves_no_process(grid, tmp_path):
    out, journal = tmp_path / "r.parquet", tmp_path / "r.parquet.journal"
    grid.write_text(GRID.replace("requests=40", "requests=20000").replace("[16, 32]", "[16, 32, 64, 128]"))
    line = command("sweep", grid, "-o", out, "--workers", 1)
    with subprocess.Popen(line, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        while not journal.exists() or journal.read_bytes().count(b"\n") < 2:
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().decode()  # to the end: a worker that went on would keep it open
    assert process.returncode == 130
    assert "`r.parquet.journal` keeps what is finished; the same command goes on from there" in said
    assert "Traceback" not in said
