"""Plans of unusual models: what is grouped, what is refused, and what each line says."""

import pytest

from kvledger.engines.plan import ClaimKind, Deployment, KvMemory
from kvledger.engines.vllm import make_plan
from kvledger.errors import ModelError
from kvledger.model.by_hand import read_layers
from kvledger.model.catalogue import find_model

GIB = 2**30


def plan(model, version="0.32", kv_bytes=20 * GIB, **values):
    spec = read_layers(model, max_model_len=8192) if "(" in model else find_model(model)
    return make_plan(spec, Deployment(engine="vllm", version=version, **values), KvMemory.given(kv_bytes))


def lines(out):
    return "\n".join(line.text for line in out.lines)


def test_an_encoder_is_charged_in_full_at_any_length():
    """Decoder of 4 layers and cross attention over 1,500 tokens: two groups, ceil(1,500 / 16) = 94 blocks at least."""
    out = plan("4x(kv=20,head=64)+4x(kv=20,head=64,cross=1500)")
    assert [claim.kind for claim in out.claims] == [ClaimKind.FULL, ClaimKind.CROSS]
    assert (out.count_units(1)["blocks"], out.count_units(448)["blocks"]) == (95, 28 + 94)


def test_layers_that_share_a_cache_are_not_charged():
    """Gemma-3n-E4B: 35 layers, the last 15 read an earlier cache; 16 windowed and 4 full layers remain."""
    assert sum(claim.layers for claim in plan("gemma-3n-e4b").claims) == 20


def test_chunks_are_capped_at_a_chunk_and_what_is_in_flight():
    """Llama-4-Scout at 131,072, T = 2 x 8,192: 8,192 full blocks, 3 x ceil((8,192 + 16,384) / 16) = 4,608 blocks."""
    out = plan("llama-4-scout-17b-16e", kv_bytes=40 * GIB, max_model_len=131_072)
    assert out.count_units(131_072)["blocks"] == 8192 + 3 * 1536


@pytest.mark.parametrize("version", ["0.9", "0.11"])
def test_pages_of_several_sizes_were_refused_before_0_12(version):
    with pytest.raises(ModelError, match="pages of several sizes"):
        plan("3x(kv=8,head=64,window=100)+1x(kv=4,head=64)", version)


def test_pages_that_do_not_divide_were_refused_before_0_24():
    model = "3x(kv=3,head=96,window=100)+1x(kv=8,head=128)"
    with pytest.raises(ModelError, match="do not divide the largest one"):
        plan(model, "0.23")
    assert plan(model, "0.24").ranks[0].contents[0].page_padding_bytes == 16 * 4096 - 16 * 1152


def test_windows_beside_latents_lose_their_window_where_pages_cannot_be_unified():
    """The window's page is larger than the latent's and no multiple of it; latents cannot be padded."""
    out = plan("3x(latent=512,rope=64)+1x(kv=4,head=128,window=512)", "0.32")
    assert len(out.claims) == 1
    assert "KV cache page sizes cannot be unified; treating sliding-window layers as full attention" in lines(out)


def test_states_without_the_hybrid_manager_are_refused():
    with pytest.raises(ModelError, match="hybrid manager is off"):
        plan("qwen3.5-27b", options={"disable_hybrid_kv_cache_manager": "on"})


def test_a_model_without_any_cache_is_refused():
    with pytest.raises(ModelError, match="no layer keeps a KV cache"):
        plan("4x(none)")


def test_a_stage_without_any_cache_is_refused():
    with pytest.raises(ModelError, match="pipeline stage 1 holds no layer"):
        plan("2x(kv=8,head=64)+2x(none)", pp=2)


def test_a_state_only_model_counts_requests_not_tokens():
    """Two states of 1 MB in one group: a block is a request's state, so blocks are requests."""
    out = plan("2x(state=1000000)", "0.19", kv_bytes=2_000_000 * 100)
    assert (out.pools[0].units, out.count_units(5)["blocks"], out.count_requests(8192)) == (100, 1, 99)


@pytest.mark.parametrize(
    ("version", "device", "start"),
    [("0.8", "cuda", "GPU KV cache size"), ("0.29", "cpu", "GPU KV cache size"), ("0.30", "xpu", "XPU KV cache size")],
)
def test_the_size_line_names_the_device_from_0_30(version, device, start):
    assert any(line.text.startswith(start) for line in plan("llama-3.1-8b", version, device=device).lines)


def test_every_line_has_a_meaning_and_an_accuracy():
    out = plan("qwen3.5-27b", "0.19", max_model_len=8192)
    assert all(len(line.meaning) > 20 and line.accuracy for line in out.lines)


def test_v0_refuses_what_it_kept_outside_its_blocks():
    with pytest.raises(ModelError, match="outside its blocks"):
        plan("qwen3.5-27b", "0.7")


def test_0_12_sizes_keys_and_values_alike():
    """Up to 0.13 a page has the keys' size twice: values of 64 beside keys of 128 cost 2 x 128 a head."""
    before, after = (plan("2x(kv=8,key=128,value=64)", version) for version in ("0.12", "0.14"))
    assert (before.ranks[0].unit_bytes["blocks"], after.ranks[0].unit_bytes["blocks"]) == (131_072, 98_304)


def test_smaller_blocks_for_windows_between_0_25_and_0_30():
    """--block-size 64: full layers of 8,192 B a token beside windows of 16,384 B. Up to 0.24 both have 64 tokens and
    the full layers 128; from 0.25 windows begin with 16, so their page is half the full one and they get 32."""
    model = "3x(kv=16,head=256,window=1024)+3x(kv=8,head=256)"
    blocks = {
        version: {claim.kind: claim.unit_tokens for claim in plan(model, version, block_tokens=64).claims}
        for version in ("0.24", "0.25", "0.31")
    }
    assert blocks["0.24"] == blocks["0.31"] == {ClaimKind.WINDOW: 64, ClaimKind.FULL: 128}
    assert blocks["0.25"] == {ClaimKind.WINDOW: 32, ClaimKind.FULL: 64}


def test_several_modules_of_a_draft_keep_windows_longer():
    """Three proposed tokens with a module each: 2 more tokens behind the window."""
    options = {"multi_module_mtp": "on", "draft_layers": "1"}
    reach = [
        next(c for c in plan("gpt-oss-20b", v, speculative_tokens=3, options=options).claims if c.window_tokens)
        for v in ("0.27", "0.28")
    ]
    assert reach[1].reach_tokens - reach[0].reach_tokens == 2


def test_stages_that_group_their_layers_differently_are_refused():
    """Gemma-3-4B in two stages of 17 layers: 2 full and 15 windowed are 9 groups of two, 3 and 14 are 6 of three."""
    with pytest.raises(ModelError, match=r"different groups \(9 and 6 of them\)"):
        plan("gemma-3-4b", version="0.9.2", pp=2)
    assert plan("gemma-3-4b", version="0.33", pp=2).failure is None


def test_groups_of_later_stages_are_told_apart_by_kind_not_by_place():
    """Two stages that begin with another kind: the first with the full layer, the second with a windowed one."""
    full, window = "1x(kv=2,head=64)", "1x(kv=2,head=64,window=128)"
    out = plan(f"{full}+{window}+{window}+{full}", version="0.9.2", pp=2)
    assert [claim.kind for claim in out.claims] == [ClaimKind.FULL, ClaimKind.WINDOW]
    assert [content.claim for content in out.ranks[1].contents] == ["full #1", "window 128 #1"]
