"""Pages of what is no replay and no measurement: proofs, sweeps, sharing, logs."""

import json
import re

import pytest

from kvledger.errors import SourceError
from kvledger.report.html import render_page, run_of
from kvledger.report.html.chinese import translate

from .pages import HOSTILE, attacked
from .results import log, prove, replay, sharing, sweep
from .results_on_paper import cache, check, limit, planned, sheet, size, sizes, structure, trace
from .test_page import data_of, elements, page_of

KINDS = [prove, sweep, sharing, log, size, sizes, trace, cache, check]


def text_of(result):
    return " ".join(" ".join(elements(page_of(result)).text).split())


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_result_gives_the_same_bytes(kind):
    assert page_of(kind()) == page_of(kind())


@pytest.mark.parametrize("kind", KINDS)
def test_text_from_outside_adds_no_element(kind):
    page = page_of(attacked(kind()))
    assert {tag for tag, _ in elements(page).tags} <= {tag for tag, _ in elements(page_of(kind())).tags} | {"code"}
    assert page.count("<script") == 2
    assert "\u202e" not in page
    assert HOSTILE[:9] not in page.replace("</script>", "", 2)


def test_a_proof_shows_the_ledger_the_speed_and_the_answers_of_each_way():
    text = text_of(prove())
    for part in ("25.0 %", "256.00 MiB", "100.0", "62.5", "300", "the same but for near ties", "4.0"):
        assert part in text
    assert "generate-batch did not run: no page fits" in text
    assert "hidden : the tensors it holds cannot be seen" in text


def test_an_answer_that_differs_is_a_fault_on_the_page():
    proof = prove()
    proof["sides"][2]["agreement"] = {"same": 8, "tie": 1, "different": 1, "missing": 0}
    assert "a fault: please report it" in text_of(proof)


def test_two_proofs_are_compared_way_by_way():
    page = page_of(prove(), prove(threads=1))
    assert "Before and after" in page
    assert "blocks</bdi>" in page


def test_a_sweep_shows_what_nothing_beats_and_what_each_setting_does():
    text = text_of(sweep())
    for part in (
        "16.00 MiB",
        "By block-size",
        "By prefix-caching",
        "Least waste",
        "8.00 s",
        "∞",
        "block size 0",
    ):
        assert part in text or part == "Least waste"
    assert "because they reject or cut short more requests than others: 1." in text


def test_a_dot_lies_where_its_row_belongs():
    first, last, *_ = re.findall(
        r'<circle cx="([0-9.]+)" cy="([0-9.]+)" r="5" class="front">', page_of(sweep(rates=(2.0,)))
    )
    assert float(first[0]) < float(last[0])  # wastes less, so it lies to the left
    assert float(first[1]) < float(last[1])  # waits longer, so it lies higher up


def test_a_sweep_of_many_rows_lists_the_first_and_says_so():
    many = sweep(rates=tuple(range(1, 201)))
    page = page_of(many)
    assert "The first 400 rows are listed; 800 more are in the result itself." in page
    assert "which are in the table of all rows only: 188." in page
    assert len(data_of(page)["runs"][0]["result"]["rows"]) == 400
    assert len(page.encode()) < 3_000_000


def test_rows_that_nothing_beats_are_listed_first():
    rows = data_of(page_of(sweep()))["runs"][0]["result"]["rows"]
    assert [(row["policy"], row["values"]["block-size"]) for row in rows[:4]] == 2 * [("paged", 16), ("paged", 256)]


def test_sharing_is_told_in_words_with_the_paper_beside_it():
    text = text_of(sharing())
    assert "With 6 answers to a prompt, sharing blocks saves up to 74.0 % of them" in text
    assert "120 answers run at a time instead of 33" in text
    assert "10.0 % to 50.0 %" in text


def test_a_log_shows_its_bounds_and_what_reservation_would_take():
    text = text_of(log())
    for part in (
        "80.0 % to 82.0 %",
        "880.0 %",
        "17.2050 GiB",
        "17.2150 GiB",
        "140,976",
        "KV101",
    ):
        assert part in text
    assert "4.30 requests of the longest length, 32,768" in text
    assert "no memory left for the cache" in text
    assert "no memory 不收回内存 longer requests 更长的请求" in text
    assert "0 B" not in text


def test_a_size_shows_the_device_the_pool_the_layers_and_the_requests():
    text = text_of(size())
    for part in (
        "vLLM 0.33.0",
        "8.00 GiB 7.00 GiB to 9.00 GiB",
        "left free",
        "75.0 % used",
        "12 × 8,192 tokens",
        "rank, 2 ranks",
        "sliding window",
        "98,304",
        "GPU KV cache size: 65,536 tokens",
        "100 memory for 130",
        "60,000 to 70,000 tokens",
        "131,072",
    ):
        assert part in text, part


def test_the_parts_of_a_device_sum_to_its_memory():
    widths = re.findall(r'width="([0-9.]+)%" height="100%" class="m-', page_of(size()))
    assert sum(map(float, widths)) == pytest.approx(100, abs=0.01)


@pytest.mark.parametrize("gpu", [None, {"name": "tiny", "memory_bytes": 2**30}])
def test_a_device_that_the_estimate_does_not_fill_is_not_drawn(gpu):
    page = page_of(size(gpu=gpu))
    assert "bar device" not in page
    assert "give --gpu and --weights" in page


def test_several_engines_stand_side_by_side_and_what_was_not_planned_says_why():
    text = text_of(sizes())
    assert "3 engines: from 4 requests of the longest length at once ( llama.cpp ) to 12 ( vLLM )" in text
    assert "TGI not a model it serves" in text
    assert "No engine can be planned" in text_of(size(engines=sizes()["engines"][2:]))


def test_a_trace_tells_its_arrivals_its_lengths_and_what_it_shares():
    text = text_of(trace())
    for part in (
        "10 requests over 5.0 min: prompts of 3 tokens on average, answers of 2; the longest takes 6 together.",
        "40.0 % of the prompt tokens repeat",
        "kept of 12 rows",
        "1.25",
        "declared max_tokens",
        "0.5 to 2 times the estimate",
        "dropped 2: no output",
        "empty, mean",
    ):
        assert part in text, part
    assert "of a block" not in text  # no token has a price here


def test_a_trace_that_tells_nothing_of_its_content_says_so():
    text = text_of(trace(infinite_cache_prefix=None, lengths=None))
    assert "nothing can be said about a prefix cache" in text
    assert "empty, mean" not in text


def test_a_cache_shows_a_line_for_each_eviction_and_the_share_that_none_exceeds():
    page, text = page_of(cache()), text_of(cache())
    assert page.count('class="curve') == 6  # two lines, wide and narrow, and two in the legend
    for part in ("Requests 6 to 10", "37.0 %", "40.0 %*", "not yet full", "−5.0", "160.00 MiB", "6.25 GiB"):
        assert part in text, part


def test_limits_are_told_in_words_with_the_broken_ones_first():
    text = text_of(check())
    assert "2 of 6 limits broken. " in text
    assert "2 of 6 cannot be told: see below." in text
    assert text.index("97.0 %") < text.index("40.0 % to 60.0 %") < text.index("1.0 % to 2.0 %")
    assert "no sample answered: refused" in text
    assert "The limit holds." in text_of(check(limits=[limit("max-held", "kept", 0.1, 0.1)]))
    assert "No limit is surely broken." in text_of(check(limits=[limit("max-held", "open", 0.1, 0.9)]))


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (trace(requests=-1), "is no amount"),
        (trace(infinite_cache_prefix={"prompt_tokens": 1, "shared_tokens": 2, "ratio": 2.0}), "no share of a whole"),
        (cache(budgets=[]), "0 sizes"),
        (cache(budgets=[*cache()["budgets"][:2], cache()["budgets"][2] | {"evictions": []}]), "not every size"),
        (cache(ceiling={"hit_ratio": 1.5, "whole_hit_ratio": 0.0}), "no share of a whole"),
        (check(limits=[]), "0 limits"),
        (check(limits=[limit("max-held", "open", 0.9, 0.1)]), "it is from 0.9 to 0.1"),
        (check(limits=[limit("max-held", "broken", 2.0, 3.0)]), "no share of a whole"),
    ],
)
def test_a_damaged_trace_cache_or_check_is_refused(broken, why):
    with pytest.raises(SourceError, match=why):
        run_of(broken, name="x")


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (planned(structure=structure(deployment=sheet() | {"capacity_bytes": 1})), "the books do not balance"),
        (planned(structure=structure(ranks=[sheet() | {"entries": []}])), "the books do not balance"),
        (planned(memory=planned()["memory"] | {"per_rank_bytes": [-1]}), "is no amount"),
        (planned(memory=planned()["memory"] | {"per_rank_bytes": []}), "0 ranks"),
        (planned(requests=[planned()["requests"][0] | {"used_ratio": -2.0}]), "is no amount"),
    ],
)
def test_a_damaged_size_is_refused(engine, why):
    with pytest.raises(SourceError, match=why):
        run_of(size(engines=[engine]), name="x")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda r: r["sides"][0]["mean_ratio"].update(used=0.9), "the books do not balance"),
        (lambda r: r["sides"][0].update(seconds=-1), "is no amount"),
        (lambda r: r["sides"][0].update(capacity_bytes=0), "its pool has 0 bytes"),
        (lambda r: r.update(sides=[]), "0 ways"),
    ],
)
def test_a_damaged_proof_is_refused(change, why):
    broken = json.loads(json.dumps(prove()))
    change(broken)
    with pytest.raises(SourceError, match=why):
        run_of(broken, name="x")


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (sweep(rows=[], failures=[]), "has no row"),
        (sweep(rows=[sweep()["rows"][0] | {"wasted_ratio": 1.5}]), "is no share"),
        (sharing(rows=[sharing()["rows"][0] | {"running_alone": {"2": 1.0}}]), "not every row"),
        (
            log(engines=[log()["engines"][0] | {"tokens": {"value": 1, "low": 2, "high": 3, "accuracy": "measured"}}]),
            "bounds",
        ),
    ],
)
def test_what_cannot_be_is_refused(broken, why):
    with pytest.raises(SourceError, match=why):
        run_of(broken, name="x")


@pytest.mark.parametrize("kind", [sweep, sharing, log, size, trace, cache, check])
def test_what_has_no_ledgers_is_not_compared(kind):
    with pytest.raises(SourceError, match="has no ledgers to compare"):
        render_page([run_of(replay(), name="a"), run_of(kind(), name="b")])


def test_the_answers_of_proofs_and_sweeps_are_told_in_chinese():
    for sentence in (prove()["answer"], sweep()["answer"]):
        assert translate(sentence)
    two = (
        "For rate 8: Least waste: `paged` (max-num-seqs 32, block-size 16) wastes 30.01 MiB and waits 50.9 s (p99). "
        "Shortest queue: `paged` (max-num-seqs 128, block-size 16) wastes 95.90 MiB and waits 10.4 s (p99). "
        "2 rows between them trade one for the other."
    )
    assert not re.search(r"wastes|between|queue", translate(two))
