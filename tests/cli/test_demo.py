"""`kvledger demo`: the case anybody can check by hand."""

import json

import pytest

from .calling import call


@pytest.fixture(scope="module")
def record():
    """Return the JSON of the demo, run once."""
    import contextlib
    import io

    from .calling import MODULE

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert MODULE._run(["demo", "--json"]) == 0
    return json.loads(out.getvalue())


def of(record, policy):
    return next(p for p in record["policies"] if p["policy"] == policy)


def test_the_hand_arithmetic_of_section_1_is_printed_beside_the_replay(capsys):
    """32 layers * 2 * 8 heads * 128 * 2 bytes = 131,072; * 4,096 = 512 MiB; 50 GiB / 512 MiB = 100."""
    text = call(capsys, "demo", "-q").out
    assert "131,072 bytes" in text
    assert "512.00 MiB" in text
    assert "requests that 50.00 GiB admits" in text
    assert max(map(len, text.splitlines())) <= 80


def test_reservation_holds_a_hundred_requests_and_leaves_four_fifths_empty(record):
    outcome = of(record, "max")
    assert outcome["peak_running"] == 100
    assert 0.75 < outcome["saturated_ratio"]["reserved"] < 0.85
    assert outcome["capacity_bytes"] == 50 * 2**30


def test_block_tables_fill_the_pool_and_run_five_times_the_requests(record):
    paged, reserving = of(record, "paged"), of(record, "max")
    assert paged["saturated_ratio"]["used"] > 0.96
    assert paged["saturated_running"] > 5 * reserving["saturated_running"]


def test_every_request_is_served_under_every_policy(record):
    assert all(policy["finished"] == 10_000 for policy in record["policies"])


def test_every_sheet_of_the_demo_balances(record):
    for policy in record["policies"]:
        assert sum(policy["saturated_ratio"].values()) == pytest.approx(1.0)


def test_another_seed_gives_other_numbers_and_the_same_story(capsys):
    other = call(capsys, "demo", "--json", "--seed", 7).json()
    assert of(other, "paged")["saturated_ratio"]["used"] > 0.96
    assert 0.75 < of(other, "max")["saturated_ratio"]["reserved"] < 0.85


def test_an_existing_file_is_refused_before_the_work(capsys, tmp_path):
    target = tmp_path / "demo.json"
    target.write_text("precious")
    assert call(capsys, "demo", "-o", target).code == 2
    assert target.read_text() == "precious"


def test_the_text_of_the_demo(capsys, snapshot):
    assert call(capsys, "demo", "-q").out == snapshot


def test_the_papers_figure_is_printed_above_what_was_replayed(capsys):
    text = call(capsys, "demo", "--case", "paper", "-q").out
    assert "Orca (Max)             20.4" in text
    assert "max@buddy" in text
    assert max(map(len, text.splitlines())) <= 100
