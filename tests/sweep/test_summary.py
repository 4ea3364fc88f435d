"""The best rows, and those that no other beats."""

from hypothesis import given
from hypothesis import strategies as st

from kvledger.sweep.summary import BEST, FIGURES, Row, demands_of, pareto


def row(cell="c", values=None, **figures):
    every = dict.fromkeys(FIGURES, 0.0) | figures
    return Row(cell=cell, policy="paged", values=values or {}, figures=every)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_the_front_is_what_a_comparison_of_all_pairs_leaves(points):
    rows = [row(str(i), wasted_bytes=x, queue_p99_seconds=y) for i, (x, y) in enumerate(points)]
    beaten = {(x, y) for x, y in points for u, v in points if (u <= x and v <= y) and (u < x or v < y)}
    assert [(r.number("wasted_bytes"), r.number("queue_p99_seconds")) for r in pareto(rows)] == sorted(
        set(points) - beaten
    )


def test_rows_are_compared_only_with_rows_that_serve_the_same():
    rows = [
        row("a", {"trace": "x", "memory": 1}, wasted_bytes=1),
        row("b", {"trace": "y", "memory": 1}, wasted_bytes=0),
        row("c", {"trace": "x", "memory": 2}, wasted_bytes=2),
    ]
    x, y = demands_of(rows)
    assert (x.values, [r.cell for r in x.rows], [r.cell for r in x.front]) == ({"trace": "x"}, ["a", "c"], ["a"])
    assert (y.values, [r.cell for r in y.rows]) == ({"trace": "y"}, ["b"])


def test_a_row_that_serves_less_is_not_the_best():
    rows = [row("less", rejected=3), row("cut", truncated=1), row("all", wasted_bytes=9, queue_p99_seconds=9)]
    (demand,) = demands_of(rows)
    assert demand.left_out == 2
    assert [r.cell for r in demand.front] == ["all"]
    assert {r.cell for r in demand.best.values()} == {"all"}


def test_a_row_without_a_served_request_is_left_out():
    rows = [row("none", queue_p99_seconds=None)]
    (demand,) = demands_of(rows)
    assert (demand.front, demand.best, demand.left_out) == ([], {}, 1)


def test_the_best_by_each_figure_is_named():
    rows = [row("a", wasted_bytes=1, queue_p99_seconds=5, first_token_p99_seconds=4, output_tokens_per_second=1)]
    rows += [row("b", wasted_bytes=2, queue_p99_seconds=4, first_token_p99_seconds=5, output_tokens_per_second=2)]
    (demand,) = demands_of(rows)
    assert {figure: r.cell for figure, r in demand.best.items()} == dict(zip(BEST, "abab"))
