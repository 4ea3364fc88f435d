"""Transformers' planner against real tensors and real paged caches of version 5.24."""

import json
import re
from pathlib import Path

import pytest

from kvledger.engines.plan import Deployment, GpuBudget, KvMemory
from kvledger.engines.transformers import make_plan, model_memory
from kvledger.engines.transformers.continuous import find_geometry
from kvledger.engines.transformers.paged import count_storable_requests
from kvledger.engines.transformers.tensors import count_dynamic, count_quantised, count_static
from kvledger.errors import ModelError, UsageError
from kvledger.model import AttentionCache, Dtype, Layer, Length, ModelSpec, Storage, find_dtype, find_kv_format
from kvledger.model.by_hand import read_layers
from kvledger.units import GIB

DATA = Path(__file__).parents[2] / "data" / "transformers-5.24.0"
TENSORS = json.loads((DATA / "caches.json").read_text())
PAGED = json.loads((DATA / "paged.json").read_text())
LARGE = KvMemory.given(64 * GIB)
FIELDS = ("tp", "kv_dtype", "block_tokens", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "device")


def plan(model, *, version="5.24.0", memory=LARGE, **settings):
    fields = {name: settings.pop(name) for name in FIELDS if name in settings}
    options = {name: str(value) for name, value in settings.items()}
    return make_plan(model, Deployment(engine="transformers", version=version, options=options, **fields), memory)


def windows_of(config):
    kinds = (
        config["layer_types"]
        or ["sliding_attention" if config["sliding_window"] else "full_attention"] * config["layers"]
    )
    return [config["sliding_window"] if kind == "sliding_attention" else None for kind in kinds]


def spec(config, dtype="bfloat16"):
    caches = [
        AttentionCache(kv_heads=config["kv"], key_size=config["head"], value_size=config["head"], window_tokens=window)
        for window in windows_of(config)
    ]
    return ModelSpec(
        name="m",
        model_type="m",
        layers=tuple(Layer(index=i, cache=cache) for i, cache in enumerate(caches)),
        dtype=find_dtype(dtype),
        max_model_len=Length(tokens=8192, source="test"),
        hidden_size=config.get("hidden"),
        vocabulary_size=config.get("vocab"),
        query_heads=config.get("heads"),
    )


@pytest.mark.parametrize(
    "run", TENSORS["runs"], ids=lambda r: f"{r['model']}-{r['dtype']}-{r['batch']}-{r['prompt']}+{r['generated']}"
)
def test_bytes_of_real_tensors_are_predicted(run):
    config = TENSORS["configs"][run["model"]]
    token = 2 * config["kv"] * config["head"] * Dtype(run["dtype"]).bytes * run["batch"]
    for index, window in enumerate(windows_of(config)):
        for name, generated in (("after_prefill", 0), ("dynamic", run["generated"])):
            held = count_dynamic(run["prompt"], generated, window_tokens=window)
            tokens, size, behind = run[name][index]
            assert (held.kept_tokens, held.kept_tokens * token, held.stored_tokens * token) == (tokens, size, behind)
        tokens = count_static(run["prompt"] + run["generated"], window_tokens=window)
        assert [tokens, tokens * token, tokens * token] == run["static"][index]


@pytest.mark.parametrize(
    "run",
    [r for r in TENSORS["runs"] if r["generated"] > 1],
    ids=lambda r: f"{r['model']}-{r['dtype']}-{r['batch']}-{r['prompt']}",
)
def test_a_static_plan_has_the_bytes_of_the_real_cache(run):
    model = spec(TENSORS["configs"][run["model"]], run["dtype"])
    length = run["prompt"] + run["generated"]
    result = plan(model, cache="static", max_model_len=length, max_num_seqs=run["batch"])
    planned = sum(pool.units * result.ranks[0].unit_bytes[pool.name] for pool in result.pools)
    assert planned == sum(size for _, size, _ in run["static"])


@pytest.mark.parametrize("run", PAGED["runs"], ids=lambda r: f"{r['model']}-{r['attention']}-{r['dtype']}-{r['page']}")
def test_sectors_of_real_paged_caches_are_predicted(run):
    model = spec(PAGED["configs"][run["model"]], run["dtype"])
    options = {
        "cache": "continuous",
        "attention": "flash_attention" if run["attention"].startswith("flash") else run["attention"],
        "logits_to_keep": run["logits_to_keep"],
        "use_async_batching": run["async"],
        "return_logprobs": run["logprobs"],
        "max_blocks_per_request": 0,
        "block_tokens": run["page"],
    }
    if run["num_blocks"]:
        options["num_blocks"] = run["num_blocks"]
    if run["max_batch_tokens"]:
        options["max_num_batched_tokens"] = run["max_batch_tokens"]
    result = plan(model, memory=KvMemory.given(int(run["memory_bytes"] * 0.9)), **options)
    if "error" in run:
        assert result.failure is not None
        assert f"ValueError: {result.failure.text}" == run["error"]
        return
    assert [line.text for line in result.lines] == run["lines"]
    pool = result.pool("sectors")
    assert (pool.usable_units, result.ranks[0].unit_bytes["sectors"]) == (run["num_sectors"], run["bytes_per_sector"])
    assert pool.units * run["bytes_per_sector"] == run["tensor_bytes"]
    for content in result.ranks[0].contents:
        assert content.payload_bytes + content.page_padding_bytes == run["bytes_per_sector"]


@pytest.mark.parametrize(
    "run",
    [r for r in PAGED["runs"] if "error" not in r],
    ids=lambda r: f"{r['model']}-{r['attention']}-{r['dtype']}-{r['page']}",
)
def test_requests_of_real_paged_caches_are_counted(run):
    model = spec(PAGED["configs"][run["model"]], run["dtype"])
    geometry = find_geometry(model, page_tokens=run["page"], storage=Storage(kv=find_kv_format(run["dtype"])))
    assert {g.name: geometry.blocks_per_sector(g) for g in geometry.groups} == run["blocks_per_sector"]
    for length, blocks, storable in run["storable"]:
        assert {g.name: g.count_blocks(length) for g in geometry.groups} == blocks
        assert min(20000, count_storable_requests(geometry, run["num_sectors"], length)) == storable


def llama(length=4096):
    return read_layers("32x(kv=8,head=128)", max_model_len=length)


def test_a_static_cache_reserves_every_row():
    """4 rows x 4,096 x 131,072 B = 2 GiB, for requests of any length."""
    result = plan(llama(), cache="static", max_num_seqs=4)
    assert result.pool("full").units * result.ranks[0].unit_bytes["full"] == 2 * GIB
    assert result.count_units(10) == {"full": 4096}
    assert (result.count_requests(4096), result.count_requests(4097)) == (4, 0)


def test_a_dynamic_cache_holds_the_length():
    result = plan(llama(), max_num_seqs=4, memory=KvMemory.given(GIB))
    assert result.count_units(10) == {"full": 10}
    assert result.find_longest_tokens(requests=4) == 2048
    assert result.failure is not None
    assert (result.failure.needed_bytes, result.failure.largest_max_model_len) == (2 * GIB, 2048)


def test_windowed_layers_are_taken_off_first():
    """2 rows x 512 tokens x 5 layers x 1,024 B; the rest is for the full layer."""
    model = read_layers("1x(kv=1,head=256)+5x(kv=1,head=256,window=512)", max_model_len=100_000)
    memory = 2 * 512 * 5 * 1024 + 5000 * 1024
    result = plan(model, max_num_seqs=2, memory=KvMemory.given(memory))
    assert (result.pool("window 512").units, result.pool("full").units) == (1024, 5000)
    assert result.count_units(2000) == {"window 512": 512, "full": 2000}


def test_quantised_tokens_leave_a_residual_in_full_precision():
    """4 bits and 2 x 2 B for each 64 elements: 128 elements = 64 + 8 B instead of 256 B; 127 tokens wait in full."""
    result = plan(llama(), cache="quantised")
    assert result.ranks[0].unit_bytes == {"residual": 131072, "full": 32 * 2 * 8 * (64 + 8)}
    assert result.count_units(1000)["residual"] == 127
    assert count_quantised(100, 127) == (100, 127)
    assert count_quantised(100, 128) == (228, 0)


def test_fp8_keeps_a_byte_for_an_element():
    assert plan(llama(), cache="fp8").ranks[0].unit_bytes["full"] == 65536


def test_masks_take_most_of_the_memory_without_flash_attention():
    """The real cache of 512 MiB with sdpa and 8,192 batch tokens had 72 sectors of 98,304 B: 7 MiB."""
    run = PAGED["runs"][0]
    assert run["tensor_bytes"] < 0.02 * run["memory_bytes"]
    model = spec(PAGED["configs"][run["model"]], run["dtype"])
    result = plan(model, cache="continuous", logits_to_keep="off", memory=KvMemory.given(int(2**29 * 0.9)))
    assert any("takes 1 % of the memory" in note for note in result.notes)


@pytest.mark.parametrize(("device", "share"), [("cuda", 0.9), ("cpu", 0.6)])
def test_continuous_batching_takes_a_share_of_free_memory(device, share):
    deployment = Deployment(engine="transformers", version="5.24.0", device=device, options={"cache": "continuous"})
    budget = GpuBudget(total_bytes=40 * GIB, weights_bytes=16 * GIB, non_torch_bytes=0)
    assert model_memory(llama(), deployment, budget).smallest_bytes == int(24 * GIB * share)


@pytest.mark.parametrize(
    ("layers", "settings", "error", "words"),
    [
        ("1x(kv=1,head=64)", {"version": "4.57.0"}, UsageError, "known from 5.24.0"),
        ("1x(kv=1,head=64)", {"cache": "paged"}, UsageError, "must be one of dynamic"),
        ("1x(kv=1,head=64)", {"kv_dtype": "fp8"}, UsageError, "dtype of the activations"),
        ("1x(kv=1,head=64)", {"cache": "continuous"}, ModelError, "hidden size"),
        ("1x(latent=512,rope=64)", {"cache": "continuous"}, ModelError, "full and sliding-window attention only"),
        ("1x(kv=1,head=64)+1x(kv=2,head=64)", {"cache": "continuous"}, ModelError, "one head size"),
        ("1x(kv=1,head=64,window=8)", {"cache": "quantised"}, ModelError, "full attention in every layer"),
        ("1x(kv=1,head=64)", {"cache": "continuous", "block_tokens": 2}, UsageError, "at least 4"),
    ],
)
def test_what_is_not_known_is_refused(layers, settings, error, words):
    with pytest.raises(error, match=re.escape(words)):
        plan(read_layers(layers, max_model_len=1024), **settings)
