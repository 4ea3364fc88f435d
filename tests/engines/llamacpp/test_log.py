"""Logs of llama.cpp's server: recorded runs, every naming of the caches, and what belongs to which cache."""

import json
from pathlib import Path

import pytest

from kvledger.engines.facts import NoticeKind
from kvledger.engines.llamacpp.log import read_log
from kvledger.units import MIB

DATA = Path(__file__).parents[2] / "data" / "llamacpp-b11434"
RUNS = json.loads((DATA / "startup.json").read_text())["runs"]


def only(text):
    (start,) = read_log(text).startups
    return start


@pytest.mark.parametrize(("mode", "unified", "streams"), [("split", False, 2), ("unified", True, 1)])
def test_a_recorded_server(mode, unified, streams):
    """2,048 cells in all, 30 layers x 3 heads x 64 x 2 sides x 2 B: 45 MiB; two requests ended with 23 and 710 "
    "tokens."""
    log = read_log((DATA / f"server-{mode}.log").read_text())
    (start,) = log.startups
    (pool,) = start.pools
    assert pool.size_bytes.holds(45 * MIB)
    assert (pool.cells.value, pool.streams.value, pool.slots.value) == (2048 // streams, streams, 2)
    assert pool.tokens.value == 2048
    assert (pool.key_dtype, pool.layers.value) == ("f16", 30)
    assert start.unified.value is unified
    assert start.max_running.value == 2
    assert start.max_model_len.value == 2048 // streams
    assert start.model.value == "Smollm2 135M 8k Lc100K Mix1 Ep2"
    assert start.options["n_ctx_train"] == "8192"
    assert [(sample.origin, sample.tokens.value) for sample in log.samples] == [("slot 1", 23), ("slot 0", 710)]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run['model']} {' '.join(run['args'])}")
def test_recorded_starts_of_all_kinds(run):
    start = only("\n".join(f"0.00.000.001 {level} {line}" for level, line in run["lines"]))
    assert start.max_running.value == run["total_slots"]
    assert start.max_model_len.value == run["slot_n_ctx"][0]
    sizes = [line for _, line in run["lines"] if "size =" in line and "seqs" in line]
    assert len(start.pools) == len(sizes)
    for pool, line in zip(start.pools, sizes, strict=True):
        assert pool.size_bytes.holds(float(line.partition("size =")[2].partition("MiB")[0]) * MIB)
        assert (pool.name == "state") is ("recurrent" in line)


@pytest.mark.parametrize(
    ("line", "mib", "types"),
    [
        ("llama_new_context_with_model: kv self size  =  256.00 MiB", 256, (None, None)),
        ("llama_new_context_with_model: KV self size  =  256.00 MiB, K (f16):  128.00 MiB, V (q8_0):  128.00 MiB",
         256, ("f16", "q8_0")),
        ("llama_init_from_model: KV self size  = 137.25 MiB, c^KV (f16):  137.25 MiB, kv^T: not used",
         137.25, ("f16", None)),
        ("llama_kv_cache_unified: size =  448.00 MiB (  4096 cells,  28 layers,  1 seqs), K (f16):  224.00 MiB, "
         "V (f16):  224.00 MiB", 448, ("f16", "f16")),
        ("llama_kv_cache: size =  448.00 MiB (  4096 cells,  28 layers,  2/1 seqs), K (iq4_nl):  224.00 MiB, "
         "V (bf16):  224.00 MiB", 448, ("iq4_nl", "bf16")),
    ],
)  # fmt: skip
def test_every_naming_of_the_cache(line, mib, types):
    (pool,) = only(line).pools
    assert pool.size_bytes.holds(mib * MIB)
    assert (pool.key_dtype, pool.value_dtype) == types


def test_devices_restate_the_size_line():
    (pool,) = only(
        "llama_kv_cache_init:      CUDA0 KV buffer size =   300.00 MiB\n"
        "llama_kv_cache_init:      CUDA1 KV buffer size =   148.00 MiB\n"
        "llama_kv_cache: size =  448.00 MiB (  4096 cells,  28 layers,  1/1 seqs)\n"
    ).pools
    assert pool.size_bytes.holds(448 * MIB)
    assert pool.size_bytes.high - pool.size_bytes.low <= 0.011 * MIB


def test_the_sum_of_devices_stands_in_for_a_missing_size_line():
    start = only(
        "llama_kv_cache: CUDA0 KV buffer size = 300.00 MiB\nllama_kv_cache: CUDA1 KV buffer size = 148.00 MiB\n"
    )
    assert start.pools[0].size_bytes.holds(448 * MIB)
    assert [item.name for item in start.memory] == ["kv-on-CUDA0", "kv-on-CUDA1"]


def test_a_second_context_is_the_draft_models():
    start = only(
        "llama_context: n_seq_max             = 4\n"
        "llama_kv_cache: size =  448.00 MiB (  4096 cells,  28 layers,  4/1 seqs)\n"
        "llama_context: n_seq_max             = 4\n"
        "llama_kv_cache: size =   64.00 MiB (  4096 cells,   4 layers,  4/1 seqs)\n"
    )
    assert [(pool.name, pool.layers.value) for pool in start.pools] == [("kv", 28), ("draft", 4)]


def test_cells_without_streams_leave_the_tokens_open():
    (pool,) = only("llama_kv_cache: size =  448.00 MiB (  4096 cells,  28 layers)").pools
    assert (pool.cells.value, pool.tokens, pool.streams) == (4096, None, None)


def test_a_value_side_of_zero_is_kept():
    (pool,) = only(
        "llama_kv_cache: size = 54.00 MiB (4096 cells, 6 layers, 2/2 seqs), K (f16): 54.00 MiB, V (f16): 0.00 MiB"
    ).pools
    assert (pool.value_bytes.value, pool.value_bytes.low) == (0, 0)
    assert pool.tokens.value == 8192


def test_memory_by_device_is_cut_to_whole_mib():
    start = only(
        "| memory breakdown [MiB] | total   free    self   model   context   compute    unaccounted |\n"
        "|   - CUDA0 (RTX 4090)   | 24080 = 9000 + (14000 = 10000 +    3000 +    1000) +        1080 |\n"
        "|   - Host               |                  152 =    92 +      45 +      15                |\n"
    )
    sizes = {item.name: item.size_bytes for item in start.memory}
    assert sizes["context-on-CUDA0"].low == 3000 * MIB
    assert sizes["context-on-CUDA0"].high == 3001 * MIB - 1
    assert sizes["context-on-Host"].value == 45 * MIB


def test_a_refused_allocation_is_an_error():
    (error,) = only(
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: out "
        "of memory"
    ).errors
    assert error.kind is NoticeKind.OUT_OF_MEMORY
    assert error.needed.holds(4096 * MIB)


def test_builds_are_versions_and_begin_a_start():
    size = "llama_kv_cache: size =  448.00 MiB (  4096 cells,  28 layers,  4/1 seqs)\n"
    starts = read_log(
        "build: 4621 (abc1234) with cc for x86_64\n" + size + "main: build = 6900 (def5678)\n" + size
    ).startups
    assert [start.version.value for start in starts] == ["b4621", "b6900"]
