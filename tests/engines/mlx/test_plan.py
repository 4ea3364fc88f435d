"""MLX-LM's planner against real cache objects of mlx-lm 0.32.2."""

import json
from pathlib import Path

import pytest

from kvledger.engines.mlx import make_plan, model_memory
from kvledger.engines.mlx.caches import count_plain_tokens, count_rotating_tokens, quantised_format
from kvledger.engines.plan import Deployment, GpuBudget, KvMemory
from kvledger.errors import ModelError, UsageError
from kvledger.model.by_hand import read_layers
from kvledger.units import GIB

RECORD = json.loads((Path(__file__).parents[2] / "data" / "mlx-lm-0.32.2" / "caches.json").read_text())
HEADS, HEAD = RECORD["kv_heads"], RECORD["head_size"]


def predict(run, generated):
    """Bytes of one layer after the prompt and so many steps."""
    length = max(0, run["prompt"] - 1) + generated
    name = run["cache"]
    plain = 2 * HEADS * HEAD * 2
    if name.startswith("rotating"):
        size = int(name.split("-")[1])
        return count_rotating_tokens(run["prompt"], generated, max_tokens=size) * plain
    if name == "plain":
        return count_plain_tokens(length) * plain
    side = quantised_format(int(name.split("-")[1]), 64, 2).side_bytes(HEAD)
    return count_plain_tokens(length) * 2 * HEADS * side


@pytest.mark.parametrize("run", RECORD["runs"], ids=lambda r: f"{r['cache']}-{r['prompt']}+{r['generated']}")
def test_bytes_of_real_caches_are_predicted(run):
    assert predict(run, 0) == run["after_prefill_bytes"]
    assert predict(run, run["generated"]) == run["bytes"]


@pytest.mark.parametrize("run", RECORD["random_rotating_runs"], ids=str)
def test_rotating_caches_of_any_size_and_chunk_are_predicted(run):
    for generated, name in ((0, "after_prefill_bytes"), (run["generated"], "bytes")):
        tokens = count_rotating_tokens(
            run["prompt"], generated, max_tokens=run["size"], prefill_step_tokens=run["step"]
        )
        assert tokens * 2 * HEADS * HEAD * 2 == run[name]


def plan(layers="32x(kv=8,head=128)", *, version="0.32.2", memory=None, **settings):
    fields = {name: settings.pop(name) for name in ("max_num_seqs", "tp", "kv_dtype") if name in settings}
    options = {name: str(value) for name, value in settings.items()}
    deployment = Deployment(engine="mlx-lm", version=version, device="metal", options=options, **fields)
    return make_plan(read_layers(layers, max_model_len=131072), deployment, memory or KvMemory.given(GIB))


def test_a_request_grows_in_steps_of_256():
    """1 GiB / (256 x 131,072 B) = 32 steps."""
    result = plan()
    assert result.pool("growing").units == 32
    assert (result.count_units(256), result.count_units(257)) == ({"growing": 1}, {"growing": 2})
    assert result.find_longest_tokens() == 8192


def test_windowed_layers_rotate_and_the_others_grow():
    result = plan("1x(kv=1,head=256)+5x(kv=1,head=256,window=512)", max_num_seqs=2)
    assert result.pool("rotating 512").units == 1024
    assert result.count_units(1000) == {"rotating 512": 512, "growing": 4}


def test_a_size_limit_makes_every_layer_rotate():
    result = plan(max_kv_size=4096)
    assert [pool.name for pool in result.pools] == ["rotating 4096"]


def test_quantised_caches_keep_a_scale_and_a_bias_for_each_group():
    """128 elements: 64 B and 2 groups x 2 x 2 B a side."""
    assert plan(kv_bits=4).ranks[0].unit_bytes["growing"] == 256 * 32 * 2 * 8 * (64 + 8)


def test_memory_is_three_quarters_of_what_the_machine_has():
    budget = GpuBudget(total_bytes=64 * GIB, weights_bytes=16 * GIB, activation_bytes=GIB, non_torch_bytes=0)
    memory = model_memory(read_layers("1x(kv=1,head=64)"), Deployment(engine="mlx-lm", version="0.32.2"), budget)
    assert memory.smallest_bytes == 31 * GIB


def test_less_than_one_step_is_a_failure():
    result = plan(memory=KvMemory.given(1000))
    assert result.failure is not None
    assert result.failure.needed_bytes == 256 * 131072


@pytest.mark.parametrize(
    ("layers", "settings", "error", "words"),
    [
        ("1x(kv=1,head=64)", {"version": "0.20.0"}, UsageError, "known from 0.32.0"),
        ("1x(kv=1,head=64)", {"kv_bits": 5}, UsageError, "must be 2, 3, 4, 6 or 8"),
        ("1x(kv=1,head=64)", {"kv_bits": 4, "max_kv_size": 512}, UsageError, "cannot quantise a rotating cache"),
        ("1x(kv=1,head=64)", {"tp": 2}, UsageError, "has no setting `tp`"),
        ("1x(kv=1,head=64)", {"kv_dtype": "fp8"}, UsageError, "use `kv_bits`"),
        ("1x(kv=1,head=64,chunk=64)", {}, ModelError, "chunked attention"),
        ("1x(latent=512,rope=64,index=128)", {}, ModelError, "index keys"),
    ],
)
def test_what_is_not_known_is_refused(layers, settings, error, words):
    with pytest.raises(error) as caught:
        plan(layers, **settings)
    assert words in f"{caught.value.message} {caught.value.hint}"
