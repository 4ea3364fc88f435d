"""Each finding is told where it must be, and not in a case that differs from that one in one thing.

``PAIRS`` has every code. The left of a pair is found, the right is not; what else is found does not matter here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvledger.findings.catalogue import RULES
from kvledger.model.catalogue import find_model
from kvledger.pool import Kind, Policy
from kvledger.replay import Pool, SharedPrefix
from tests.replay.by_hand import workload

from .replayed import find as replayed
from .replayed import same, scenario
from .test_handed_complaints import LLAMA_SPLIT, OLLAMA, OOM, busy, log, start
from .test_log_findings import ENDED, FORGOTTEN, REFUSED, SHARED, SIZE, TIMES, TOKENS, served
from .test_log_findings import find as logged
from .test_measure_findings import look, texts
from .test_replay_findings import IDLE, PRESSED, same_but_long
from .test_size_findings import find as planned

Found = Callable[[], Mapping[str, Any]]
SHORT = same(60, 40, 10)
REFUSAL = "(EngineCore pid=1) vllm.v1.engine"
WIDE = "Setting attention block size to {0} tokens to ensure that attention page size is >= mamba page size."
RANK = "(Worker_TP{0} pid={0}) INFO 05-01 10:00:00 [x.py:1] Available KV cache memory: {1} GiB"


def grained(tokens: int) -> Mapping[str, Any]:
    """Find in extents that are rounded to so many tokens."""
    policy = scenario("exact", base=Policy(name="", kind=Kind.PAGED, granularity_tokens=tokens))
    return replayed(same(60, 100, 50), policy)


def sharing(tokens: int, *, caching: bool) -> Mapping[str, Any]:
    """Find in requests that begin with so many tokens alike."""
    traffic = replace(same(40, 100, 10, every=0.05), content=SharedPrefix(tokens=np.full(40, tokens, np.int32)))
    return replayed(traffic, scenario("paged", base=Policy(name="", kind=Kind.PAGED, prefix_caching=caching)))


def waiting(count: int) -> Mapping[str, Any]:
    """Find in a server of which 30 % is held and so many wait."""
    low = {"held": 300, "running": 8, "waiting": count}
    return look(texts(low, low | {"ended": 110}))


def quiet(**more: Any) -> Mapping[str, Any]:
    """Find in a server on which nothing runs."""
    return look(texts({"held": 0, "running": 0, "waiting": 0, "ended": 200, "tokens": 0} | more))


def out_of_memory(wanted: str, free: str, cached: str, *, pool: bool = False) -> Mapping[str, Any]:
    """Find in an allocation that failed."""
    refused = OOM.format(
        f"{wanted}. GPU 0 has a total capacity of 15.77 GiB of which {free} is free. Process 562167 has 15.25 GiB "
        f"memory in use. Of the allocated memory 13.73 GiB is allocated by PyTorch, and {cached} is reserved by "
        "PyTorch but unallocated."
    )
    return logged(log(*([start(), SIZE] if pool else []), refused, REFUSAL))


def beside(others: str) -> Mapping[str, Any]:
    """Find in an allocation that failed on a device of 16 GiB, of which this process has so much."""
    refused = OOM.format(
        "20.00 MiB. GPU 0 has a total capacity of 15.51 GiB of which 149.62 MiB is free. Process 1839 has 322.23 MiB "
        f"memory in use. Including non-PyTorch memory, this process has {others} memory in use. Of the allocated "
        "memory 11.47 GiB is allocated by PyTorch, and 10.27 MiB is reserved by PyTorch but unallocated."
    )
    return logged(log(refused, REFUSAL))


def two_pools(**options: str) -> Mapping[str, Any]:
    """Find in a model whose states and tokens have a pool each."""
    return planned("granite-4.0-h-small", engine="sglang", length=800, options=options)


def on_a_device(engine: str) -> Mapping[str, Any]:
    """Find in a plan whose memory was estimated from a device."""
    from kvledger.engines.plan import Deployment, GpuBudget
    from kvledger.engines.registry import ENGINES, load_planner
    from kvledger.engines.size import SizeQuestion, answer_size
    from kvledger.findings.evidence import SizeCase
    from kvledger.findings.search import find_in_size
    from kvledger.units import GIB

    planner, model = load_planner(engine), find_model("llama-3-8b")
    deployment = Deployment(engine=engine, version=ENGINES[engine].latest)
    memory = planner.model_memory(model, deployment, GpuBudget(total_bytes=80 * GIB, weights_bytes=15 * GIB))
    outcome = answer_size(planner, SizeQuestion(model=model, deployment=deployment, memory=memory))
    return {found.code: found for found in find_in_size([SizeCase(outcome=outcome, planner=planner)]).findings}


PRESSED_POOL = Pool(bytes_per_token=2, memory_bytes=2000)
LARGE = Pool(bytes_per_token=2**12, memory_bytes=2**30)
SPLIT = {"ctx_size": "32768", "parallel": "4"}
OLD_FILE = {"ctx_size": "4096", "parallel": "1"}
STALL = busy(2, 5, 3, 80.0), busy(3, 5, 3, 80.0, prompt=0.0, generation=0.0)

PAIRS: dict[str, tuple[Found, Found]] = {
    "KV001": (
        lambda: replayed(same(60, 40, 40), scenario("max"), scenario("paged")),
        lambda: replayed(same(60, 380, 19), scenario("max"), scenario("paged")),
    ),
    "KV002": (
        lambda: replayed(same(60, 40, 40), scenario("no-evict")),
        lambda: replayed(same(60, 40, 40, limit=50), scenario("no-evict")),
    ),
    "KV003": (
        lambda: replayed(same_but_long(), scenario("exact@first")),
        lambda: replayed(SHORT, scenario("exact@first")),
    ),
    "KV004": (lambda: replayed(SHORT, scenario("paged@128")), lambda: replayed(SHORT, scenario("paged@16"))),
    "KV005": (lambda: grained(128), lambda: grained(1)),
    "KV006": (
        lambda: replayed(same(10, 100, 50, every=9.0), scenario("grow")),
        lambda: replayed(same(10, 100, 50, every=9.0), scenario("paged")),
    ),
    "KV007": (
        lambda: replayed(workload(*[(0.0, 20, 5 if n % 4 else 300) for n in range(40)]), scenario("static-batch")),
        lambda: replayed(workload(*[(0.0, 20, 5) for _ in range(40)]), scenario("static-batch")),
    ),
    "KV010": (
        lambda: replayed(PRESSED, scenario("paged", tokens=PRESSED_POOL)),
        lambda: replayed(PRESSED, scenario("paged", tokens=PRESSED_POOL, max_num_seqs=5)),
    ),
    "KV011": (
        lambda: look(texts({"held": 990}, {"held": 995, "ended": 110})),
        lambda: look(texts({"held": 700}, {"held": 705, "ended": 110})),
    ),
    "KV012": (
        lambda: replayed(workload((0.0, 100, 71), (1.0, 20, 5)), scenario("paged", tokens=160)),
        lambda: replayed(workload((0.0, 100, 61), (1.0, 20, 5)), scenario("paged", tokens=160)),
    ),
    "KV013": (lambda: served(*STALL[0], *STALL[1]), lambda: served(*STALL[0], *STALL[1][:2])),
    "KV014": (lambda: waiting(20), lambda: waiting(0)),
    "KV015": (
        lambda: replayed(workload((0.0, 120, 5), (1.0, 20, 5)), scenario("paged", max_model_len=120)),
        lambda: replayed(workload((0.0, 119, 5), (1.0, 20, 5)), scenario("paged", max_model_len=120)),
    ),
    "KV016": (
        lambda: planned("qwen2.5-32b", memory=2**33, max_model_len=32_000, length=16_000, count=3),
        lambda: planned("qwen2.5-32b", memory=2**33, max_model_len=32_000, length=16_000, count=2),
    ),
    "KV017": (
        lambda: logged(SHARED.format("true") + ENDED.format(1)),
        lambda: logged(SHARED.format("false") + ENDED.format(1)),
    ),
    "KV018": (lambda: logged(REFUSED), lambda: logged(REFUSED.partition("llama_kv_cache_init")[0])),
    "KV020": (
        lambda: replayed(IDLE, scenario("paged", tokens=LARGE)),
        lambda: replayed(same(80, 40, 10), scenario("paged", tokens=LARGE, max_num_seqs=2)),
    ),
    "KV021": (
        lambda: planned("llama-3.1-8b", max_model_len=8192, length=2048),
        lambda: planned("llama-3.1-8b", max_model_len=8192, length=2049),
    ),
    "KV022": (lambda: on_a_device("tensorrt-llm"), lambda: planned("llama-3-8b", engine="tensorrt-llm")),
    "KV023": (
        lambda: logged(log(start(length=4096), SIZE, start(), "Available KV cache memory: 14.39 GiB")),
        lambda: logged(log(start(length=4096), SIZE, start(), "Available KV cache memory: 14.42 GiB")),
    ),
    "KV030": (lambda: sharing(64, caching=False), lambda: sharing(0, caching=False)),
    "KV031": (lambda: sharing(0, caching=True), lambda: sharing(64, caching=True)),
    "KV032": (
        lambda: logged(log(start(), WIDE.format(784), SIZE)),
        lambda: logged(log(start(), WIDE.format(128), SIZE)),
    ),
    "KV033": (quiet, lambda: quiet(ended=1)),
    "KV034": (
        lambda: logged(FORGOTTEN.format(1024)),
        lambda: logged(FORGOTTEN.format(1024).splitlines(keepends=True)[0]),
    ),
    "KV040": (
        lambda: planned("qwen3.5-27b", length=12),
        lambda: planned("qwen3.5-27b", length=32_768),
    ),
    "KV041": (lambda: planned("gemma-3-27b", length=800), lambda: planned("gpt-oss-20b", length=800)),
    "KV042": (lambda: planned("llama-3.1-70b", tp=16), lambda: planned("llama-3.1-70b", tp=8)),
    "KV043": (lambda: planned("deepseek-v3", tp=8), lambda: planned("deepseek-v3", tp=1)),
    "KV044": (
        lambda: planned("llama-4-scout-17b-16e", version="0.13.0", memory=80 * 2**30, max_model_len=131_072),
        lambda: planned("llama-4-scout-17b-16e", version="0.19.1", memory=80 * 2**30, max_model_len=131_072),
    ),
    "KV045": (
        lambda: logged("\n".join((RANK.format(0, "8.69"), RANK.format(1, "8.59")))),
        lambda: logged("\n".join((RANK.format(0, "8.69"), RANK.format(1, "8.61")))),
    ),
    "KV046": (lambda: planned("llama-2-7b", length=800), lambda: planned("llama-3.1-8b", length=800)),
    "KV047": (
        lambda: planned("deepseek-v2-lite", engine="llama.cpp", options=OLD_FILE | {"mla_tensors": "false"}),
        lambda: planned("deepseek-v2-lite", engine="llama.cpp", options=OLD_FILE | {"mla_tensors": "true"}),
    ),
    "KV048": (
        lambda: logged(LLAMA_SPLIT),
        lambda: logged(LLAMA_SPLIT.replace("= 6", "= 1").replace("27306", "163840")),
    ),
    "KV049": (lambda: logged(OLLAMA), lambda: logged(OLLAMA.replace("--parallel 4", "--parallel 1"))),
    "KV050": (
        two_pools,
        lambda: two_pools(mamba_full_memory_ratio=two_pools()["KV050"].best.setting.split()[-1]),
    ),
    "KV060": (
        lambda: logged(log(start(), "GPU KV cache size: 32,768 tokens", TIMES)),
        lambda: logged(log(start(), TOKENS, TIMES)),
    ),
    "KV061": (lambda: served(*busy(3, 17, 0, 60.0)), lambda: served(*busy(3, 16, 0, 60.0))),
    "KV062": (lambda: quiet(tokens=700), lambda: quiet(tokens=0)),
    "KV063": (lambda: served(tp=2), lambda: served(tp=1)),
    "KV070": (
        lambda: out_of_memory("546.00 MiB", "514.19 MiB", "736.86 MiB"),
        lambda: out_of_memory("546.00 MiB", "14.19 MiB", "10.00 MiB"),
    ),
    "KV071": (lambda: beside("13.80 GiB"), lambda: beside("13.83 GiB")),
    "KV072": (
        lambda: out_of_memory("16.00 GiB", "187.94 MiB", "10.00 MiB"),
        lambda: out_of_memory("16.00 GiB", "187.94 MiB", "10.00 MiB", pool=True),
    ),
}


def test_every_finding_has_a_pair():
    assert list(PAIRS) == [rule.code for rule in RULES]


@pytest.mark.parametrize("code", PAIRS)
def test_it_is_found_where_it_is_and_not_where_it_is_not(code):
    found, near = PAIRS[code]
    assert code in found()
    assert code not in near()
