import io
import json
import os
import threading
from pathlib import Path

import pytest

from kvledger.errors import SourceError, TraceError, UsageError
from kvledger.replay.workload import HashIds
from kvledger.sources.files import load_trace
from kvledger.traces.formats.own import write_trace

CSV = "arrival_seconds,prompt_tokens,output_tokens\n0,10,5\n1.5,20,6\n"
SESSION = {"block_size": 64, "hash_id_scope": "local", "requests": [{"t": 0, "in": 130, "out": 3, "hash_ids": [1, 2]}]}


def test_a_trace_is_read_from_its_path(tmp_path: Path) -> None:
    path = tmp_path / "any name at all.bin"
    path.write_text(CSV)
    assert len(load_trace(str(path))) == 2


def test_a_dash_is_standard_input() -> None:
    assert len(load_trace("-", stdin=io.BytesIO(CSV.encode()))) == 2


def test_parquet_is_read_from_a_pipe_that_cannot_seek() -> None:
    out = io.BytesIO()
    write_trace(load_trace("synthetic:chat,requests=20"), out)
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as end:
        thread = threading.Thread(target=lambda: (end.write(out.getvalue()), end.close()))
        thread.start()
        with os.fdopen(reading, "rb") as raw:
            assert len(load_trace("-", stdin=raw)) == 20
        thread.join()


def test_a_synthetic_description_is_drawn_with_the_seed() -> None:
    first, second = (load_trace("synthetic:chat,requests=9", seed=seed).workload for seed in (1, 2))
    assert (first.prompt_tokens != second.prompt_tokens).any()


def test_a_mapping_reaches_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("t,i,o\n1,2,3\n")
    assert load_trace(str(path), columns="arrival=t:s,prompt=i,output=o").workload.prompt_tokens.tolist() == [2]


@pytest.mark.parametrize("name", ["no such file", "x" * 5000, "a\0b"])
def test_a_file_that_cannot_be_opened_is_an_error_of_the_source(name: str) -> None:
    with pytest.raises(SourceError, match=r"cannot be opened|is not a file name"):
        load_trace(name)


def test_messages_do_not_show_the_folders_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.touch()
    for spec in (path, tmp_path / "missing.csv"):
        with pytest.raises(SourceError) as caught:
            load_trace(str(spec))
        assert str(tmp_path) not in str(caught.value)


def test_a_folder_with_one_trace_is_that_trace_whatever_else_lies_there(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no trace")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "requests.csv").write_text(CSV)
    assert len(load_trace(str(tmp_path))) == 2


def test_a_folder_with_two_traces_asks_which(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(CSV)
    with pytest.raises(TraceError, match=r"holds 2 traces: `a.csv` \(columns\), `b.csv`"):
        load_trace(str(tmp_path))


def test_a_folder_without_a_trace_says_so(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no trace")
    with pytest.raises(TraceError, match="none of the 1 files"):
        load_trace(str(tmp_path))


def test_a_mapping_for_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not to a folder"):
        load_trace(str(tmp_path), columns="prompt=a,output=b")


def test_session_files_of_a_folder_are_one_trace_with_ids_apart(tmp_path: Path) -> None:
    for name in ("trace_1.json", "trace_2.json"):
        (tmp_path / name).write_text(json.dumps(SESSION, indent=1))
    workload = load_trace(str(tmp_path), session_starts="every:10").workload
    assert workload.arrival_seconds.tolist() == [0, 10]
    assert workload.session is not None
    assert workload.session.tolist() == [0, 1]
    assert isinstance(workload.content, HashIds)
    assert len(set(workload.content.ids.tolist())) == 6  # two named blocks and the unnamed rest, for each session


@pytest.mark.parametrize(("rule", "starts"), [("zero", [0, 0, 0]), ("every:2.5", [0, 2.5, 5])])
def test_sessions_start_as_the_rule_says(tmp_path: Path, rule: str, starts: list[float]) -> None:
    path = tmp_path / "sessions.jsonl"
    path.write_text((json.dumps(SESSION) + "\n") * 3)
    trace = load_trace(str(path), session_starts=rule)
    assert trace.workload.arrival_seconds.tolist() == starts
    assert trace.accuracy.arrivals.value == "modelled"


def test_poisson_starts_depend_on_the_seed_alone(tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl"
    path.write_text((json.dumps(SESSION) + "\n") * 2000)
    one, again, two = (load_trace(str(path), seed=seed, session_starts="rate:2").workload for seed in (1, 1, 2))
    assert (one.arrival_seconds == again.arrival_seconds).all()
    assert (one.arrival_seconds != two.arrival_seconds).any()
    assert one.span_seconds == pytest.approx(1000, rel=0.1)


@pytest.mark.parametrize("rule", ["", "never", "rate", "rate:0", "every:-1", "rate:nan", "zero:1"])
def test_a_rule_for_session_starts_that_is_none_is_refused(tmp_path: Path, rule: str) -> None:
    with pytest.raises(UsageError, match="does not say when sessions start"):
        load_trace(str(tmp_path / "x"), session_starts=rule)


def test_sub_agents_start_when_their_parent_called_them(tmp_path: Path) -> None:
    inner = {"t": 0.5, "in": 64, "out": 1, "hash_ids": [9]}
    requests = [{"t": 0, "in": 64, "out": 1, "hash_ids": [1]}, {"t": 4, "type": "subagent", "requests": [inner]}]
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps({**SESSION, "requests": requests}))
    trace = load_trace(str(path), session_starts="zero")
    assert trace.workload.arrival_seconds.tolist() == [0, 4.5]
    assert trace.workload.session is not None
    assert trace.workload.session.tolist() == [0, 0]


def test_an_unpacked_servegen_folder_is_one_synthesised_trace(tmp_path: Path) -> None:
    (tmp_path / "chunk-0-trace.csv").write_text("0,0.5,1.5,Gamma,1,1\n600,0,0,,0,0\n1200,1.0,0.5,Gamma,1,1\n")
    laws = {"input_tokens": "{10: 0.25, 30: 0.75}", "output_tokens": "{5: 1.0}"}
    (tmp_path / "chunk-0-dataset.json").write_text(json.dumps({"0": laws}))
    (tmp_path / "chunk-1-trace.csv").write_text("0,0.5,1.5,Gamma,1,1\n")
    trace = load_trace(str(tmp_path), seed=3)
    arrivals = trace.workload.arrival_seconds
    assert len(trace) == pytest.approx(900, rel=0.15)
    assert not ((arrivals >= 600) & (arrivals < 1200)).any()
    assert set(trace.workload.prompt_tokens.tolist()) == {10, 30}
    assert float((trace.workload.prompt_tokens == 30).mean()) == pytest.approx(0.75, abs=0.06)
    assert "clients without both of their files are left out" in trace.notes
    assert (load_trace(str(tmp_path), seed=3).workload.arrival_seconds == arrivals).all()


def test_a_folder_with_more_files_than_a_trace_ever_has_is_refused(tmp_path: Path) -> None:
    for number in range(2001):
        (tmp_path / str(number)).touch()
    with pytest.raises(SourceError, match="has 2,001 files"):
        load_trace(str(tmp_path))
