"""SGLang's pools against SGLang's own sizing functions, for eight releases."""

import json
import re
from pathlib import Path

import pytest

from kvledger.engines.plan import Deployment, KvMemory
from kvledger.engines.sglang import make_plan
from kvledger.model import AttentionCache, Dtype, Indexer, LatentCache, Layer, Length, ModelSpec, StateCache, StateKind
from kvledger.model.states import Part, StateTensor, TensorRole

RUNS = json.loads((Path(__file__).parents[2] / "data" / "sglang-sizing" / "sizing.json").read_text())["runs"]


def build(run):
    """Build the model of a run: equal attention layers, windowed ones, and one state of so many bytes."""
    heads = {"kv_heads": run["kv_heads"], "key_size": run["head"], "value_size": run["head"]}
    indexer = Indexer(key_size=128) if run["attention"] == "sparse" else None
    latent = LatentCache(latent_size=512, rope_size=64, indexer=indexer)
    full = AttentionCache(**heads) if run["attention"] == "heads" else latent
    caches = [full] * run["full"] + [AttentionCache(**heads, window_tokens=128)] * run["window"]
    if run["state_bytes"]:
        axes = ((Part(count=run["state_bytes"]),),)
        tensor = StateTensor(role=TensorRole.STATE, axes=axes, dtype=Dtype.INT8)
        caches.append(StateCache(kind=StateKind.GDN, tensors=(tensor,)))
    return ModelSpec(
        name="m",
        model_type="m",
        architectures=("GptOssForCausalLM",),
        layers=tuple(Layer(index=i, cache=cache) for i, cache in enumerate(caches)),
        dtype=Dtype.BFLOAT16,
        max_model_len=Length(tokens=131072, source="test"),
    )


def plan(run):
    options = {"swa_full_tokens_ratio": run["swa_full_tokens_ratio"]}
    for name in ("max_mamba_cache_size", "chunked_prefill_size", "draft_layers"):
        if run[name]:
            options[name] = run[name]
    if run["max_running_requests"]:
        options["disable_radix_cache"] = "on"
    deployment = Deployment(
        engine="sglang",
        version=run["version"],
        tp=run["tp"],
        kv_dtype=run["kv_dtype"],
        block_tokens=run["page"],
        max_num_seqs=run["max_running_requests"],
        speculative_tokens=1 if run["draft_layers"] else 0,
        options={name: str(value) for name, value in options.items()},
    )
    return make_plan(build(run), deployment, KvMemory.given(run["budget_bytes"]))


@pytest.mark.parametrize("version", sorted({run["version"] for run in RUNS}))
def test_pools_are_those_of_the_release(version):
    for run in (run for run in RUNS if run["version"] == version):
        result = plan(run)
        lines = " ".join(line.text for line in result.lines)
        window = re.search(r"swa(?:_layer_tokens=| size: )(\d+)", lines)
        slots = result.pool("mamba").usable_units if run["state_bytes"] else 0
        assert result.printed_tokens == run["tokens"], run
        assert int(window[1] if window else 0) == run["window_tokens"], run
        assert slots == run["slots"], run
