"""`kvledger check`: what is surely beyond a limit gives exit code 1."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from kvledger.cli import check as module
from kvledger.cli.main import _run
from kvledger.engines.vllm.metrics import VllmScrape
from kvledger.errors import SourceError, UsageError
from kvledger.measure.limits import Limit, LimitName, Outcome
from tests.cli.serving import serving
from tests.measure.recorded import rows, scrapes, without_a_ledger


def text_of(phase):
    return max((r for r in rows("async") if r["phase"] == phase), key=lambda r: sum(r["before"].values()))["text"]


def run(*arguments, text):
    return CliRunner().invoke(module.command, ["-", *arguments], input=text, standalone_mode=False)


def test_kept_limits_return_0_and_broken_ones_1():
    assert run("--max-held", "99%", text=text_of("plain")).return_value == 0
    result = run("--max-held", "1%", text=text_of("plain"))
    assert result.return_value == 1
    assert result.stdout.startswith("broken   held at the peak")


def test_an_interval_on_both_sides_is_open_and_breaks_only_when_strict():
    arguments = ("--max-internal", "5%")
    result = run(*arguments, text=text_of("shared"))
    assert (result.return_value, result.stdout[:4]) == (0, "open")
    assert run(*arguments, "--strict", text=text_of("shared")).return_value == 1


def test_what_does_not_run_has_no_utilisation_and_is_no_pass():
    result = run("--min-utilisation", "10%", text=rows("async")[0]["text"])
    assert isinstance(result.exception, SourceError)
    assert "no request ran" in result.exception.message
    assert result.stdout.startswith("unknown")


def test_an_idle_pool_holds_nothing_and_keeps_its_limit():
    result = run("--max-held", "10%", text=rows("async")[0]["text"])
    assert (result.return_value, result.stdout[:4]) == (0, "kept")


def test_without_a_ledger_the_shell_is_told_that_nothing_was_judged(tmp_path, capsys):
    path = tmp_path / "scrape"
    path.write_text(without_a_ledger(), encoding="utf-8")
    assert _run(["check", str(path), "--max-held", "95%"]) == 2
    out, err = capsys.readouterr()
    assert out.startswith("unknown")
    assert "no whole number of the 8,811 blocks" in out
    assert "no limit could be judged: no ledger: the gauge 0.250000" in err
    assert _run(["check", str(path), "--max-held", "95%", "--strict"]) == 1


def test_one_limit_that_is_judged_is_enough_and_the_others_give_their_reason():
    result = run("--max-held", "95%", "--max-waiting", "5", "--max-preemptions", "1", "--json", text=without_a_ledger())
    assert result.return_value == 0
    found = {one["limit"]: (one["outcome"], one["reason"]) for one in json.loads(result.stdout)["limits"]}
    assert found["max-waiting"] == ("kept", None)
    assert found["max-held"][0] == "unknown"
    assert found["max-held"][1].startswith("no ledger: the gauge")
    assert found["max-preemptions"] == ("unknown", "one sample counts nothing: two are needed")


def test_the_object_has_every_limit_with_its_outcome():
    result = run("--max-waiting", "0", "--max-held", "0.5", "--json", text=text_of("plain"))
    found = json.loads(result.stdout)
    assert found["schema"] == "kvledger/check"
    assert [(one["limit"], one["bound"]) for one in found["limits"]] == [("max-held", 0.5), ("max-waiting", 0.0)]


def test_a_log_gives_no_window_to_check():
    result = run("--max-held", "50%", text="INFO GPU KV cache size: 135,168 tokens\n")
    assert isinstance(result.exception, SourceError)
    assert "kvledger measure" in result.exception.hint


@pytest.mark.parametrize("arguments", [[], ["--max-held", "101%"], ["--max-held", "much"]])
def test_limits_that_say_nothing_are_refused(arguments):
    assert isinstance(run(*arguments, text=text_of("plain")).exception, UsageError)


def test_the_exit_code_reaches_the_shell(tmp_path, capsys):
    path = tmp_path / "scrape"
    path.write_text(text_of("plain"), encoding="utf-8")
    assert _run(["check", str(path), "--max-held", "1%"]) == 1
    assert _run(["check", str(path), "--max-held", "99%"]) == 0
    assert "broken" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "bound", "low", "high", "outcome"),
    [
        (LimitName.MAX_INTERNAL, 0.1, 0.1, 0.1, Outcome.KEPT),
        (LimitName.MAX_INTERNAL, 0.1, 0.05, 0.2, Outcome.OPEN),
        (LimitName.MAX_INTERNAL, 0.1, 0.11, 0.2, Outcome.BROKEN),
        (LimitName.MIN_UTILISATION, 0.5, 0.5, 0.9, Outcome.KEPT),
        (LimitName.MIN_UTILISATION, 0.5, 0.4, 0.49, Outcome.BROKEN),
        (LimitName.MAX_HELD, 0.5, None, None, Outcome.UNKNOWN),
    ],
)
def test_a_limit_is_broken_only_for_sure(name, bound, low, high, outcome):
    assert Limit(name=name, bound=bound, low=low, high=high).outcome is outcome


def test_a_model_other_than_the_served_one_is_hinted_at():
    text = text_of("plain").replace('model_name="mid"', 'model_name="Llama-3.1-8B"')
    assert "`8b` is served" in run("--max-held", "99%", "--model", "llama-3.1-70b", text=text).stderr


def waiting_in(*samples, limit="2"):
    """Check `--max-waiting` of a recording; a sample is (waiting, gauge), or the text of an error."""
    from kvledger.measure.recording import MAGIC, FrameWriter, RecordedSample

    writer = FrameWriter()
    frames = [MAGIC]
    for second, sample in enumerate(samples):
        scrape = None
        if not isinstance(sample, str):
            engine = replace(scrapes("async")[30].engines[0], waiting=sample[0], usage_ratio=sample[1])
            scrape = VllmScrape(engines=(engine,))
        error = sample if isinstance(sample, str) else ""
        frames.append(writer.write(RecordedSample(seconds=float(second), source=0, scrape=scrape, error=error)))
    result = CliRunner().invoke(
        module.command, ["-", "--max-waiting", limit, "--json"], input=b"".join(frames), standalone_mode=False
    )
    (found,) = json.loads(result.stdout)["limits"]
    return found["outcome"], found["low"], found["reason"]


def test_waiting_is_that_of_the_last_sample_though_it_has_no_ledger():
    assert waiting_in((0, 0.5), (9, 0.123456)) == ("broken", 9.0, None)
    assert waiting_in((9, 0.123456), (1, 0.5)) == ("kept", 1.0, None)


def test_waiting_is_unknown_when_the_last_sample_failed():
    assert waiting_in((0, 0.5), "no answer in time") == ("unknown", None, "the last sample failed: no answer in time")
    assert waiting_in("no answer in time", (0, 0.5)) == ("kept", 0.0, None)


def test_a_server_that_never_answers_is_unknown_and_no_pass_beside_one_that_does(capsys):
    with serving("plain") as url:
        code = _run(["check", url, "http://127.0.0.1:9", "--max-held", "99%", "--for", "0.2s", "--every", "0.1s"])
    out, err = capsys.readouterr()
    kept, unknown = out.splitlines()
    assert code == 2
    assert kept.startswith("kept     server 1, engine 0: held at the peak")
    assert unknown.startswith(
        "unknown  server 2: held at the peak, of the pool: not known, no sample answered: the server"
    )
    assert "no limit of server 2 could be judged: no sample answered" in err


def test_an_interval_is_written_with_one_sign():
    assert "% to" not in run("--max-internal", "5%", text=text_of("shared")).stdout
    assert " %" in run("--max-internal", "5%", text=text_of("shared")).stdout


def test_a_page_is_written_whatever_becomes_of_the_limits(tmp_path):
    page = tmp_path / "limits.html"
    arguments = ("--max-held", "1%", "--max-waiting", "10", "--html", str(page))
    assert run(*arguments, text=text_of("plain")).return_value == 1
    assert "1 of 2 limits broken." in page.read_text("utf-8")
    assert isinstance(run(*arguments, text=text_of("plain")).exception, UsageError)
    assert run(*arguments, "--force", text=text_of("plain")).return_value == 1
