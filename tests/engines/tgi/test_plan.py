"""TGI's planner against its rules by hand."""

import pytest

from kvledger.engines.plan import Deployment, GpuBudget, KvMemory
from kvledger.engines.tgi import make_plan, model_memory
from kvledger.errors import ModelError, UsageError
from kvledger.model.by_hand import read_layers
from kvledger.units import GIB


def plan(layers="32x(kv=8,head=128)", *, version="3.3.4", memory=None, **settings):
    fields = {name: settings.pop(name) for name in ("tp", "speculative_tokens", "block_tokens") if name in settings}
    options = {name: str(value) for name, value in settings.items()}
    deployment = Deployment(engine="tgi", version=version, options=options, **fields)
    return make_plan(read_layers(layers, max_model_len=131072), deployment, memory or KvMemory.given(10 * GIB))


@pytest.mark.parametrize(
    ("attention", "block"), [("flashinfer", 1), ("paged", 16), ("flashdecoding-ipex", 64), ("flashdecoding", 256)]
)
def test_the_backend_decides_the_block(attention, block):
    """10 GiB / (block x 131,072 B)."""
    result = plan(attention=attention)
    blocks = 81920 // block
    assert [line.text for line in result.lines] == [
        f"KV-cache blocks: {blocks}, size: {block}",
        f"Setting max batch total tokens to {blocks * block}",
    ]


def test_blocks_of_the_warm_up_come_on_top():
    assert plan(warmup_blocks=128).pool("blocks").units == 81920 + 128


def test_a_request_reserves_its_prompt_and_all_it_may_generate():
    """input 100 + max_new_tokens 400: 499 tokens (the last one is never stored), in blocks of 16: 32."""
    assert plan().count_units(500) == {"blocks": 499}
    assert plan(attention="paged").count_units(500) == {"blocks": 32}
    assert plan(attention="paged").count_units(497) == {"blocks": 31}
    assert plan(speculative_tokens=3).count_units(500) == {"blocks": 502}
    assert plan().count_requests(500) == 81920 // 499


def test_tensor_parallelism_splits_the_heads():
    assert plan(tp=4).ranks[0].unit_bytes["blocks"] == 32768


def test_no_memory_is_a_failure():
    result = plan(memory=KvMemory.given(10))
    assert result.failure is not None
    assert result.failure.text.startswith("Not enough memory to handle prefill tokens")


def test_memory_is_nine_tenths_of_what_warm_up_leaves():
    memory = model_memory(
        read_layers("1x(kv=1,head=64)"),
        Deployment(engine="tgi", version="3.0.0"),
        GpuBudget(total_bytes=80 * GIB, weights_bytes=16 * GIB, activation_bytes=3 * GIB, non_torch_bytes=GIB),
    )
    assert memory.smallest_bytes == 54 * GIB


@pytest.mark.parametrize(
    ("layers", "settings", "error", "words"),
    [
        ("1x(kv=1,head=64)", {"version": "2.4.0"}, UsageError, "known from 3.0.0"),
        ("1x(kv=1,head=64)", {"block_tokens": 16}, UsageError, "has blocks of 1 token "),
        ("1x(latent=512,rope=64)", {}, ModelError, "latent"),
        ("1x(kv=1,head=64)+1x(kv=2,head=64)", {}, ModelError, "one shape"),
    ],
)
def test_what_is_not_known_is_refused(layers, settings, error, words):
    with pytest.raises(error, match=words):
        plan(layers, **settings)
