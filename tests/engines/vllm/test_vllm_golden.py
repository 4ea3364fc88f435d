"""Numbers that real vLLM servers printed, recomputed from the model and the flags.

The bytes are those that give the printed blocks: a printed size in GiB has two decimals, so it stands for an interval,
and the block count inside it is fixed by the printed tokens.
"""

import pytest

from kvledger.engines.plan import Deployment, KvMemory
from kvledger.engines.vllm import make_plan
from kvledger.model.by_hand import read_layers
from kvledger.model.catalogue import find_model

GIB = 2**30


def plan(model, version, kv_bytes, *, options=None, **settings):
    """Plan a catalogue model, or layers stated by hand."""
    spec = read_layers(model, max_model_len=131072) if "(" in model else find_model(model)
    deployment = Deployment(engine="vllm", version=version, options=options or {}, **settings)
    return make_plan(spec, deployment, KvMemory.given(kv_bytes))


def lines(plan_):
    """Return the printed lines as one text."""
    return "\n".join(line.text for line in plan_.lines)


def plans_within(printed_gib, model, version, **settings):
    """Return one plan for every block count that a printed number of GiB can stand for (0.005 GiB either way)."""
    low, high = (round((printed_gib + d) * GIB) for d in (-0.005, 0.005))
    probe = plan(model, version, high, **settings)
    unit = next(iter(probe.ranks[0].unit_bytes.values()))
    return [plan(model, version, blocks * unit, **settings) for blocks in range(low // unit, high // unit + 1)]


def printed_within(printed_gib, tokens, concurrency, model, version, **settings):
    """Tell whether bytes within a printed number of GiB give the printed tokens and concurrency."""
    plans = plans_within(printed_gib, model, version, **settings)
    return (tokens, concurrency) in [(p.printed_tokens, f"{p.printed_concurrency:.2f}") for p in plans]


def test_v1_of_0_7_prints_blocks_and_a_concurrency():
    """Llama-3.1-70B, PR #12569: 1,381 blocks of 16 tokens / 2,048 = 10.79."""
    out = plan("llama-3.1-70b", "0.7", 1381 * 16 * 327_680, max_model_len=2048, options={"core": "v1"})
    assert lines(out) == "# GPU blocks: 1381\nMaximum concurrency for 2048 tokens per request: 10.79x"


def test_0_8_prints_tokens_with_a_comma():
    """PR #13596: 127,626 blocks x 16 = 2,042,016 tokens, / 2,048 = 997.08."""
    out = plan("1x(kv=1,head=64)", "0.8", 127_626 * 16 * 256, max_model_len=2048)
    assert lines(out) == (
        "GPU KV cache size: 2,042,016 tokens\nMaximum concurrency for 2,048 tokens per request: 997.08x"
    )


def test_v0_turns_bytes_into_blocks():
    """Llama-3.1-8B, #10517: 3.81 GiB / 2 MiB = 1,950 to 1,953 blocks, 1,952 printed; x 16 / 20,000 = 1.56."""
    plans = plans_within(3.81, "llama-3.1-8b", "0.6.4", max_model_len=20_000)
    assert (1952, "1.56") in [(p.pools[0].units, f"{p.printed_concurrency:.2f}") for p in plans]


def test_v0_refuses_a_request_longer_than_the_pool():
    """#10517: 2.89 GiB give 1,478 blocks, 0.82x of 29,000, and the error names 1,478 x 16 = 23,648."""
    plans = plans_within(2.89, "llama-3.1-8b", "0.6.4", max_model_len=29_000)
    found = [p for p in plans if p.pools[0].units == 1478]
    assert [f"{p.printed_concurrency:.2f}" for p in found] == ["0.82"]
    assert "(29000) is larger than the maximum number of tokens that can be stored in KV cache (23648)" in (
        found[0].failure.text
    )


def test_llama_8b_at_its_full_length():
    """#12330: 19.28 GiB / (16 x 131,072 B) = 9,871 blocks = 157,936 tokens, 1.20 x 131,072."""
    assert printed_within(19.28, 157_936, "1.20", "llama-3.1-8b", "0.8", max_model_len=131_072)


@pytest.mark.parametrize(
    ("version", "concurrency"),
    [("0.8", "134.19"), ("0.9", "178.68")],
)
def test_a_windowed_model_is_charged_for_its_window_from_0_9(version, concurrency):
    """starcoder2-3b, PR #19029: 137,407 blocks x 16 / 16,384 = 134.19 before; after, a request takes at most
    ceil((4,095 + 8,192) / 16) + 1 = 769 blocks, and 137,407 / 769 = 178.68."""
    kv_bytes = 137_407 * 16 * 30_720
    out = plan("starcoder2-3b", version, kv_bytes, max_model_len=16_384, max_num_batched_tokens=8192)
    assert (out.printed_tokens, f"{out.printed_concurrency:.2f}") == (2_198_512, concurrency)


def test_qwen35_27b_before_tokens_followed_concurrency():
    """#40691, 0.19.0: state 3,207,168 B -> block 16 x ceil(3,207,168 / 65,536) = 784; 1,487 blocks in 4 groups give
    371 x 784 = 290,864 tokens; a request takes 42 + 3 blocks: 33.04."""
    out = plan("qwen3.5-27b", "0.19.0", 1487 * 16 * 784 * 4096, max_model_len=32_768)
    assert (out.deployment.block_tokens, out.printed_tokens, f"{out.printed_concurrency:.2f}") == (
        784,
        290_864,
        "33.04",
    )


def test_qwen35_27b_after_tokens_followed_concurrency():
    """The same pool in 0.20.1 prints int(1,487 / 45 x 32,768) = 1,082,800."""
    out = plan("qwen3.5-27b", "0.20.1", 1487 * 16 * 784 * 4096, max_model_len=32_768)
    assert out.printed_tokens == 1_082_800
    assert plan("qwen3.5-27b", "0.20", 1487 * 16 * 784 * 4096, max_model_len=32_768).printed_tokens == 1_082_800
    assert plan("qwen3.5-27b", "0.20.0", 1487 * 16 * 784 * 4096, max_model_len=32_768).printed_tokens == 290_864


def test_qwen35_9b_on_two_ranks():
    """PR #36317, 0.17: state (24,576 + 1,048,576) B / (16 x 2,048) -> block 528, 0.76 % padding; 20.79 GiB / (8 x 528 x
    2,048 B) = 2,580 blocks: 645 x 528 = 340,560 tokens, 2,580 / (4 + 3) = 368.57."""
    plans = plans_within(20.79, "qwen3.5-9b", "0.17", max_model_len=2048, tp=2)
    found = [p for p in plans if p.pools[0].units == 2580]
    assert [(p.printed_tokens, f"{p.printed_concurrency:.2f}") for p in found] == [(340_560, "368.57")]
    assert "Setting attention block size to 528 tokens" in lines(found[0])
    assert "Padding mamba page size by 0.76%" in lines(found[0])


def test_gpt_oss_needs_its_windows_and_full_layers():
    """#27508: (8,192 + ceil((127 + 1,024) / 16) + 1) blocks x 18 layers x 32,768 B = 4.54 GiB."""
    out = plan("gpt-oss-120b", "0.11", 4 * GIB, max_model_len=131_072, max_num_batched_tokens=1024)
    assert "(4.54 GiB KV cache is needed" in out.failure.text


@pytest.mark.parametrize(("version", "needed"), [("0.25.1", "45.79"), ("0.26", "70.79")])
def test_gemma4_needs_more_when_two_batches_are_in_flight(version, needed):
    """#49878: 8,192 full blocks of 32 tokens and 5 times ceil((1,023 + T) / 16) + 1, of 2.5 MiB each: T = 32,768
    gives 8,192 + 5 x 2,113 = 18,757 blocks = 45.79 GiB, T = 65,536 gives 28,997 blocks = 70.79 GiB."""
    out = plan("gemma-4-31b", version, 40 * GIB, max_model_len=262_144, max_num_batched_tokens=32_768)
    assert f"({needed} GiB KV cache is needed" in out.failure.text


def test_qwen3_30b_needs_24_gib_for_262144_tokens():
    """#34076: 262,144 x 98,304 B = 24.0 GiB."""
    out = plan("qwen3-30b-a3b", "0.17", 20 * GIB, max_model_len=262_144)
    assert "(24.0 GiB KV cache is needed" in out.failure.text


@pytest.mark.parametrize(
    ("version", "padding"),
    [
        ("0.11", "Add 17 padding layers, may waste at most 89.47%"),
        ("0.13", "Add 1 padding layers, may waste at most 5.56%"),
    ],
)
def test_gpt_oss_with_a_draft_is_padded_less_from_0_12(version, padding):
    """PR #29303: 18 windowed and 19 full layers; 18 wide leaves 17 of 19 short (89.47 %), 19 wide one of 18."""
    out = plan(
        "gpt-oss-120b",
        version,
        20 * GIB,
        max_model_len=8192,
        speculative_tokens=3,
        options={"speculative_method": "eagle3", "draft_layers": "1"},
    )
    assert padding in lines(out)


@pytest.mark.parametrize(("version", "block"), [("0.10.2", 672), ("0.13", 1312)])
def test_nemotron_nano_has_wider_blocks_once_the_config_decides_the_state_dtype(version, block):
    """#24280: 2,695,168 B of state in bf16 / (16 x 4,096 B) -> 42 x 16 = 672; its config asks for float32, which vLLM
    reads from 0.13 on: 5,316,608 B -> 82 x 16 = 1,312."""
    assert plan("nemotron-nano-9b-v2", version, 20 * GIB).deployment.block_tokens == block


def test_a_pipeline_is_sized_by_its_widest_stage():
    """#34076: 48 layers on 5 stages are 9, 10, 10, 10, 9; 10 layers x 16 x 2,048 B = 327,680 B; 10 GiB = 32,768."""
    out = plan("qwen3-30b-a3b", "0.20", 10 * GIB, max_model_len=8192, pp=5)
    assert [rank.unit_bytes["blocks"] // (16 * 2048) for rank in out.ranks] == [9, 10, 10, 10, 9]
    assert out.pools[0].units == 32_768
