"""Policies by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.errors import Error, UsageError
from kvledger.pool import Growth, Kind, Placement, Policy, Reservation, parse_policies, parse_policy
from kvledger.testing import policies

NAMES = ["max", "declared", "pow2", "exact", "grow", "static-batch", "paged", "upfront", "no-evict", "vmm"]


def test_all_stands_for_every_policy_in_a_fixed_order():
    assert [policy.name for policy in parse_policies("all")] == NAMES


@pytest.mark.parametrize("reservation", Reservation)
@pytest.mark.parametrize("placement", Placement)
def test_a_reservation_takes_a_placement(reservation, placement):
    policy = parse_policy(f"{reservation}@{placement}")
    assert (policy.kind, policy.reservation, policy.placement) == (Kind.CONTIGUOUS, reservation, placement)


@pytest.mark.parametrize("growth", Growth)
def test_growing_takes_a_growth(growth):
    policy = parse_policy(f"grow@{growth}")
    assert (policy.kind, policy.growth) == (Kind.GROW, growth)


@pytest.mark.parametrize("name", ["paged", "upfront", "no-evict"])
@pytest.mark.parametrize("block", [1, 16, 2**20])
def test_block_tables_take_a_block_size(name, block):
    policy = parse_policy(f"{name}@{block}")
    assert (policy.kind.value, policy.block_size, policy.name) == (name, block, f"{name}@{block}")


def test_settings_of_the_base_stay_unless_the_variant_says_otherwise():
    base = Policy(name="", kind=Kind.PAGED, placement=Placement.WORST, block_size=32, buffer_tokens=7)
    exact, paged = parse_policies("exact,paged@8", base=base)
    assert (exact.placement, exact.buffer_tokens, exact.block_size) == (Placement.WORST, 7, 32)
    assert (paged.placement, paged.buffer_tokens, paged.block_size) == (Placement.WORST, 7, 8)


def test_spaces_and_empty_parts_of_a_list_are_ignored():
    assert [policy.name for policy in parse_policies(" max , ,paged,")] == ["max", "paged"]


@pytest.mark.parametrize(
    ("text", "meant"),
    [("maxx", "max"), ("pagd", "paged"), ("static_batch", "static-batch"), ("noevict", "no-evict"), ("PAGED", None)],
)
def test_an_unknown_name_is_refused_with_what_was_meant_and_the_list(text, meant):
    with pytest.raises(UsageError, match="unknown policy") as caught:
        parse_policy(text)
    assert caught.value.hint.endswith(f"the policies are {', '.join(NAMES)}")
    assert caught.value.hint.startswith(f"did you mean `{meant}`?" if meant else "the policies")


@pytest.mark.parametrize(
    "text",
    [
        "max@bst", "max@", "max@16", "grow@buddy", "grow@", "paged@", "paged@0", "paged@-1",
        "paged@1.5", "paged@16B", "paged@best", "paged@1048577", "paged@0000000016", "paged@１６", "paged@16@16",
        "paged@" + "9" * 10_000, "static-batch@16", "static-batch@", "vmm@16", "vmm@", "upfront@x", "@", "@16",
        "all@16", "max paged", "x" * 10_000,
    ],
)  # fmt: skip
def test_a_variant_that_means_nothing_is_refused_briefly(text):
    with pytest.raises(UsageError) as caught:
        parse_policies(text)
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("text", ["", " ", ",", ",,"])
def test_no_policy_at_all_is_refused(text):
    with pytest.raises(UsageError, match="no policy was named"):
        parse_policies(text)


@pytest.mark.parametrize(("text", "times"), [("max,max", "twice"), ("all,paged", "twice"), ("max," * 40_000, "40,000")])
def test_a_policy_listed_twice_is_refused(text, times):
    with pytest.raises(UsageError, match=f"is listed {times}"):
        parse_policies(text)


@given(st.text(max_size=30))
def test_any_text_is_a_list_of_policies_or_an_error_of_ours(text):
    try:
        parsed = parse_policies(text)
    except Error:
        return
    assert parsed


@given(policies())
def test_every_policy_says_what_it_does_in_one_line(policy):
    assert len(policy.meaning) > 20
    assert "\n" not in policy.meaning


def test_meanings_tell_the_settings_that_matter():
    assert parse_policy("max@buddy").meaning.endswith("buddy allocator")
    assert parse_policy("exact@worst").meaning.endswith("worst fit")
    assert "32 tokens a block" in parse_policy("paged@32").meaning
    assert "doubling" in parse_policy("grow@doubling").meaning
    assert "256 tokens" in parse_policy("grow@step").meaning
    meanings = [policy.meaning for policy in parse_policies("all")]
    assert len(set(meanings)) == len(NAMES)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("block_size", 0), ("block_size", 2**20 + 1), ("buffer_tokens", -1), ("buffer_tokens", 2**41),
        ("granularity_tokens", 0), ("growth_step_tokens", 0), ("watermark_ratio", -0.1), ("watermark_ratio", 1.1),
        ("watermark_ratio", float("nan")),
    ],
)  # fmt: skip
def test_settings_no_allocator_can_work_with_are_refused(setting, value):
    with pytest.raises(UsageError, match=f"{setting} is"):
        Policy(name="p", kind=Kind.PAGED, **{setting: value})


def test_only_interchangeable_blocks_count_as_paged():
    assert {str(kind) for kind in Kind if kind.is_paged} == {"paged", "upfront", "no-evict", "vmm"}
