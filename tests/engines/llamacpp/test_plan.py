"""llama.cpp's planner against a real server (b11434), printed lines of users, and arithmetic by hand."""

import json
from pathlib import Path

import pytest

from kvledger.engines.llamacpp import make_plan, model_memory
from kvledger.engines.plan import ClaimKind, Deployment, GpuBudget, KvMemory, Plan
from kvledger.errors import ModelError, UsageError
from kvledger.ledger import Accuracy
from kvledger.model import (
    AttentionCache,
    Dtype,
    LatentCache,
    Layer,
    Length,
    ModelSpec,
    SharedCache,
)
from kvledger.model.by_hand import read_layers
from kvledger.model.states import StateDtypes, gated_delta_net, mamba1, short_conv
from kvledger.units import GIB, MIB

DATA = Path(__file__).parents[2] / "data" / "llamacpp-b11434" / "startup.json"
FLAGS = {
    "-c": "ctx_size",
    "-np": "parallel",
    "-kvu": "kv_unified",
    "-b": "batch_size",
    "-ub": "ubatch_size",
    "-ctk": "cache_type_k",
    "-ctv": "cache_type_v",
    "-fa": "flash_attn",
    "--swa-full": "swa_full",
    "--kv-unified-per-slot": "kv_unified_per_slot",
}
RECORD = json.loads(DATA.read_text())
OLDER = json.loads((DATA.parents[1] / "llamacpp-b9093" / "startup.json").read_text())
LARGE = KvMemory.given(64 * GIB)


def options(arguments):
    """Turn a server's arguments into the options of a deployment."""
    found = {}
    queue = list(arguments)
    while queue:
        name = FLAGS[queue.pop(0)]
        takes_value = queue and not queue[0].startswith("-")
        found[name] = queue.pop(0) if takes_value else "on"
    return found


def plan(model, *, version="b11434", device="cpu", memory=LARGE, max_model_len=None, **flags) -> Plan:
    deployment = Deployment(
        engine="llama.cpp",
        version=version,
        device=device,
        max_model_len=max_model_len,
        options={name: str(value) for name, value in flags.items()},
    )
    return make_plan(model, deployment, memory)


def model(layers, train=131072):
    return read_layers(layers, max_model_len=train)


def recorded_model(name):
    """Return the model of a recorded run; those without layers in the record are small random ones."""
    facts = RECORD["models"][name]
    if "layers" in facts:
        return model(facts["layers"], facts["n_ctx_train"])
    dtypes = StateDtypes(conv=Dtype.BFLOAT16, state=Dtype.FLOAT32)
    expanded = AttentionCache(kv_heads=4, key_size=64, value_size=32)
    attention = AttentionCache(kv_heads=2, key_size=256, value_size=256)
    short = short_conv(channels=1024, kernel=3, dtypes=dtypes)
    caches = {
        "lfm2-tiny": [short, short, attention, short, attention],
        "mamba-tiny": [mamba1(channels=1024, state_size=16, kernel=4, dtypes=dtypes)] * 3,
        "deepseek2-tiny": [LatentCache(latent_size=64, rope_size=32, expanded=expanded)] * 3,
        "deepseek2-old": [LatentCache(latent_size=64, rope_size=32, expanded=expanded)] * 3,
    }[name]
    return ModelSpec(
        name=name,
        model_type=name,
        layers=tuple(Layer(index=i, cache=cache) for i, cache in enumerate(caches)),
        dtype=Dtype.FLOAT16,
        max_model_len=Length(tokens=facts["n_ctx_train"], source="test"),
    )


def plan_recorded(run, version="b11434"):
    flags = options(run["args"])
    if run["model"] == "deepseek2-old":
        flags["mla_tensors"] = "off"
    return plan(recorded_model(run["model"]), version=version, **flags)


def find_line(result, start):
    return next(line.text for line in result.lines if line.text.startswith(start))


@pytest.mark.parametrize("run", RECORD["runs"], ids=lambda run: f"{run['model']} {' '.join(run['args'])}")
def test_every_line_of_a_real_server_is_predicted_to_the_digit(run):
    result = plan_recorded(run)
    assert [line.text for line in result.lines] == [text for _, text in run["lines"]]
    assert result.request_limit == run["total_slots"]
    assert {result.length_limit_tokens} == set(run["slot_n_ctx"])


@pytest.mark.parametrize("run", OLDER["runs"], ids=lambda run: f"{run['model']} {' '.join(run['args'])}")
def test_every_line_of_an_older_server_is_predicted_and_visible(run):
    """b9093, before the memory lines needed ``-lv 4``."""
    result = plan_recorded(run, "b9093")
    assert [line.text for line in result.lines] == run["lines"]
    assert {line.level for line in result.lines} <= {"INFO", "WARN"}
    assert result.request_limit == run["total_slots"]
    assert {result.length_limit_tokens} == set(run["slot_n_ctx"])


@pytest.mark.parametrize("run", RECORD["runs"], ids=lambda run: f"{run['model']} {' '.join(run['args'])}")
def test_the_bytes_of_the_pools_are_the_printed_ones(run):
    result = plan_recorded(run)
    printed = [
        float(text.split("buffer size = ")[1].split(" MiB")[0]) for _, text in run["lines"] if "buffer size" in text
    ]
    planned = [pool.units * result.ranks[0].unit_bytes[pool.name] / MIB for pool in result.pools]
    assert planned == pytest.approx(printed, abs=0.0051)


@pytest.mark.parametrize(
    ("layers", "cells", "cache_type", "printed"),
    [
        # G18, Qwen3-VL-8B: 36 x 8,192 x 2 x 8 x 128 x 2 B = 1,207,959,552 = 1152 MiB; q8_0: x 34/64 = 612 MiB
        ("36x(kv=8,head=128)", 8192, "f16", "1152.00"),
        ("36x(kv=8,head=128)", 8192, "q8_0", " 612.00"),
        # K1-072, Mistral-7B: 32 x 4,096 x 4,096 B = 512 MiB
        ("32x(kv=8,head=128)", 4096, "f16", " 512.00"),
        # K1-087: 36 x 8 x 128 at 40,960; 40 x 8 x 128 and 36 x 2 x 128 at 16,384
        ("36x(kv=8,head=128)", 40960, "f16", "5760.00"),
        ("40x(kv=8,head=128)", 16384, "f16", "2560.00"),
        ("36x(kv=2,head=128)", 16384, "f16", " 576.00"),
        # K1-086, 16 full layers of kv 1,024 elements a side at 32,768, q8_0: 16 x 32,768 x 2 x 1,088 B = 1088 MiB
        ("16x(kv=4,head=256)", 32768, "q8_0", "1088.00"),
    ],
)
def test_size_lines_of_users_come_out(layers, cells, cache_type, printed):
    result = plan(model(layers), ctx_size=cells, parallel=1, cache_type_k=cache_type, cache_type_v=cache_type)
    assert find_line(result, "llama_kv_cache: size").startswith(f"llama_kv_cache: size = {printed} MiB")


@pytest.mark.parametrize(
    ("cache_type", "printed"),
    [
        ("f16", "224.00"),
        ("q8_0", "119.00"),
        ("q4_0", " 63.00"),
        ("q4_1", " 70.00"),
        ("q5_0", " 77.00"),
        ("q5_1", " 84.00"),
    ],
)
def test_quantised_keys_cost_their_blocks(cache_type, printed):
    """K1-073, Llama-3.2-3B: 28 layers x 4,096 cells x 1,024 elements x block bytes / 32; values stay f16 (224 MiB)."""
    result = plan(model("28x(kv=8,head=128)"), ctx_size=4096, parallel=1, cache_type_k=cache_type)
    assert f"K ({cache_type}):  {printed} MiB, V (f16):  224.00 MiB" in find_line(result, "llama_kv_cache: size")


def test_windowed_layers_of_a_user_with_four_slots():
    """K1-075: SWA cells pad256(min(8,192, 1,024 x 4 + 512)) = 4,608; 40 layers x 4,096 elements x 34/32 B = 765 MiB."""
    result = plan(
        model("8x(kv=1,head=512)+40x(kv=8,head=256,window=1024)"),
        ctx_size=8192,
        parallel=4,
        kv_unified="on",
        cache_type_k="q8_0",
        cache_type_v="q8_0",
    )
    texts = [line.text for line in result.lines]
    assert "llama_kv_cache_iswa: creating non-SWA KV cache, size = 8192 cells" in texts
    assert "llama_kv_cache_iswa: creating     SWA KV cache, size = 4608 cells" in texts
    sizes = [text[:82] for text in texts if text.startswith("llama_kv_cache: size")]
    assert sizes == [
        "llama_kv_cache: size =   68.00 MiB (  8192 cells,   8 layers,  4/1 seqs), K (q8_0)",
        "llama_kv_cache: size =  765.00 MiB (  4608 cells,  40 layers,  4/1 seqs), K (q8_0)",
    ]


def test_device_lines_are_shares_of_the_size_line():
    """K1-077, gpt-oss-20b: 256 SWA cells, q8_0, 1,088 B a layer and cell; 4, 3, 3 and 2 layers on four devices."""
    result = plan(
        model("12x(kv=8,head=64)+12x(kv=8,head=64,window=128)"),
        ctx_size=8192,
        parallel=1,
        ubatch_size=128,
        cache_type_k="q8_0",
        cache_type_v="q8_0",
    )
    layer_mib = result.ranks[0].unit_bytes["swa"] // 12 * 256 / MIB
    assert [f"{layer_mib * layers:.2f}" for layers in (4, 3, 3, 2)] == ["1.06", "0.80", "0.80", "0.53"]
    assert f"{result.ranks[0].unit_bytes['full'] * 8192 / MIB:.2f}" == "102.00"


def qwen35(full, linear, *, value_heads, train=262144):
    """Full-attention layers and Gated DeltaNet layers of the Qwen3.5 family."""
    state = gated_delta_net(
        key_heads=16,
        value_heads=value_heads,
        key_size=128,
        value_size=128,
        kernel=4,
        dtypes=StateDtypes(conv=Dtype.BFLOAT16, state=Dtype.FLOAT32),
    )
    attention = AttentionCache(kv_heads=4, key_size=256, value_size=256)
    caches = [attention] * full + [state] * linear
    return ModelSpec(
        name="hybrid",
        model_type="qwen3_5",
        layers=tuple(Layer(index=i, cache=cache) for i, cache in enumerate(caches)),
        dtype=Dtype.BFLOAT16,
        max_model_len=Length(tokens=train, source="test"),
    )


@pytest.mark.parametrize(
    ("full", "linear", "value_heads", "cells", "slots", "kv", "recurrent", "parts"),
    [
        # K1-079: 48 x 3 x (2 x 16 x 128 + 48 x 128) x 4 B = 5.625 MiB, which "%.2f" prints as 5.62;
        # 48 x 48 x 128 x 128 x 4 B = 144 MiB; the line counts all 64 layers
        (16, 48, 48, 24576, 1, "1536.00", "149.62 MiB (     1 cells,  64 layers", "5.62 MiB, S (f32):  144.00"),
        # K1-080: 4 slots, 24 x 3 x 8,192 x 4 B x 4 = 9 MiB; 24 x 32 x 16,384 x 4 B x 4 = 192 MiB
        (8, 24, 32, 135168, 4, "4224.00", "201.00 MiB (     4 cells,  32 layers", "9.00 MiB, S (f32):  192.00"),
    ],
)  # fmt: skip
def test_recurrent_states_of_users_come_out(full, linear, value_heads, cells, slots, kv, recurrent, parts):
    result = plan(qwen35(full, linear, value_heads=value_heads), ctx_size=cells, parallel=slots, kv_unified="on")
    assert f"size = {kv} MiB" in find_line(result, "llama_kv_cache: size")
    line = find_line(result, "llama_memory_recurrent: size")
    assert f"size =  {recurrent}" in line
    assert f"R (f32):    {parts} MiB" in line


def test_an_absorbed_latent_has_no_values():
    """K1-082: two strips of 4,096 cells, 6 layers x 576 x 2 B = 54 MiB, V exactly 0."""
    result = plan(model("6x(latent=512,rope=64)"), ctx_size=8192, parallel=2)
    assert find_line(result, "llama_kv_cache: size") == (
        "llama_kv_cache: size =   54.00 MiB (  4096 cells,   6 layers,  2/2 seqs), "
        "K (f16):   54.00 MiB, V (f16):    0.00 MiB"
    )


def test_a_latent_in_many_devices_is_split_by_layers():
    """K1-085, DeepSeek-R1 at 2,048 cells: 61 x 1,152 B x 2,048 = 137.25 MiB; 4 layers 9 MiB, 3 layers 6.75 MiB."""
    result = plan(model("61x(latent=512,rope=64)"), ctx_size=2048, parallel=1)
    cell = result.ranks[0].unit_bytes["full"]
    assert cell * 2048 / MIB == 137.25
    assert [cell // 61 * 2048 * layers / MIB for layers in (4, 3, 2)] == [9.0, 6.75, 4.5]


def deepseek_lite():
    expanded = AttentionCache(kv_heads=16, key_size=192, value_size=128)
    cache = LatentCache(latent_size=512, rope_size=64, expanded=expanded)
    return ModelSpec(
        name="DeepSeek-V2-Lite",
        model_type="deepseek_v2",
        layers=tuple(Layer(index=i, cache=cache) for i in range(27)),
        dtype=Dtype.BFLOAT16,
        max_model_len=Length(tokens=163840, source="test"),
    )


def test_a_file_without_mla_tensors_stores_full_heads():
    """G19: 27 x 16,384 x 16 x (192 + 128) x 2 B = 4320 MiB; absorbed: 27 x 16,384 x 1,152 B = 486 MiB."""
    full = plan(deepseek_lite(), ctx_size=16384, parallel=1, mla_tensors="off")
    absorbed = plan(deepseek_lite(), ctx_size=16384, parallel=1)
    assert "size = 4320.00 MiB" in find_line(full, "llama_kv_cache: size")
    assert "size =  486.00 MiB" in find_line(absorbed, "llama_kv_cache: size")


def gemma4_e4b():
    """42 layers of which the last 18 read an earlier cache: 4 full and 20 windowed ones keep their own."""
    full = AttentionCache(kv_heads=2, key_size=512, value_size=512)
    window = AttentionCache(kv_heads=2, key_size=256, value_size=256, window_tokens=512)
    layers = []
    for index in range(42):
        cache = full if index % 6 == 5 else window
        layers.append(Layer(index=index, cache=cache if index < 24 else SharedCache(shares_with=23, cache=cache)))
    return ModelSpec(
        name="Gemma 4 E4B",
        model_type="gemma4",
        layers=tuple(layers),
        dtype=Dtype.BFLOAT16,
        max_model_len=Length(tokens=131072, source="test"),
    )


def test_layers_that_share_a_cache_get_none():
    """K1-083: SWA pad256(512 + 512) = 1,024 cells, 20 layers x 1,024 elements x 34/32 B = 21.25 MiB in q8_0."""
    result = plan(gemma4_e4b(), ctx_size=16384, parallel=1, cache_type_k="q8_0", cache_type_v="q8_0")
    texts = [line.text for line in result.lines]
    assert "llama_kv_cache_iswa: creating     SWA KV cache, size = 1024 cells" in texts
    assert any("size =   21.25 MiB (  1024 cells,  20 layers,  1/1 seqs)" in text for text in texts)


def test_a_full_size_window_cache_saves_nothing():
    """K1-084: 4 full layers x 32,768 x 4,096 B = 512 MiB, and the window cache has 32,768 cells as well."""
    result = plan(gemma4_e4b(), ctx_size=32768, parallel=1, swa_full="on")
    texts = [line.text for line in result.lines]
    assert any("size =  512.00 MiB ( 32768 cells,   4 layers,  1/1 seqs), K (f16):  256.00 MiB" in t for t in texts)
    assert "llama_kv_cache_iswa: creating     SWA KV cache, size = 32768 cells" in texts
    swa = next(claim for claim in result.claims if claim.name == "swa")
    assert (swa.count_charged_tokens(32768), swa.count_needed_tokens(32768)) == (32768, 512)


def test_a_split_slot_reserves_its_strip_and_a_unified_one_does_not():
    split = plan(model("32x(kv=8,head=128)"), ctx_size=16384, parallel=4)
    unified = plan(model("32x(kv=8,head=128)"), ctx_size=16384, parallel=4, kv_unified="on")
    assert split.count_units(100) == {"full": 4096}
    assert unified.count_units(100) == {"full": 100}
    assert (split.find_longest_tokens(), unified.find_longest_tokens()) == (4096, 16384)
    assert (split.count_requests(4096), split.count_requests(4097)) == (4, 0)
    assert (unified.count_requests(4096), unified.count_requests(4097)) == (4, 3)


def test_slots_limit_short_requests_however_many_cells_are_free():
    assert plan(model("32x(kv=8,head=128)"), ctx_size=16384).count_requests(10) == 4


def test_a_context_per_request_becomes_cells_for_all_slots():
    split = plan(model("1x(kv=1,head=64)"), max_model_len=1000, parallel=3)
    unified = plan(model("1x(kv=1,head=64)"), max_model_len=1000)
    assert split.pool("full").units == 3 * 1024
    assert unified.pool("full").units == 1024


def test_a_server_that_does_not_fit_says_the_largest_context():
    """32 x 4,096 B a cell = 128 KiB; 1 GiB holds 8,192 cells, one cell less than 1 GiB holds 31 x 256 = 7,936."""
    exact = plan(model("32x(kv=8,head=128)"), ctx_size=16384, parallel=1, memory=KvMemory.given(GIB))
    short = plan(model("32x(kv=8,head=128)"), ctx_size=16384, parallel=1, memory=KvMemory.given(GIB - 1))
    assert exact.failure is not None
    assert short.failure is not None
    assert (exact.failure.needed_bytes, exact.failure.largest_max_model_len) == (2 * GIB, 8192)
    assert short.failure.largest_max_model_len == 7936


def test_cells_beyond_the_training_context_are_named_as_lost():
    result = plan(model("1x(kv=1,head=64)", train=8192), ctx_size=16384, parallel=1)
    assert result.length_limit_tokens == 8192
    assert any("8,192 cells of each of 1 strip lie" in note for note in result.notes)


def test_values_of_different_widths_are_padded_without_flash_attention():
    layers = "2x(kv=1,head=512)+2x(kv=4,head=256,window=256)"
    padded = plan(model(layers), ctx_size=1024, parallel=1, flash_attn="off")
    exact = plan(model(layers), ctx_size=1024, parallel=1)
    assert padded.ranks[0].unit_bytes["full"] == 2 * (512 + 1024) * 2
    assert exact.ranks[0].unit_bytes["full"] == 2 * (512 + 512) * 2


def test_a_model_whose_layers_all_have_the_window_is_stored_whole():
    result = plan(model("32x(kv=8,head=128,window=4096)"), ctx_size=16384, parallel=1)
    assert [pool.name for pool in result.pools] == ["full"]
    claim = result.claims[0]
    assert (claim.kind, claim.count_needed_tokens(16384)) == (ClaimKind.FULL, 4096)


def test_index_keys_have_a_cache_of_their_own():
    """61 layers x 128 elements x 2 B, next to 61 x 576 x 2 B (b11434 ``llama-kv-cache-dsa.cpp``)."""
    result = plan(model("61x(latent=512,rope=64,index=128)"), ctx_size=4096, parallel=1)
    assert result.ranks[0].unit_bytes == {"full": 61 * 1152, "index": 61 * 256}
    assert find_line(result, "llama_kv_cache_dsa: creating indexer") == (
        "llama_kv_cache_dsa: creating indexer KV cache, size = 4096 cells"
    )


def test_memory_lines_are_marked_as_hidden_since_they_need_verbosity_four():
    result = plan(model("1x(kv=1,head=64)"), ctx_size=256, parallel=1)
    levels = {line.text.split(":")[0]: line.level for line in result.lines}
    assert levels["llama_kv_cache"] == "-lv 4"
    assert levels["initializing, n_slots = 1, n_ctx_slot = 256, kv_unified = 'false'"] == "INFO"
    assert any("-lv 4" in note for note in result.notes)


def test_older_builds_have_one_slot_and_say_that_they_are_modelled():
    result = plan(model("1x(kv=1,head=64)"), version="b6000", ctx_size=4096)
    assert (result.request_limit, result.accuracy) == (1, Accuracy.MODELLED)
    assert any("older than the sources read" in note for note in result.notes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "b99999"}, "are known from b5000 to b11434"),
        ({"version": "main"}, "not a llama.cpp build"),
        ({"ctx_siz": 5}, "no setting `ctx_siz`; did you mean `ctx_size`"),
        ({"ctx_size": "many"}, "`ctx_size` cannot be `many`"),
        ({"parallel": 300}, "1 to 256"),
        ({"cache_type_k": "fp8"}, "cannot store a cache as `fp8`"),
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "without flash attention"),
        ({"kv_unified_per_slot": 100, "parallel": 2}, "needs `kv_unified`"),
        ({"max_model_len": 100, "ctx_size": 100}, "both given"),
        ({"version": "b7000"}, "default context of llama.cpp b7000 is not known"),
    ],
)
def test_what_the_server_does_not_have_is_refused(change, words):
    with pytest.raises(UsageError, match=words):
        plan(model("1x(kv=2,head=64)"), **change)


def test_an_absorbed_latent_has_one_type_for_keys_and_values():
    """b11434: "model does not support different K (q8_0) and V (f16) cache types"."""
    with pytest.raises(UsageError, match="different K \\(q8_0\\) and V \\(f16\\) cache types"):
        plan(model("6x(latent=512,rope=64)"), ctx_size=256, cache_type_k="q8_0")


def test_rows_that_are_no_whole_blocks_are_refused():
    with pytest.raises(UsageError, match="no whole number of blocks of 32"):
        plan(model("1x(kv=1,head=80)"), ctx_size=256, cache_type_k="q8_0")


def test_tensor_parallelism_is_refused():
    deployment = Deployment(engine="llama.cpp", version="b11434", tp=2, options={"ctx_size": "256"})
    with pytest.raises(UsageError, match="has no setting `tp`"):
        make_plan(model("1x(kv=1,head=64)"), deployment, LARGE)


def test_windows_of_two_lengths_are_refused():
    with pytest.raises(ModelError, match="one window length, but the layers have 128, 256"):
        plan(model("1x(kv=1,head=64)+1x(kv=1,head=64,window=128)+1x(kv=1,head=64,window=256)"), ctx_size=256)


def test_memory_is_what_the_device_has_left():
    deployment = Deployment(engine="llama.cpp", version="b11434")
    budget = GpuBudget(total_bytes=24 * GIB, weights_bytes=5 * GIB, activation_bytes=GIB, non_torch_bytes=GIB)
    memory = model_memory(model("1x(kv=1,head=64)"), deployment, budget)
    assert (memory.smallest_bytes, memory.low_bytes, memory.accuracy) == (17 * GIB, 17 * GIB, Accuracy.MODELLED)
