"""An option that cannot act on what was given is named, in every command that takes sources."""

import pytest

from tests.cli.calling import call
from tests.cli.serving import serving
from tests.measure.recorded import DATA, rows
from tests.sources.engine_server import serving_paths
from tests.sources.test_endpoints import llamacpp

LOG = DATA.parents[2] / "tests/data/vllm-0.32.0/one-layer-cpu.log"
WRITES = "writes a file and asks no server"
FILE = "a file is read to its end, whatever time it covers"
WINDOW = "they are for `prometheus:URL`, and a file is read as a whole"


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "saved.txt"
    path.write_text(rows("sync")[9]["text"])
    return path


def hints(called):
    return [line.removeprefix("hint: ") for line in called.err.splitlines() if "not used" in line]


@pytest.mark.parametrize("command", [("measure",), ("check", "--max-held", "99%"), ("watch",)], ids=lambda one: one[0])
def test_a_file_has_no_pace_no_window_and_no_server(capsys, saved, command):
    flags = ("--every", "2s", "--for", "1m", "--since", "3h", "--selector", "{}", "--timeout", "4s", "--insecure")
    called = call(capsys, *command, saved, *flags)
    assert called.code == 0
    assert hints(called) == [
        f"--for, --every are not used: {FILE}",
        f"--since, --selector are not used: {WINDOW}",
        "--timeout, --insecure are not used: nothing is asked of a server",
    ]


@pytest.mark.parametrize("command", [("measure",), ("check", "--max-held", "99%"), ("watch",)], ids=lambda one: one[0])
def test_what_has_its_default_is_not_named(capsys, saved, command):
    assert hints(call(capsys, *command, saved)) == []


def test_a_running_server_has_no_window_and_without_tls_no_certificates(capsys):
    with serving("plain") as url:
        called = call(capsys, "measure", url, "--until", "1h", "--insecure", "--every", "1s")
    assert hints(called) == [
        "--until is not used: a running server tells of now; they are for `prometheus:URL`",
        "--insecure is not used: no source is https://",
    ]


def test_options_of_another_engine_are_noted(capsys, saved):
    notes = call(capsys, "measure", saved, "--no-kv-unified", "--scheduling", "ahead", "--json").json()["notes"]
    assert "--no-kv-unified is not used: it is of llama.cpp, and none was measured" in notes
    assert not any("--scheduling" in note for note in notes)
    with serving_paths(llamacpp()) as (url, _):
        notes = call(capsys, "measure", url, "--no-kv-unified", "--scheduling", "ahead", "--json").json()["notes"]
    assert "--scheduling is not used: it is of vLLM, and none was measured" in notes
    assert not any("unified is not used" in note for note in notes)


def test_a_log_is_read_without_what_a_server_would_need(capsys):
    called = call(capsys, "measure", LOG, "--engine", "3", "--model", "gpt2", "--max-size", "1MiB")
    assert hints(called) == [
        "--max-size is not used: nothing is asked of a server",
        "--model, --engine are not used: a log is read as it was printed; "
        "`kvledger size MODEL --log FILE` checks its figures against the model",
    ]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--rules", "vllm", "--port", "7"), [f"--port is not used: --rules {WRITES}"]),
        (("--rules", "vllm", "--max-model-len", "7", "--prefix", "vllm_"), []),
        (("--rules", "sglang", "--assume-one-table"), [f"--assume-one-table is not used: --rules {WRITES}"]),
        (("--dashboard", "rules", "--model", "x"), [f"--model is not used: --dashboard {WRITES}"]),
        (("--scrape-config", "--host", "a", "--port", "7"), []),
    ],
)  # fmt: skip
def test_a_file_for_prometheus_takes_only_what_it_holds(capsys, flags, told):
    called = call(capsys, "export", *flags)
    assert called.code == 0
    assert hints(called) == told


def test_a_stream_of_objects_has_no_view(capsys, saved):
    assert hints(call(capsys, "watch", saved, "--json", "--ascii")) == [
        "--ascii is not used: --json prints one object a line"
    ]


def test_a_page_of_a_saved_result_prices_nothing(capsys, saved, tmp_path):
    result, page = tmp_path / "r.json", tmp_path / "r.html"
    result.write_text(call(capsys, "measure", saved, "--json").out)
    called = call(capsys, "report", result, "--model", "gpt2", "-o", page)
    assert hints(called) == ["--model is not used: `r.json` is a result, shown as it is"]
    assert hints(call(capsys, "report", saved, "--bytes-per-token", "9", "-o", page, "--force")) == []


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--kv-memory", "20GiB", "--concurrency", "4"], "--concurrency is not used: it is the number of requests of"),
        (["--kv-memory", "20GiB", "--fit", "concurrency", "--concurrency", "4"], "it is what is solved for"),
    ],
)
def test_a_size_names_what_changes_nothing(capsys, flags, told):
    called = call(capsys, "size", "llama-3.1-8b", *flags)
    assert called.code == 0
    assert [line for line in hints(called) if told in line] == hints(called) != []


@pytest.mark.parametrize(
    "flags", [["--fit", "memory"], [], ["--kv-memory", "20GiB", "--length", "800"], ["--gpu", "H100-80GB"]]
)
def test_a_number_of_requests_that_counts_is_not_named(capsys, flags):
    more = ["--concurrency", "4"] if "--gpu" not in flags else []
    assert hints(call(capsys, "size", "llama-3.1-8b", *flags, *more)) == []
