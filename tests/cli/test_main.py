"""The command `kvledger`: subcommands, errors, exit codes, signals and pipes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import kvledger
from kvledger.cli import main
from kvledger.errors import UnbalancedLedger

from .calling import MODULE, SMALL, call, command, environment, spawn

COMMANDS = list(MODULE._COMMANDS)


def test_without_arguments_the_help_is_shown(capsys):
    called = call(capsys)
    assert called.code == 2
    assert "Where every byte of KV-cache memory goes" in called.out + called.err


def test_the_version_is_printed(capsys):
    assert call(capsys, "--version").out == f"kvledger, version {kvledger.__version__}\n"


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS)])
def test_help_has_a_purpose_three_examples_and_the_exit_codes(capsys, arguments):
    called = call(capsys, *arguments, "--help")
    assert called.code == 0
    examples = called.out.partition("Examples:")[2].splitlines()
    assert sum(line.strip().startswith("kvledger ") for line in examples) >= 3
    assert max(map(len, called.out.splitlines())) <= 100


@pytest.mark.parametrize("arguments", [[], ["demo"], ["replay"]])
def test_help_names_the_exit_codes(capsys, arguments):
    assert "130 interrupted" in call(capsys, *arguments, "--help").out


def test_help_lists_every_command_without_importing_one(capsys):
    listed = call(capsys, "--help").out
    assert all(name in listed for name in COMMANDS)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["replay", "--help"], ["demo", "--help"]])
def test_help_starts_without_the_heavy_packages(arguments):
    """Time is not measured here, where other tests run beside; what costs the time is."""
    code = (
        "import sys; from kvledger.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'numba', 'pyarrow', 'rich', 'msgspec'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment(), check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("typo", "meant"), [("replya", "replay"), ("dmo", "demo"), ("zzz", None)])
def test_an_unknown_command_is_refused_with_what_was_meant_and_the_list(capsys, typo, meant):
    called = call(capsys, typo)
    assert called.code == 2
    assert f"No such command `{typo}`" in called.err
    assert ("Did you mean" in called.err) == (meant is not None)
    assert all(name in called.err for name in (meant or "demo", *COMMANDS))


@pytest.mark.parametrize("wanted", [["--json"], ["--format", "json"], ["--format=json"]])
def test_an_error_is_an_object_when_json_was_wanted(capsys, trace, wanted):
    called = call(capsys, "replay", trace, *SMALL, "--policy", "maxx", *wanted)
    assert called.code == 2
    assert called.out == ""
    assert called.error()["code"] == "KVE001"
    assert called.error()["hint"].startswith("did you mean `max`?")


def test_an_error_of_the_options_is_an_object_too(capsys, trace):
    called = call(capsys, "replay", trace, "--block-size", "0", "--json")
    assert (called.code, called.error()["error"]) == (2, "UsageError")


def test_errors_and_hints_go_to_stderr(capsys, trace):
    called = call(capsys, "replay", trace, *SMALL, "--policy", "maxx")
    assert (called.code, called.out) == (2, "")
    assert called.err.splitlines()[0] == "error: unknown policy `maxx`"
    assert called.err.splitlines()[1].startswith("hint: did you mean `max`?")


def test_what_is_quoted_cannot_steer_the_terminal(capsys, trace):
    called = call(capsys, "replay", trace, *SMALL, "--policy", "\x1b[31mred\x07")
    assert "\x1b" not in called.err
    assert "`?[31mred?`" in called.err


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 2, "not enough memory for this: "),
        (OSError(28, "No space left on device"), 2, "No space left on device"),
        (UnbalancedLedger("the books do not balance"), 2, "the books do not balance"),
        (ZeroDivisionError("a fault"), 2, "this is a fault of kvledger"),
    ],
)
def test_whatever_goes_wrong_has_its_exit_code_and_says_so(capsys, monkeypatch, raised, code, message):
    def fail(**_):
        raise raised

    monkeypatch.setattr(MODULE._kvledger, "main", fail)
    called = call(capsys, "demo")
    assert called.code == code
    assert message in called.err


def test_a_fault_of_ours_comes_with_its_traceback_and_as_an_object(capsys, monkeypatch):
    def fail(**_):
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(MODULE._kvledger, "main", fail)
    called = call(capsys, "demo", "--json")
    assert "Traceback" in called.err
    assert called.error()["message"] == "ZeroDivisionError: a fault"


def test_main_exits_with_the_code(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["kvledger", "nonsense"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2


def wait_for(condition, seconds=240):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)


@pytest.mark.parametrize("force", [False, True])
def test_an_interrupted_series_leaves_no_half_written_file(tmp_path, force):
    series = tmp_path / "steps.csv"
    if force:
        series.write_text("what was there before")
    process = subprocess.Popen(
        command(
            "replay", "synthetic:chat,requests=400000,rate=inf", "--bytes-per-token", 1, "--capacity-tokens", 30_000,
            "--policy", "paged", "--series", series, "--force",
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )  # fmt: skip
    wait_for(lambda: any(path.stat().st_size > 10_000 for path in tmp_path.glob(".*.partial")))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "interrupted; nothing half-written was left"
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == (["steps.csv"] if force else [])
    if force:
        assert series.read_text() == "what was there before"


@pytest.mark.parametrize("arguments", [["--json"], []])
def test_a_reader_that_goes_away_is_no_error(trace, arguments):
    """`kvledger replay ... | head -1`, with a reader that closes before the first byte is written."""
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        command("replay", trace, *SMALL, "--policy", "paged@2", "-q", *arguments),
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=240,
        env=environment(),
        check=False,
    )
    os.close(write)
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
def test_a_full_disk_is_an_error_and_not_a_traceback(trace):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        process = subprocess.run(
            command("replay", trace, *SMALL, "--policy", "paged@2", "-q"),
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=240, env=environment(), check=False,
        )  # fmt: skip
    assert process.returncode == 2
    assert process.stderr.startswith("error: ")
    assert "No space left on device" in process.stderr
    assert "Traceback" not in process.stderr


def test_the_module_runs_as_the_command():
    called = spawn("--version")
    assert (called.code, called.out) == (0, f"kvledger, version {kvledger.__version__}\n")


def test_errors_as_objects_are_one_line(capsys, trace):
    called = call(capsys, "replay", trace, "--json")
    assert json.loads(called.err)["code"] == "KVE001"
