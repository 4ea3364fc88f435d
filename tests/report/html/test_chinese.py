"""Chinese for sentences that the program makes up: found by their form, and never at the price of time."""

import re
import time
import tomllib
from pathlib import Path

import pytest

import kvledger
from kvledger.cli.looking import look_at_log
from kvledger.engines.plan import Deployment, GpuBudget, KvMemory
from kvledger.engines.registry import ENGINES, load_planner
from kvledger.engines.size import SizeQuestion, answer_size
from kvledger.errors import Error
from kvledger.measure.log_check import check_log
from kvledger.measure.verdict import Signs, judge
from kvledger.model.catalogue import find_model
from kvledger.pool import parse_policies
from kvledger.report.html import render_page, run_of, words
from kvledger.report.html.chinese import ASSETS, translate
from kvledger.report.html.phrases import phrases, read_asset
from kvledger.report.measure_log import log_json
from kvledger.report.size import EngineAnswer, SizeReport
from kvledger.report.size_json import size_json
from tests.engines.log_samples import READERS, SAMPLES

from .pages import measured
from .sentences import said_in, untold

SENTENCES = [pair for name in ASSETS for pair in tomllib.loads(read_asset(name))["sentences"]]
CJK = re.compile(r"[\u4e00-\u9fff]")


def test_each_sentence_has_the_same_fields_in_both_languages():
    for english, chinese in [*SENTENCES, *phrases().values()]:
        assert set(re.findall(r"\{(\w+)\}", english)) == set(re.findall(r"\{(\w+)\}", chinese)), english


def test_what_is_no_name_is_written_in_chinese():
    same = {
        "max_model_len {length}",
        "max_seq_len {n}",
        "max_num_seqs {n}",
        "fp8 KV (`--kv-cache-dtype fp8`)",
        "rank",
        "token",
    }
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


COMPOSED = {  # their fields hold more than a number; the findings and verdicts of the tests are told whole
    "7; concurrency: 7",
    "7 7 holds tokens: whether it is full or only reserved is not told",
    "7; if it stays so: 7",
    "replayed with 7: 7 of the pool is internal, 7 requests run at a time instead of 7",
    "replayed: 7 of 7 prompt tokens are found7",
    "replayed: 7 requests run at a time instead of 77",
}


@pytest.mark.parametrize("room", ["engines", "findings", "measure", "pool", "replay", "traces"])
def test_every_sentence_of_the_sources_can_be_told(room):
    said = set(said_in(Path(kvledger.__file__).parent / room))
    assert untold(said - COMPOSED) == set(), "add them to src/kvledger/report/html/assets/chinese*.toml"


@pytest.fixture
def said(monkeypatch):
    """Collect what the sections of pages ask to be told."""
    texts = set()
    monkeypatch.setattr(words, "translate", lambda text: texts.add(text) or translate(text))
    return texts


MODELS = ("llama-3.1-8b", "gpt-oss-20b", "gemma-3-27b", "qwen3.5-27b", "deepseek-v3", "granite-4.0-h-small")


@pytest.mark.parametrize("engine", ENGINES)
def test_every_sentence_of_a_size_can_be_told(said, engine):
    planner, options = load_planner(engine), {"num_ctx": "8192"} if engine == "ollama" else {}
    for name in MODELS:
        model = find_model(name)
        deployment = Deployment(engine=engine, version=ENGINES[engine].latest, options=options)
        for memory, length in ((None, None), (KvMemory.given(40 * 2**30), 800)):
            try:
                budget = GpuBudget(total_bytes=2**40, weights_bytes=2**34)
                known = memory or planner.model_memory(model, deployment, budget)
                asked = SizeQuestion(model=model, deployment=deployment, memory=known, length_tokens=length)
                outcome = answer_size(planner, asked)
            except Error:
                continue  # not every engine serves every model
            answer = EngineAnswer(engine=engine, version=deployment.version, outcome=outcome)
            render_page([run_of(size_json(SizeReport(model=name, answers=(answer,))), name="x")])
    assert said
    assert untold(said) == set()


@pytest.mark.parametrize("version", ["0.6.3", "0.8.5", "0.11.0", "0.13.0", "0.19.1"])
def test_every_sentence_of_an_older_vllm_can_be_told(said, version):
    planner = load_planner("vllm")
    for name in ("llama-3.1-8b", "gemma-3-27b", "llama-4-scout-17b-16e"):
        deployment = Deployment(engine="vllm", version=version)
        asked = SizeQuestion(model=find_model(name), deployment=deployment, memory=KvMemory.given(2**38))
        answer = EngineAnswer(engine="vllm", version=version, outcome=answer_size(planner, asked))
        render_page([run_of(size_json(SizeReport(model=name, answers=(answer,))), name="x")])
    assert untold(said) == set()


def test_every_sentence_of_logs_and_of_a_server_can_be_told(said):
    for engine, text in SAMPLES.items():
        found = READERS[engine](text)
        checks = check_log(found)
        render_page([run_of(log_json(checks, look_at_log(found, checks)), name="x")])
    render_page([run_of(measured(), name="x")])
    assert untold(said) == set()
