"""The structural ledger balances for any plan, and its entries are what arithmetic says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.engines.plan import Deployment, KvMemory
from kvledger.engines.structure import Moment, draw_up
from kvledger.engines.vllm import make_plan
from kvledger.errors import CapacityError, ModelError, UsageError
from kvledger.ledger import Account
from kvledger.model.by_hand import read_layers
from kvledger.model.catalogue import find_model

GIB = 2**30
MODELS = [
    "4x(kv=8,head=64)",
    "6x(kv=4,head=64,window=100)+2x(kv=4,head=64)",
    "5x(kv=2,head=96,window=300)+3x(kv=8,head=64)",
    "3x(kv=8,head=64,chunk=256)+1x(kv=8,head=64)",
    "7x(state=70000)+2x(kv=2,head=64)",
    "4x(latent=512,rope=64,index=128)",
    "4x(latent=512,rope=64)",
]


def plan(model, kv_bytes=GIB, version="0.32", **values):
    spec = read_layers(model, max_model_len=4096) if "(" in model else find_model(model)
    return make_plan(spec, Deployment(engine="vllm", version=version, **values), KvMemory.given(kv_bytes))


@settings(max_examples=150, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    version=st.sampled_from(["0.12", "0.19", "0.22", "0.26", "0.32"]),
    parallel=st.sampled_from([{}, {"tp": 2}, {"tp": 4, "dp": 2}, {"tp": 4, "dcp": 2}, {"pp": 2}]),
    kv_mib=st.integers(64, 512),
    length=st.integers(1, 4096),
    moment=st.sampled_from(list(Moment)),
    proposed=st.sampled_from([0, 2]),
)
def test_every_sheet_balances(model, version, parallel, kv_mib, length, moment, proposed):
    spec = read_layers(model, max_model_len=4096)
    deployment = Deployment(
        engine="vllm",
        version=version,
        speculative_tokens=proposed,
        options={"speculative_method": "ngram"} if proposed else {},
        max_num_batched_tokens=512,
        **parallel,
    )
    try:
        out = make_plan(spec, deployment, KvMemory.given(kv_mib * 2**20))
    except (ModelError, UsageError):
        return
    drawn = draw_up(out, length_tokens=length, moment=moment)
    assert all(sheet.check() for sheet in (*drawn.ranks, drawn.deployment))
    ranks = sum(sheet.ledger.capacity * rank.count for sheet, rank in zip(drawn.ranks, out.ranks, strict=True))
    assert drawn.deployment.ledger.capacity == ranks
    assert drawn.deployment.ranks == out.deployment.ranks


@settings(max_examples=60, deadline=None)
@given(model=st.sampled_from(MODELS), length=st.integers(1, 4096))
def test_what_is_used_on_one_rank_is_what_the_model_needs(model, length):
    """Without parallelism, `used` is the number of requests times the bytes of the readable tokens and the states."""
    spec = read_layers(model, max_model_len=4096)
    drawn = draw_up(plan(model), length_tokens=length, requests=1)
    assert drawn.ranks[0].ledger.used == spec.sequence_bytes(length)


def test_the_parts_of_a_dense_model_at_full_load():
    """32 layers x 4,096 B; 512 MiB = 256 blocks of 2 MiB; requests of 1,001 tokens take 63 blocks: 4 of them use
    4 x 1,001 x 131,072 B, lose 4 x 7 slots to tails, one block is the null block, 3 blocks are free."""
    sheet = draw_up(plan("llama-3.1-8b", 512 * 2**20), length_tokens=1001).ranks[0]
    assert sheet.ledger.used == 4 * 1001 * 131_072
    assert sheet.find("block tails") == 4 * 7 * 131_072
    assert sheet.find("null blocks") == 16 * 131_072
    assert sheet.ledger.free == 3 * 16 * 131_072


def test_padding_layers_and_windows_of_gemma3():
    """52 windowed and 10 full layers in groups of 10: groups of 9, 9, 9, 9, 8 and 8, so one request of 4,096 tokens
    with T = 2 x 256 leaves 8 layers x (ceil((1,023 + 512) / 16) + 1 = 97) blocks x 131,072 B of padding layers."""
    out = plan("gemma-3-27b", 8 * GIB, max_model_len=4096, max_num_batched_tokens=256)
    sheet = draw_up(out, length_tokens=4096, requests=1).ranks[0]
    page = 16 * 8192
    assert sheet.find("padding layers") == 8 * 97 * page
    assert sheet.find("block in which a window begins") == 52 * page
    assert sheet.find("charged for tokens in flight") == 52 * (1535 - 1024) * 8192


def test_windows_hold_less_while_decoding_than_they_are_charged():
    """A window of 1,024 that ends at token 4,000 reaches from 2,976 to 3,999: blocks 186 to 249, no tail at all."""
    out = plan("gemma-3-27b", 8 * GIB, max_model_len=4096, max_num_batched_tokens=256)
    sheet = draw_up(out, length_tokens=4000, requests=1, moment=Moment.DECODING).ranks[0]
    assert sheet.ledger.reserved == 0
    assert sheet.find("block tails") == 0
    later = draw_up(out, length_tokens=4001, requests=1, moment=Moment.DECODING).ranks[0]
    assert later.find("block in which a window begins") + later.find("block tails") == (52 * 16 + 10 * 15) * 8192


def test_a_second_state_doubles_what_prefix_caching_keeps():
    """Qwen3.5-27B in align mode: 48 states of 3,207,168 B in use and as many for reuse; padding 4,096 B each."""
    sheet = draw_up(plan("qwen3.5-27b", 20 * GIB, max_model_len=8192), requests=1).ranks[0]
    assert sheet.find("second states, for prefix reuse") == 48 * 3_207_168
    assert sheet.find("page padding") == 2 * 48 * 4096


def test_latents_are_copied_to_every_rank():
    """DeepSeek-V3 on 8 ranks: seven eighths of what is stored are copies; decode context parallelism leaves none."""
    copied = draw_up(plan("deepseek-v3", 20 * GIB, tp=8, max_model_len=8192), requests=4).deployment
    assert copied.find("copies on other ranks") == 7 * copied.ledger.used
    spread = draw_up(plan("deepseek-v3", 20 * GIB, tp=8, dcp=8, max_model_len=8192), requests=4).deployment
    assert (spread.find("copies on other ranks"), spread.ledger.used) == (0, copied.ledger.used)


def test_heads_that_cannot_be_split_are_copied():
    """8 KV heads on 16 ranks: half of what is stored are copies."""
    sheet = draw_up(plan("llama-3.1-8b", 2 * GIB, tp=16, max_model_len=8192), requests=4).deployment
    assert sheet.find("copies on other ranks") == sheet.ledger.used


def test_what_a_larger_rank_cannot_use_is_outside_the_pool():
    """Stages of 16 layers, 1 MiB a block: 3 GiB and 2 GiB give 2,048 blocks both; 1 GiB stays unallocated."""
    spec = find_model("llama-3.1-8b")
    memory = KvMemory.given(3 * GIB, 2 * GIB)
    out = make_plan(spec, Deployment(engine="vllm", version="0.32", pp=2, max_model_len=8192), memory)
    drawn = draw_up(out)
    assert [sheet.unallocated_bytes for sheet in drawn.ranks] == [GIB, 0]
    assert drawn.deployment.unallocated_bytes == GIB


def test_a_load_that_does_not_fit_is_refused_with_the_number_that_does():
    with pytest.raises(CapacityError, match="9 requests of 8,192 tokens do not fit: the pool holds 1"):
        draw_up(plan("llama-3.1-8b", 2 * GIB, max_model_len=8192), requests=9)


def test_a_load_without_tokens_is_refused():
    with pytest.raises(UsageError, match="at least 1 token"):
        draw_up(plan("llama-3.1-8b", 2 * GIB, max_model_len=8192), length_tokens=0)


def test_every_account_that_a_plan_can_fill_is_shown():
    drawn = draw_up(plan("qwen3.5-27b", 20 * GIB, max_model_len=8192))
    assert {e.account for e in drawn.ranks[0].entries} == {
        Account.USED,
        Account.INTERNAL,
        Account.UNATTRIBUTED,
        Account.FREE,
    }
