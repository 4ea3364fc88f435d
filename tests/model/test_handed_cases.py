"""Real users' cases: bytes a token that follow from the figures their engines printed."""

import json

import pytest

from kvledger.errors import UsageError
from kvledger.model import Storage, find_kv_format
from kvledger.model.by_hand import read_layers
from kvledger.model.catalogue import find_model


def start_up_cases(shared):
    lines = (shared / "cases" / "handed.jsonl").read_text("utf-8").splitlines()
    cases = [case for case in map(json.loads, lines) if case["kind"] == "K1"]
    for case in cases:
        derived = case["derived"]
        printed = derived.get("bytes_per_token_per_rank") or derived.get("bytes_per_token")
        if printed and derived["matches"] is True and not case.get("printed_is_summary"):
            yield case, printed


def storage_of(facts):
    kv = "fp8" if "fp8-kv" in facts.get("tags", ()) else "bfloat16"
    return Storage(kv=find_kv_format(kv), tp=facts.get("tp", 1))


def test_layers_stated_by_hand_cost_what_engines_printed(shared):
    checked = 0
    for case, printed in start_up_cases(shared):
        config = case["facts"]["config"] or {}
        layers = config.get("num_hidden_layers", 0) + config.get("draft_layers", 0)
        if "kv_lora_rank" in config:
            text = f"{layers}x(latent={config['kv_lora_rank']},rope={config['qk_rope_head_dim']})"
        elif "head_dim" in config:
            text = f"{layers}x(kv={config['num_key_value_heads']},head={config['head_dim']})"
        else:
            continue
        assert read_layers(text).bytes_per_token(storage_of(case["facts"])) == printed, case["id"]
        checked += 1
    assert checked >= 15


def test_the_catalogue_costs_what_engines_printed(shared):
    checked = 0
    for case, printed in start_up_cases(shared):
        facts = case["facts"]
        try:
            spec = find_model(facts["model"].split(" ")[0])
        except UsageError:
            continue
        if "draft_layers" not in (facts["config"] or {}):
            assert spec.bytes_per_token(storage_of(facts)) == printed, case["id"]
            checked += 1
    assert checked >= 8


@pytest.mark.parametrize(
    ("case", "name", "kv", "cells", "mib"),
    [
        ("K1-087", "qwen3-8b", "float16", 40_960, 5760),
        ("K1-087", "qwen3-14b", "float16", 16_384, 2560),
        ("K1-087", "qwen2.5-3b", "float16", 16_384, 576),
        ("K1-085", "deepseek-r1", "float16", 2048, 137.25),
    ],
)
def test_llama_cpp_cells_cost_what_it_printed(case, name, kv, cells, mib):
    assert find_model(name).bytes_per_token(kv) * cells == mib * 2**20, case
