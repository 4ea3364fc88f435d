"""The scheduler that draws up its ledger: what it writes, when, and that it never harms what it watches."""

import json
import logging

import pytest

from kvledger.live.vllm_scheduler import LedgerScheduler
from kvledger.live.vllm_state import read_pool
from kvledger.measure.inside import GroupKind
from tests.live.fake_vllm import FullAttentionSpec, Scheduler, SlidingWindowSpec, group, make


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KVLEDGER_VLLM_DIR", str(tmp_path / "ledgers"))
    monkeypatch.setenv("KVLEDGER_VLLM_EVERY", "0")
    return tmp_path / "ledgers"


def lines(folder, scheduler):
    scheduler.shutdown()
    return [json.loads(line) for line in (folder / "engine-3.jsonl").read_text("utf-8").splitlines()]


def test_it_is_the_class_vllm_would_have_taken_and_does_its_work(folder):
    scheduler = make(LedgerScheduler)
    assert isinstance(scheduler, Scheduler)
    scheduler.admit("a", 6)
    outputs = scheduler.update_from_output(None, None)
    assert [output.new_token_ids for output in outputs[0].outputs] == [[7]]
    scheduler.shutdown()
    assert scheduler.closed


def test_each_due_step_gives_a_line_with_the_exact_ledger(folder):
    """Two layers of 10 bytes a token: 6 tokens hold two blocks of 80 bytes and need 120."""
    scheduler = make(LedgerScheduler)
    scheduler.admit("a", 6)
    scheduler.update_from_output(None, None)
    scheduler.finish("a")
    scheduler.update_from_output(None, None)
    first, last = lines(folder, scheduler)
    assert (first["schema"], first["schema_version"], first["engine"]) == ("kvledger/inside", 1, 3)
    assert (first["model"], first["scheduling"], first["block_tokens"]) == ("tiny", "ahead", 4)
    assert (first["running"], first["live_tokens"], first["used_tokens"], first["held_blocks"]) == (1, 7, 6, 2)
    assert (first["accounts"]["used_bytes"], first["accounts"]["internal_bytes"]) == (120, 40)
    assert sum(first["accounts"].values()) == first["capacity_bytes"] == 32 * 80
    assert (first["step"], first["emitting_steps"], first["generated_tokens"]) == (1, 1, 1)
    assert (last["step"], last["emitting_steps"], last["generated_tokens"]) == (2, 1, 1)
    assert (last["held_blocks"], last["cached_blocks"], last["free_blocks"]) == (0, 1, 30)
    assert json.loads((folder / "engine-3.json").read_text("utf-8")) == last
    assert "requests" not in first


def test_requests_are_listed_only_when_asked_for(folder, monkeypatch):
    monkeypatch.setenv("KVLEDGER_VLLM_REQUESTS", "1")
    scheduler = make(LedgerScheduler)
    scheduler.admit("a", 6)
    scheduler.update_from_output(None, None)
    (line,) = lines(folder, scheduler)
    assert line["requests"] == [
        {
            "id": "a",
            "prompt_tokens": 6,
            "output_tokens": 1,
            "stored_tokens": 6,
            "blocks": 2,
            "shared_blocks": 0,
            "held_bytes": 160,
            "needed_bytes": 120,
        }
    ]


def test_between_due_steps_nothing_is_drawn_but_the_last_request_leaving_is_seen(folder, monkeypatch):
    monkeypatch.setenv("KVLEDGER_VLLM_EVERY", "3600")
    scheduler = make(LedgerScheduler)
    scheduler.admit("a", 6)
    for _ in range(50):
        scheduler.update_from_output(None, None)
    scheduler.finish("a")
    scheduler.update_from_output(None, None)
    scheduler.update_from_output(None, None)
    assert [(line["step"], line["running"], line["generated_tokens"]) for line in lines(folder, scheduler)] == [
        (1, 1, 1),
        (51, 0, 50),
    ]


def test_the_last_client_leaving_between_two_steps_is_seen(folder, monkeypatch):
    monkeypatch.setenv("KVLEDGER_VLLM_EVERY", "3600")
    scheduler = make(LedgerScheduler)
    for name in "abc":
        scheduler.admit(name, 6)
    scheduler.update_from_output(None, None)
    assert scheduler.finish_requests(["a"], None) == ["a"]
    scheduler.finish_requests(["b", "c"], None)
    scheduler.finish_requests([], None)
    assert [(line["step"], line["running"], line["held_blocks"]) for line in lines(folder, scheduler)] == [
        (1, 3, 6),
        (1, 0, 0),
    ]


def test_without_a_folder_a_line_stands_in_the_log_now_and_then(monkeypatch, caplog):
    monkeypatch.delenv("KVLEDGER_VLLM_DIR", raising=False)
    scheduler = make(LedgerScheduler)
    scheduler.admit("a", 6)
    with caplog.at_level(logging.INFO, "vllm.kvledger"):
        for _ in range(5):
            scheduler.update_from_output(None, None)
    assert [record.message for record in caplog.records] == [
        "kvledger engine 3: used 4.7 %, internal 1.6 %, free 90.6 %, unattributed 3.1 % of 2.50 KiB; "
        "1 running, 0 waiting"
    ]


def test_a_scheduler_that_is_not_as_expected_runs_on_without_a_ledger(folder, caplog):
    strange = group()
    del strange.layer_names
    scheduler = make(LedgerScheduler, strange)
    scheduler.admit("a", 6)
    assert len(scheduler.update_from_output(None, None)[0].outputs) == 1
    scheduler.shutdown()
    assert "the scheduler is not as expected" in caplog.text


def test_a_fault_while_drawing_is_told_once_and_ends_the_ledgers(folder, caplog):
    scheduler = make(LedgerScheduler)
    scheduler.admit("a", 6)
    scheduler.requests["a"].num_computed_tokens = "many"
    for _ in range(3):
        assert len(scheduler.update_from_output(None, None)[0].outputs) == 1
    scheduler.shutdown()
    assert caplog.text.count("kvledger draws up no more ledgers") == 1


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "1e9"])
def test_a_time_that_is_none_is_told_and_a_second_taken(folder, monkeypatch, caplog, text):
    monkeypatch.setenv("KVLEDGER_VLLM_EVERY", text)
    scheduler = make(LedgerScheduler)
    assert scheduler._kvledger._every == 1.0
    assert "KVLEDGER_VLLM_EVERY is no time" in caplog.text
    scheduler.shutdown()


def test_groups_are_read_with_their_widths_and_windows():
    pool = read_pool(make(Scheduler, group(FullAttentionSpec, 3), group(SlidingWindowSpec, 2)))
    assert (pool.blocks, pool.block_bytes) == (32, 120)
    assert [(one.kind, one.payload_bytes, one.reach_tokens) for one in pool.groups] == [
        (GroupKind.FULL, 120, None),
        (GroupKind.WINDOW, 80, 5),
    ]


def test_layers_of_different_widths_in_one_group_are_added_up():
    both = group()
    wide = FullAttentionSpec()
    wide.page_size_bytes = wide.real_page_size_bytes = 100
    both.kv_cache_spec.kv_cache_specs = {"a": FullAttentionSpec(), "b": wide}
    (one,) = read_pool(make(Scheduler, both)).groups
    assert (one.kind, one.payload_bytes) == (GroupKind.FULL, 140)


def test_layers_of_an_unknown_kind_are_not_explained():
    class NewSpec(FullAttentionSpec):
        pass

    (one,) = read_pool(make(Scheduler, group(NewSpec))).groups
    assert one.kind is GroupKind.OTHER
