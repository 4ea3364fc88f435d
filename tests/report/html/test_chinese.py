"""Chinese for sentences that the program makes up: found by their form, and never at the price of time."""

import re
import time
import tomllib

import pytest

from kvledger.measure.verdict import Signs, judge
from kvledger.pool import parse_policies
from kvledger.report.html.chinese import translate
from kvledger.report.html.phrases import phrases, read_asset

SENTENCES = tomllib.loads(read_asset("chinese.toml"))["sentences"]
CJK = re.compile(r"[\u4e00-\u9fff]")


def test_each_sentence_has_the_same_fields_in_both_languages():
    for english, chinese in [*SENTENCES, *phrases().values()]:
        assert set(re.findall(r"\{(\w+)\}", english)) == set(re.findall(r"\{(\w+)\}", chinese)), english


def test_what_is_no_name_is_written_in_chinese():
    same = {"max_model_len {length}", "max_seq_len {n}", "max_num_seqs {n}", "fp8 KV (`--kv-cache-dtype fp8`)"}
    for english, chinese in [*SENTENCES, *phrases().values()]:
        assert english in same or CJK.search(chinese) or CJK.search(english), english


def test_what_every_policy_does_can_be_told():
    for policy in parse_policies("all,max@buddy,exact@worst,grow@segments,grow@step,paged@32"):
        assert translate(policy.meaning), policy.meaning


@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("held", [0.1, 0.6, 0.95])
@pytest.mark.parametrize("waiting", [0, 1, 7])
def test_every_verdict_can_be_told(samples, held, waiting):
    verdict = judge(
        Signs(
            samples=samples,
            peak_held_ratio=held,
            peak_used_ratio=held - 0.05,
            peak_used_high_ratio=held,
            peak_waiting=waiting,
            peak_running=3,
            waiting_ratio=0.5 if waiting else 0.0,
            held_ratio_while_waiting=held if waiting else None,
            preemptions=0,
            finished=10,
            generated_tokens=100,
            seconds=60.0,
        )
    )
    assert CJK.search(translate(verdict.sentence) or ""), verdict.sentence
    assert CJK.search(translate(verdict.advice) or ""), verdict.advice


def test_parts_between_semicolons_are_told_one_by_one():
    assert translate("5 restarts of 60 s each (assumed); 1,234 tokens computed again") == (
        "5 次重启，每次 60 秒（假设）；重新计算 1,234 个 token"
    )


def test_a_sentence_is_told_whole_or_not_at_all():
    assert translate("7 preemptions; something unheard of") is None


def test_text_made_to_take_long_does_not():
    began = time.process_time()
    for english, _ in SENTENCES:
        parts = re.split(r"\{\w+\}", english)
        translate(("1".join(part * 9 for part in parts) * 30)[:599])
    assert time.process_time() - began < 2


def test_bounds_of_a_number_are_translated_with_their_sentence():
    sentence = "well under 50 %: {} of the pool holds tokens, and nothing waits for memory"
    assert "内存池中 11.3 到 11.9 % 存放" in translate(sentence.format("11.3 to 11.9 %"))
    assert "内存池中 最多 31.5 % 存放" in translate(sentence.format("at most 31.5 %"))
