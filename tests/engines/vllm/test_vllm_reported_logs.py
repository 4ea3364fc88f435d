"""Start-up lines from public reports (vLLM issues and logs), recomputed to the printed digit.

The ids are those of the collected cases. Each test states the shape, the version and the arithmetic; a size printed in
GiB is an interval, see ``plans_within``.
"""

import json

import pytest

from kvledger.engines.plan import Deployment, KvMemory
from kvledger.engines.vllm import make_plan
from kvledger.model.by_hand import read_layers
from tests.engines.vllm.test_vllm_golden import GIB, lines, plan, plans_within, printed_within

QWEN_27B = "qwen3.5-27b"
QWEN_35B = "qwen3.5-35b-a3b"
COVERED = set()


def case(*ids):
    """Mark which collected cases a test recomputes."""
    COVERED.update(ids)
    return lambda test: test


def gqa(layers, heads, size=128):
    return f"{layers}x(kv={heads},head={size})"


def forced(model, version, blocks, **settings):
    """Plan a pool of so many blocks."""
    probe = plan(model, version, GIB * 64, **settings)
    return plan(model, version, blocks * probe.ranks[0].unit_bytes["blocks"], **settings)


def failures_within(printed_gib, model, version, **settings):
    return [p.failure for p in plans_within(printed_gib, model, version, **settings) if p.failure]


@case("K1-002")
def test_28_layers_of_4_heads():
    """57,344 B a token: 13.1 GiB hold 15,335 blocks x 16 = 245,360 tokens, / 32,768 = 7.49."""
    found = [p for p in plans_within(13.1, gqa(28, 4), "0.16", max_model_len=32_768) if p.printed_tokens == 245_360]
    assert [f"{p.printed_concurrency:.2f}" for p in found] == ["7.49"]
    assert "Available KV cache memory: 13.1 GiB" in lines(found[0])


@case("K1-003")
def test_36_layers_on_one_line():
    """147,456 B a token: 36.88 GiB hold 16,785 blocks = 268,560 tokens; quantised weights change nothing."""
    found = [p for p in plans_within(36.88, gqa(36, 8), "0.32", max_model_len=2048) if p.printed_tokens == 268_560]
    text = "GPU KV cache size: 268,560 tokens, Maximum concurrency for 2,048 tokens per request: 131.13x"
    assert [line.text for line in found[0].lines if "KV cache size" in line.text] == [text]


@case("K1-004")
def test_an_eagle_draft_adds_a_layer():
    """32 + 1 layers x 4,096 B = 135,168 B a token: 51.63 GiB hold 410,128 tokens, 3.13 x 131,072."""
    settings = {
        "max_model_len": 131_072,
        "speculative_tokens": 3,
        "options": {"speculative_method": "eagle", "draft_layers": "1"},
    }
    assert printed_within(51.63, 410_128, "3.13", "llama-3.1-8b", "0.9.1.dev705", **settings)
    assert not printed_within(51.63, 410_128, "3.13", "llama-3.1-8b", "0.9.1.dev705", max_model_len=131_072)


@case("K1-005")
def test_two_ranks_each_hold_half_the_heads():
    """48 layers x 4 heads a rank = 98,304 B a token and rank: 151.25 GiB hold 1,652,080 tokens."""
    assert printed_within(151.25, 1_652_080, "403.34", gqa(48, 8), "0.9.2", max_model_len=4096, tp=2)


@case("K1-007")
def test_fp8_stores_one_byte_an_element():
    """48 x 4 x 256 B = 49,152 B a token: 10.55 GiB hold 230,528 tokens, / 100,000 = 2.31."""
    settings = {"max_model_len": 100_000, "kv_dtype": "fp8"}
    assert printed_within(10.55, 230_528, "2.31", gqa(48, 4), "0.10.2", **settings)


@case("K1-008")
def test_the_longest_length_of_an_error():
    """221,000 tokens need 13,813 blocks x 786,432 B = 10.12 GiB; 5.59 GiB hold 7,630 blocks = 122,080 tokens."""
    found = failures_within(5.59, gqa(48, 4), "0.10.2", max_model_len=221_000, kv_dtype="fp8")
    assert 122_080 in {f.largest_max_model_len for f in found}
    assert all("models's max seq len (221000), (10.12 GiB KV cache is needed" in f.text for f in found)


@case("K1-009")
def test_a_block_of_256_tokens_shows_in_the_estimate():
    """0.71 GiB / (256 x 131,072 B) = 22 blocks = 5,632 tokens; blocks of 16 would give about 5,800."""
    found = failures_within(0.71, "llama-3.1-8b", "0.9.2", max_model_len=131_072, block_tokens=256)
    assert {f.largest_max_model_len for f in found} == {5632}
    assert all("(16.00 GiB KV cache is needed" in f.text for f in found)


@case("K1-011")
def test_0_14_compares_the_whole_model_with_one_stage():
    """92 layers x 4,096 B: 202,752 tokens need 71.16 GiB; one of 8 stages needs 8.9 GiB of its 28.57 GiB.

    The text comes from 0.14; in 0.17 the same pipeline starts.
    """
    settings = {"max_model_len": 202_752, "pp": 8}
    kv_bytes = [round((28.57 + d) * GIB) for d in (-0.005, 0, 0.005)]
    texts = [plan(gqa(92, 8), "0.14", b, **settings).failure for b in kv_bytes]
    assert all("(71.16 GiB KV cache is needed" in f.text for f in texts)
    assert 81_392 in {f.largest_max_model_len for f in texts}
    assert plan(gqa(92, 8), "0.17", kv_bytes[1], **settings).failure is None


@pytest.mark.parametrize(
    ("model", "version", "device", "printed", "blocks", "cpu_blocks", "length", "concurrency"),
    [
        ("28x(kv=4,head=128)", "0.7.3", "cuda", "CUDA", 14_984, 4681, 2048, "117.06"),
        ("28x(kv=8,head=128)", "0.8.5", "rocm", "rocm", 6495, 2340, 40_960, "2.54"),
        ("llama-3-8b", "0.6.6", "cuda", "GPU", 5691, 2048, 8192, "11.12"),
    ],
)
@case("K1-015", "K1-017", "K1-019")
def test_v0_prints_blocks_for_device_and_host(model, version, device, printed, blocks, cpu_blocks, length, concurrency):
    """4 GiB of swap space / (16 x 57,344), (16 x 114,688) and (16 x 131,072) B = 4,681, 2,340 and 2,048."""
    settings = {"max_model_len": length, "device": device, "options": {"core": "v0"}}
    assert lines(forced(model, version, blocks, **settings)) == (
        f"# {printed} blocks: {blocks}, # CPU blocks: {cpu_blocks}\n"
        f"Maximum concurrency for {length} tokens per request: {concurrency}x"
    )


@case("K1-018")
def test_v0_without_swap_space():
    """24 x 2 x 256 B = 12,288 B a token: 16.29 GiB hold 88,952 blocks, x 16 / 32,768 = 43.43; no host blocks."""
    settings = {"max_model_len": 32_768, "options": {"core": "v0", "swap_space_bytes": "0"}}
    plans = plans_within(16.29, gqa(24, 2, 64), "0.8.5", **settings)
    assert "# cuda blocks: 88952, # CPU blocks: 0\nMaximum concurrency for 32768 tokens per request: 43.43x" in [
        lines(p) for p in plans
    ]


@pytest.mark.parametrize(
    ("model", "version", "tp", "dtype", "blocks", "cpu_blocks"),
    [
        ("mixtral-8x7b", "0.2.7", 2, "auto", 6487, 4096),
        ("llama-2-7b", "0.2.3", 1, "auto", 7449, 512),
        ("llama-3-8b", "0.5.4", 1, "auto", 78_897, 2048),
        ("llama-3-8b", "0.5.4", 1, "fp8", 157_794, 4096),
    ],
)
@case("K1-020", "K1-021", "K1-022")
def test_early_releases_print_blocks_only(model, version, tp, dtype, blocks, cpu_blocks):
    """Block bytes: 32 x 4 x 512 x 16 = 1 MiB a rank, 8 MiB (32 heads), 2 MiB and 1 MiB in fp8: 4 GiB hold the CPU
    blocks; fp8 doubles both."""
    out = forced(model, version, blocks, max_model_len=4096, tp=tp, kv_dtype=dtype)
    assert lines(out) == f"# GPU blocks: {blocks}, # CPU blocks: {cpu_blocks}"


@case("K1-023")
def test_only_the_wording_changed_between_0_7_and_0_8():
    """127,626 blocks x 16 = 2,042,016 tokens, / 2,048 = 997.08 in both."""
    settings = {"max_model_len": 2048, "options": {"core": "v1"}}
    before, after = (forced(gqa(1, 1), version, 127_626, **settings) for version in ("0.7.3", "0.8.0"))
    assert lines(before) == "# GPU blocks: 127626\nMaximum concurrency for 2048 tokens per request: 997.08x"
    assert "GPU KV cache size: 2,042,016 tokens" in lines(after)
    assert "Maximum concurrency for 2,048 tokens per request: 997.08x" in lines(after)


@case("K1-024")
def test_weights_in_8_bits_leave_the_cache_in_16():
    """Llama-3.1-70B w8a8: 1,381 blocks x 16 x 327,680 B = 6.743 GiB, 10.79x of 2,048."""
    out = forced("llama-3.1-70b", "0.7", 1381, max_model_len=2048, options={"core": "v1"})
    assert out.ranks[0].kv_bytes / GIB == pytest.approx(6.743, abs=0.0005)
    assert "10.79x" in lines(out)


@case("K1-026")
def test_the_smallest_rank_decides():
    """48 x 4 heads x 512 B = 98,304 B a token and rank: 8.69 GiB would hold about 94,900 tokens, but 81,536 were
    printed, which another rank's 7.465 GiB (5,096 blocks) give: the engine takes the minimum over the ranks."""
    model = read_layers(gqa(48, 8), max_model_len=131_072)
    deployment = Deployment(engine="vllm", version="0.7.3", tp=2)
    alone = make_plan(model, deployment, KvMemory.given(round(8.69 * GIB)))
    both = make_plan(model, deployment, KvMemory.given(round(8.69 * GIB), 5096 * 16 * 98_304))
    assert (alone.printed_tokens, both.printed_tokens) == (94_912, 81_536)
    assert "KV cache (81536)" in both.failure.text


@case("K1-033")
def test_gemma4_costs_ten_times_less_with_windows():
    """All 60 layers full: 50 x 16,384 + 10 x 8,192 = 901,120 B a token, so 50 GB hold about 55,000 tokens (0.20.0,
    hybrid manager off); with groups the same bytes print hundreds of thousands. The report's figures are rounded."""
    off = plan(
        "gemma-4-31b",
        "0.20.0",
        50 * 10**9,
        max_model_len=8192,
        options={"disable_hybrid_kv_cache_manager": "true"},
    )
    on = plan("gemma-4-31b", "0.21.0", 50 * 10**9, max_model_len=262_144, max_num_batched_tokens=2048)
    assert off.printed_tokens == 55_472
    assert 450_000 < on.printed_tokens < 650_000


@case("K1-034")
def test_without_groups_tokens_are_concurrency_times_length():
    """A plugin without groups: 7,584 tokens / 128 = 59.25, all 60 layers full."""
    settings = {"max_model_len": 128, "options": {"disable_hybrid_kv_cache_manager": "true"}}
    out = forced("gemma-4-31b", "0.25", 7584 // 16, **settings)
    assert (out.printed_tokens, f"{out.printed_concurrency:.2f}") == (7584, "59.25")
    assert "Hybrid KV cache manager is disabled for this hybrid model" in lines(out)


@case("K1-035")
def test_gemma4_on_two_ranks_misses_by_the_other_ranks_memory():
    """8,005 blocks of 1.25 MiB a request; 10.12 GiB hold 8,286 to 8,294 of them = 169,591 to 169,755 tokens, 169,314
    were printed: 8,272 blocks, 18 MiB less, as another rank would have."""
    settings = {"max_model_len": 163_840, "tp": 2, "max_num_batched_tokens": 8192}
    tokens = [p.printed_tokens for p in plans_within(10.12, "gemma-4-31b", "0.20", **settings)]
    assert (min(tokens), max(tokens)) == (169_591, 169_755)
    assert forced("gemma-4-31b", "0.20", 8272, **settings).printed_tokens == 169_304
    assert forced("gemma-4-31b", "0.20", 8273, **settings).printed_tokens == 169_325


@pytest.mark.parametrize(
    ("model", "version", "settings", "block", "padding"),
    [
        (QWEN_27B, "0.19.1", {}, 784, "0.13"),
        (QWEN_35B, "0.19.0", {}, 1056, "0.76"),
        (QWEN_27B, "0.30", {"tp": 2, "kv_dtype": "fp8_e4m3", "speculative_tokens": 3}, 1600, None),
        (QWEN_27B, "0.30", {"tp": 2, "kv_dtype": "fp8_e4m3"}, 1568, None),
    ],
)
@case("K1-036", "K1-037", "K1-039")
def test_the_block_holds_a_state(model, version, settings, block, padding):
    """16 x ceil(3,207,168 / (16 x 4,096)) = 784 and 16 x ceil(2,146,304 / (16 x 2,048)) = 1,056; in fp8 on two ranks
    16 x ceil(1,603,584 / 16,384) = 1,568, and 1,600 with three more columns of convolution (1,634,304 B)."""
    out = plan(model, version, 20 * GIB, max_model_len=8192, **settings)
    assert f"Setting attention block size to {block} tokens" in lines(out)
    if padding:
        assert f"Padding mamba page size by {padding}%" in lines(out)


@case("K1-040")
def test_the_old_rule_prints_a_quarter_of_what_fits():
    """1,487 blocks in 4 groups: 371 x 784 = 290,864 tokens, 33.04x of 32,768, which is 1,082,800 tokens."""
    out = forced(QWEN_27B, "0.19.0", 1487, max_model_len=32_768, max_num_seqs=16)
    assert (out.printed_tokens, f"{out.printed_concurrency:.2f}") == (290_864, "33.04")
    assert int(out.printed_concurrency * 32_768) == 1_082_800


@case("K1-042")
def test_fifteen_blocks():
    """fp8: 16 x ceil(2,146,304 / 16,384) = 2,096 tokens a block, 10 x 2,146,304 B = 20.5 MiB; 0.32 GiB hold 15 blocks
    (16 at the upper end): 15 // 4 x 2,096 = 6,288 tokens; a request of 8,192 takes 4 + 3 x 2 = 10 blocks: 1.50."""
    settings = {"max_model_len": 8192, "kv_dtype": "fp8", "prefix_caching": True}
    assert printed_within(0.32, 6288, "1.50", QWEN_35B, "0.19", **settings)


@pytest.mark.parametrize(("gib", "length", "tokens"), [(5.85, 65_536, 242_534), (16.63, 131_072, 708_425)])
@case("K1-043")
def test_qwen3_next_with_a_float16_state(gib, length, tokens):
    """Block 544, 12 x 544 x 2,048 B; 470 blocks / (121 + 3 x 2) x 65,536 = 242,534; 1,335 / (241 + 6) x 131,072."""
    settings = {
        "max_model_len": length,
        "prefix_caching": True,
        "options": {"mamba_ssm_cache_dtype": "float16"},
    }
    plans = plans_within(gib, "qwen3-next-80b-a3b", "0.24", **settings)
    assert tokens in [p.printed_tokens for p in plans]


@case("K1-046")
def test_three_proposed_tokens_keep_five_states():
    """Block 1,600, groups of 17; 131,072 tokens take 82 + 3 x (2 + 3) = 97 blocks: 118 / 97 = 1.22, 159,448 tokens."""
    settings = {"max_model_len": 131_072, "kv_dtype": "fp8", "prefix_caching": True, "speculative_tokens": 3}
    out = forced(QWEN_27B, "0.24", 118, **settings)
    assert (out.printed_tokens, f"{out.printed_concurrency:.2f}") == (159_448, "1.22")


@case("K1-047")
def test_the_need_grows_with_the_states():
    """262,144 tokens take 164 + 15 = 179 blocks of 17 x 1,600 x 2,048 B = 9.29 GiB; 178 fit, which leaves 163 x 1,600 =
    260,800 tokens."""
    settings = {"max_model_len": 262_144, "kv_dtype": "fp8", "prefix_caching": True, "speculative_tokens": 3}
    found = failures_within(9.28, QWEN_27B, "0.24", **settings)
    assert all("9.29 GiB KV cache is needed" in f.text for f in found)
    assert 260_800 in {f.largest_max_model_len for f in found}


@case("K1-048")
def test_two_ranks_in_fp8_without_a_draft():
    """Block 1,568; 131,072 tokens take 84 + 6 blocks of 16 x 1,568 x 1,024 B = 2.15 GiB; 62 fit: 56 x 1,568 =
    87,808."""
    settings = {"max_model_len": 131_072, "kv_dtype": "fp8_e5m2", "tp": 2, "prefix_caching": True}
    found = failures_within(1.5, QWEN_27B, "0.24", **settings)
    assert all("(2.15 GiB KV cache is needed" in f.text for f in found)
    assert 87_808 in {f.largest_max_model_len for f in found}


@case("K1-049")
def test_a_run_before_and_after_the_length_was_cut():
    """204,800 tokens need 131 + 6 blocks of 16 x 1,568 x 2,048 B = 6.56 GiB; 5.42 GiB hold 113: 107 x 1,568 =
    167,776. The run at 163,840 (105 + 6 blocks) had 112 blocks: 165,316 tokens, 1.01."""
    settings = {"kv_dtype": "fp8", "prefix_caching": True}
    found = failures_within(5.42, QWEN_27B, "0.24", max_model_len=204_800, **settings)
    assert all("(6.56 GiB KV cache is needed" in f.text for f in found)
    assert 167_776 in {f.largest_max_model_len for f in found}
    started = forced(QWEN_27B, "0.24", 112, max_model_len=163_840, **settings)
    assert (started.printed_tokens, f"{started.printed_concurrency:.2f}") == (165_316, "1.01")


@pytest.mark.parametrize(
    ("length", "blocks", "tokens", "concurrency"),
    [(4096, 135, 50_688, "22.50"), (8192, 166, 62_976, "18.44"), (16_384, 177, 67_584, "12.64")],
)
@case("K1-050", "K1-051", "K1-052")
def test_another_backend_sizes_the_block_from_keys_only(length, blocks, tokens, concurrency):
    """A vLLM plugin for other hardware takes 48 x 128 x 128 x 4 B of state / (4 x 256 x 2 B of keys) = 1,536 tokens.
    With that block its lines follow: 135 // 4 x 1,536 = 50,688 and 135 / (3 + 3) = 22.50, and so on."""
    out = forced(QWEN_27B, "0.19", blocks, max_model_len=length, block_tokens=1536)
    assert (out.printed_tokens, f"{out.printed_concurrency:.2f}") == (tokens, concurrency)


@case("K1-053")
def test_a_block_of_thousands_of_tokens_makes_short_requests_dear():
    """GLM-5.3-Flash prints a block of 7,808 tokens; its config is not published with the report. A model with 23 groups
    of such states pays 23 x 2 + 1 = 47 blocks, 366,976 token slots, for a 12-token prompt (24 without prefix caching).
    """
    model = read_layers("2x(latent=512,rope=64)+46x(state=8990000)", max_model_len=131_072)
    out = make_plan(model, Deployment(engine="vllm", version="0.32"), KvMemory.given(8 * GIB))
    assert out.deployment.block_tokens == 7808
    assert out.count_units(12)["blocks"] == 47


@case("K1-056")
def test_a_larger_batch_leaves_less_for_the_cache():
    """Kimi-Linear on two 24 GB cards: 64,000 batched tokens in the profile run take what the cache could have had.

    The report gives totals only; what can be checked is the direction and the size of the term.
    """
    from kvledger.engines.plan import GpuBudget
    from kvledger.engines.vllm import model_memory
    from kvledger.model.catalogue import find_model

    kimi = find_model("kimi-linear-48b-a3b")
    budget = GpuBudget(total_bytes=24 * GIB, weights_bytes=14 * GIB, utilisation_ratio=0.95)

    def kv_bytes(batched):
        deployment = Deployment(engine="vllm", version="0.11.2", tp=2, max_num_batched_tokens=batched)
        return model_memory(kimi, deployment, budget).smallest_bytes

    assert kv_bytes(8192) - kv_bytes(64_000) > 2 * GIB


def test_every_collected_start_up_case_of_vllm_is_recomputed(shared):
    """The table of cases beside the repository and the tests above name the same ids."""
    text = (shared / "cases" / "handed.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    ids = {row["id"] for row in rows if row["kind"] == "K1" and (row["engine"] or "").startswith("vllm")}
    assert ids == COVERED
