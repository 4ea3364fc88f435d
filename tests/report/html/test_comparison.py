"""Two runs on one page: what was changed, and by how much everything changed."""

from kvledger.report.html import render_page, run_of

from .results import PAGED, RATIO, policy, replay
from .test_page import elements


def text_of(before, after):
    page = render_page([run_of(before, name="a.json"), run_of(after, name="b.json")])
    return " ".join("".join(elements(page).text).split())


def test_settings_that_differ_are_named_and_equal_ones_are_not():
    after = replay()
    after["settings"]["max_model_len"] = 2048
    text = text_of(replay(), after)
    assert "max_model_len 4,096 2,048" in text.replace("max_model_len4,0962,048", "max_model_len 4,096 2,048")
    assert "Nothing that the results tell was changed" not in text
    assert "Nothing that the results tell was changed" in text_of(replay(), replay())


def test_the_sentence_is_about_the_policy_that_changed_most():
    after = replay(policies=[policy("max", RATIO), policy("paged", PAGED | {"used": 0.6, "free": 0.38})])
    assert "paged fills 60.0 % of the pool with tokens in use instead of 90.0 %" in text_of(replay(), after)


def test_every_account_tells_its_change_in_points_and_in_bytes():
    after = replay(policies=[policy("max", RATIO | {"used": 0.35, "reserved": 0.4}), policy("paged", PAGED)])
    text = text_of(replay(), after)
    assert "+10.0" in text
    assert "+102.40 MiB" in text
    assert "\u2212102.40 MiB" in text


def test_runs_without_a_policy_in_common_stand_side_by_side():
    one = replay(policies=[policy("max", RATIO), policy("exact", RATIO)], mitigations={})
    other = replay(policies=[policy("paged", PAGED)], mitigations={})
    text = text_of(one, other)
    assert "no policy in common" in text
    assert "exact" in text
    assert "paged" in text


def test_single_policies_of_different_names_are_compared():
    one = replay(policies=[policy("paged@16", PAGED)], mitigations={})
    other = replay(policies=[policy("paged@32", RATIO)], mitigations={})
    assert "paged@16 → paged@32 fills" in text_of(one, other)
