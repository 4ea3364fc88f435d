import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvledger.cli import trace as trace_module
from kvledger.errors import TraceError, UsageError
from kvledger.sources.files import load_trace

CSV = "arrival_seconds,prompt_tokens,output_tokens,max_tokens\n0,10,5,64\n5,20,6,\n60,30,7,128\n61,0,7,128\n"


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(trace_module.command, list(arguments), input=text, catch_exceptions=True)


def test_the_text_names_the_format_and_what_was_dropped() -> None:
    result = run("-", text=CSV)
    assert result.exit_code == 0
    assert result.stdout.startswith("columns: ")
    assert "requests   3 of 4 rows" in result.stdout
    assert "dropped    1  prompt below 1 token" in result.stdout
    assert "hint:" not in result.stdout
    assert "hint:" in result.stderr


def test_the_text_fits_80_columns_where_it_is_a_table() -> None:
    table = run("synthetic:sharegpt,requests=2000").stdout.split("\n\n")[2]
    assert table.startswith("tokens")
    assert max(map(len, table.splitlines())) <= 80


def test_a_window_longer_than_the_trace_is_left_out() -> None:
    short = "arrival_seconds,prompt_tokens,output_tokens\n" + "".join(f"{i / 10},5,5\n" for i in range(291))
    assert "\nrate       10/s mean, 10/s in the busiest 10 s\n" in run("-", text=short).stdout
    assert "\nrate       10/s mean\n" in run("-", text="".join(short.splitlines(keepends=True)[:50])).stdout


def test_one_dropped_row_is_not_called_rows() -> None:
    assert "hint: 1 row dropped" in run("-", text=CSV).stderr


def test_json_says_what_it_is_and_how_well_it_is_known() -> None:
    record = json.loads(run("-", "--json", text=CSV).stdout)
    assert (record["schema"], record["schema_version"]) == ("kvledger/trace", 1)
    assert (record["requests"], record["rows_read"], record["dropped"]) == (3, 4, {"prompt below 1 token": 1})
    assert record["span_seconds"] == 60
    assert record["rate_per_second"] == {
        "mean": pytest.approx(2 / 60),
        "peak_10_seconds": 0.2,
        "peak_60_seconds": pytest.approx(2 / 60),
    }
    assert record["prompt"]["p50_tokens"] == 20
    assert record["declared_max_tokens"]["count"] == 2
    assert record["accuracy"]["prompts"] == "measured"
    assert record["infinite_cache_prefix"] is None
    assert run("-", "--format", "json", text=CSV).stdout == run("-", "--json", text=CSV).stdout


def test_identity_gives_the_share_of_an_infinite_cache() -> None:
    lines = '{"timestamp":1,"input_length":600,"output_length":1,"hash_ids":[1,2]}\n' * 2
    record = json.loads(run("-", "--json", text=lines).stdout)
    assert record["identity"] == "chained block ids, blocks of 512 tokens"
    assert record["infinite_cache_prefix"] == {"prompt_tokens": 1200, "shared_tokens": 600, "ratio": 0.5}


def test_mooncakes_share_is_printed_as_published(shared: Path) -> None:
    result = run(str(shared / "traces" / "mooncake" / "conversation_trace.jsonl.gz"))
    assert "prefix     37.4 % of prompt tokens" in result.stdout


def test_a_trace_is_converted_and_read_back(tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    result = run("synthetic:chat,requests=50,turns=2", "--seed", "5", "--to", str(target))
    assert result.exit_code == 0
    assert f"Wrote {target}" in result.stderr
    back = load_trace(str(target)).workload
    assert (back.prompt_tokens == load_trace("synthetic:chat,requests=50,turns=2", seed=5).workload.prompt_tokens).all()
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    target.write_text("precious")
    refused = run("-", "--to", str(target), text=CSV)
    assert isinstance(refused.exception, UsageError)
    assert "--force" in str(refused.exception.hint)
    assert target.read_text() == "precious"
    assert run("-", "--to", str(target), "--force", text=CSV).exit_code == 0
    assert len(load_trace(str(target))) == 3


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_conversion_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def interrupted(trace: object, out: object) -> None:
        out.write(b"half")  # type: ignore[attr-defined]
        raise failure

    monkeypatch.setattr(trace_module, "write_trace", interrupted)
    result = run("-", "--to", str(tmp_path / "out.parquet"), text=CSV)
    assert result.exit_code != 0
    assert not list(tmp_path.iterdir())


def test_a_folder_that_does_not_exist_is_said_before_anything_is_read(tmp_path: Path) -> None:
    result = run("-", "--to", str(tmp_path / "no" / "out.parquet"), text=CSV)
    assert isinstance(result.exception, UsageError)


def test_what_cannot_be_read_is_our_error() -> None:
    assert isinstance(run("-", text="hello\n").exception, TraceError)
    assert isinstance(run("synthetic:nope").exception, UsageError)


def test_session_starts_and_columns_reach_the_reader() -> None:
    assert isinstance(run("-", "--session-starts", "x", text=CSV).exception, UsageError)
    mapped = run("-", "--json", "--columns", "prompt=a,output=b", text="a,b\n1,2\n")
    assert json.loads(mapped.stdout)["prompt"]["max_tokens"] == 1


def test_a_rate_gives_lengths_without_times_their_arrivals() -> None:
    record = json.loads(run("-", "--json", "--rate", "2", text="prompt_tokens,output_tokens\n" + "1,2\n" * 999).stdout)
    assert record["rate_per_second"]["mean"] == pytest.approx(2, rel=0.15)


def test_help_shows_three_examples_and_the_exit_codes() -> None:
    text = run("--help").stdout
    assert text.count("  kvledger trace ") == 3
    assert "Exit codes" in text


def test_a_page_is_written_beside_the_text(tmp_path: Path) -> None:
    page = tmp_path / "traffic.html"
    result = run("synthetic:chat,requests=50", "--html", str(page))
    assert "requests   50" in result.stdout
    assert "50 requests over" in page.read_text("utf-8")
    with pytest.raises(UsageError, match="exists"):
        raise run("synthetic:chat,requests=50", "--html", str(page)).exception or AssertionError
    assert run("synthetic:chat,requests=50", "--html", str(page), "--force").exit_code == 0
