"""`kvledger demo --case sharing`: the trends of Figure 15 of the PagedAttention paper, and its JSON."""

import pytest

from ..test_docs import documented_fields, fields_of
from ..test_schemas import check
from .calling import call


@pytest.fixture(scope="module")
def rows():
    from kvledger.cli.demo_sharing import replay_sharing
    from kvledger.cli.running import KernelNotice

    return replay_sharing(seed=0, notice=KernelNotice(quiet=True)).rows


def test_more_answers_save_more(rows):
    for row in rows:
        saved = list(row.block_saving_ratio.values())
        assert saved == sorted(saved)
        assert saved[0] > 0.05


def test_beams_save_more_than_samples_and_long_prompts_more_than_short_ones(rows):
    by_row = {(row.workload, row.beam_turnover): row.block_saving_ratio for row in rows}
    for n in (2, 4, 6):
        for name in ("alpaca", "sharegpt"):
            assert by_row[name, 0.1][n] > 2 * by_row[name, None][n]
        assert by_row["sharegpt", None][n] > 2 * by_row["alpaca", None][n]
        assert by_row["sharegpt", 0.1][n] > by_row["alpaca", 0.1][n]


@pytest.mark.parametrize(
    ("workload", "turnover", "points"),
    [("alpaca", None, 2.5), ("sharegpt", None, 4.5), ("alpaca", 0.25, 2.5), ("sharegpt", 0.05, 4),
     ("alpaca", 0.1, 10), ("sharegpt", 0.1, 9)],
)  # fmt: skip
def test_the_savings_are_near_the_published_ones(rows, workload, turnover, points):
    """In points of the blocks without sharing; with the default chance of 0.1, which was not fitted, farthest."""
    (row,) = (row for row in rows if (row.workload, row.beam_turnover) == (workload, turnover))
    assert 100 * row.block_saving_ratio[2] == pytest.approx(100 * row.published_low_ratio, abs=points)
    assert 100 * row.block_saving_ratio[6] == pytest.approx(100 * row.published_high_ratio, abs=points)


def test_what_is_saved_lets_more_answers_run(rows):
    for row in rows:
        for n, saved in row.block_saving_ratio.items():
            assert row.running_forked[n] > (1 + saved / 2) * row.running_alone[n]


def test_the_demo_prints_both_tables_documented_json_and_a_page(capsys, tmp_path):
    called = call(capsys, "demo", "--case", "sharing", "-q")
    assert called.err == ""
    assert "Blocks saved by sharing" in called.out
    assert "Answers that run at a time" in called.out
    assert max(map(len, called.out.splitlines())) <= 100
    called = call(capsys, "demo", "--case", "sharing", "-q", "--json", "--html", tmp_path / "x.html")
    record = called.json()
    assert (record["schema"], record["schema_version"]) == ("kvledger/sharing", 1)
    assert fields_of(record) == documented_fields("demo sharing")
    check(record)
    (tmp_path / "x.json").write_text(called.out)
    page = call(capsys, "report", tmp_path / "x.json").out
    assert page.replace("x.json", "") == (tmp_path / "x.html").read_text("utf-8").replace("demo --case sharing", "")
