"""Logs of Ollama: its own engine, the llama.cpp server inside, and models loaded one after another."""

from kvledger.engines.ollama.log import read_log
from kvledger.units import GIB, MIB
from tests.engines.log_samples import OLLAMA


def only(text):
    (start,) = read_log(text).startups
    return start


def test_the_devices_of_its_own_engine_are_added():
    """300.5 + 100.5 MiB, each to 0.05 MiB; 8,192 tokens for two slots."""
    start = only(OLLAMA)
    (pool,) = start.pools
    assert pool.size_bytes.holds(401 * MIB)
    assert pool.size_bytes.high - pool.size_bytes.low <= 0.2 * MIB + 4
    assert pool.tokens.value == 8192
    assert (start.version.value, start.kv_dtype.value) == ("0.13.1", "q8_0")
    assert (start.max_running.value, start.max_model_len.value, start.batch_tokens.value) == (2, 4096, 512)
    assert start.max_model_len.accuracy == "derived"


def test_a_later_layout_replaces_an_earlier_one():
    line = 'time=2026-03-04T10:00:06Z level=INFO source=d.go:1 msg="{}" {}size="{}"\n'
    (pool,) = only(
        line.format("kv cache", "device=CUDA0 ", "2.0 GiB")
        + line.format("total memory", "", "9.0 GiB")
        + line.format("kv cache", "device=CUDA0 ", "1.0 GiB")
        + line.format("kv cache", "device=CPU ", "1.0 GiB")
        + line.format("total memory", "", "9.0 GiB")
    ).pools
    assert pool.size_bytes.holds(2 * GIB)


def test_every_loaded_model_is_a_start():
    load = (
        "time=2026-03-04T10:00:0{0}Z level=INFO source=s.go:1 "
        'msg="starting llama server" cmd="llama-server -c {1} -np 2"\n'
    )
    size = "llama_kv_cache: size =  448.00 MiB (  {} cells,  28 layers,  2/2 seqs)\n"
    starts = read_log(load.format(1, 8192) + size.format(4096) + load.format(2, 4096) + size.format(2048)).startups
    assert [start.pools[0].tokens.value for start in starts] == [8192, 4096]
    assert [start.max_model_len.value for start in starts] == [4096, 2048]


def test_the_estimate_of_older_releases_and_the_environment():
    start = only(
        'time=2025-01-01T10:00:00Z level=INFO source=r.go:1 msg="server config" env="map[OLLAMA_CONTEXT_LENGTH:4096 '
        'OLLAMA_KV_CACHE_TYPE:q8_0 OLLAMA_NUM_PARALLEL:4]"\n'
        'time=2025-01-01T10:00:01Z level=INFO source=m.go:1 msg=offload memory.required.full="6.2 GiB" '
        'memory.required.kv="1.0 GiB"\n'
    )
    assert start.pools[0].size_bytes.holds(1 * GIB)
    assert start.options["OLLAMA_NUM_PARALLEL"] == "4"
