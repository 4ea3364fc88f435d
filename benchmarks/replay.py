"""Speed and memory of the replay, each as a median of several runs in this process or in fresh ones."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from benchmarks.running import Benchmark
from kvledger.pool import Kind, Policy, parse_policy
from kvledger.replay import Outcome, Pool, Settings, Workload, parse_clock, replay
from kvledger.replay.cache import Eviction, cut_blocks, measure_cache
from kvledger.replay.fit import fit_clock
from kvledger.sources.files import load_trace
from kvledger.sources.kernels import KernelCache

TRACES = Path(__file__).resolve().parents[2] / "shared/traces"
AZURE = TRACES / "azure2023/AzureLLMInferenceTrace_conv.csv"
MOONCAKE = TRACES / "mooncake/conversation_trace.jsonl.gz"
RTX_4090 = TRACES / "llmservingsim/vllm_runs/RTX4090/Llama-3.1-8B"
BLOCK_BYTES = 160 * 2**20  # 512 tokens of llama-3.1-70b in 16 bits


def timed(work: Callable[[], Outcome]) -> tuple[float, Outcome]:
    began = time.perf_counter()
    outcome = work()
    return time.perf_counter() - began, outcome


def azure() -> float:
    """Seconds for the Azure conversation trace: 19,366 requests, 369,704 steps, full ledger."""
    if not AZURE.is_file():
        raise FileNotFoundError(AZURE)
    workload = load_trace(str(AZURE)).workload
    policy = parse_policy("paged")
    settings = Settings(
        max_model_len=2**20, max_num_seqs=256, max_num_batched_tokens=8192, clock=parse_clock("0.008,2e-5,1e-5,1e-8")
    )
    pool = Pool(bytes_per_token=131_072, num_blocks=28_000)
    replay(workload, policy, pool=pool, settings=settings)
    seconds, outcome = timed(lambda: replay(workload, policy, pool=pool, settings=settings))
    assert (outcome.steps, outcome.finished) == (369_704, 19_366), outcome
    return seconds


def cache(gibs: list[int], evictions: list[Eviction]) -> Callable[[], float]:
    """Seconds for a prefix cache of these sizes over the Mooncake conversation trace, blocks of 512 tokens."""

    def run() -> float:
        if not MOONCAKE.is_file():
            raise FileNotFoundError(MOONCAKE)
        stream = cut_blocks(load_trace(str(MOONCAKE)).workload, block_size=512, whole_blocks=False)
        sizes = [gib * 2**30 // BLOCK_BYTES for gib in gibs]
        measure_cache(stream, sizes=sizes[:1], evictions=evictions)
        began = time.perf_counter()
        measure_cache(stream, sizes=sizes, evictions=evictions)
        return time.perf_counter() - began

    return run


def conversation(policy: str) -> Callable[[], float]:
    """CPU seconds for the Mooncake conversation trace with a prefix cache in 1 TiB of Llama-3.1-70B, full ledger."""

    def run() -> float:
        if not MOONCAKE.is_file():
            raise FileNotFoundError(MOONCAKE)
        workload = load_trace(str(MOONCAKE)).workload
        settings = Settings(max_model_len=200_000, clock=parse_clock("0.01,1e-5,1e-5,1e-9"))
        pool = Pool(bytes_per_token=327_680, memory_bytes=2**40)
        replay(workload, parse_policy(policy), pool=pool, settings=settings)
        began = time.process_time()
        outcome = replay(workload, parse_policy(policy), pool=pool, settings=settings)
        assert outcome.finished == len(workload), outcome
        return time.process_time() - began

    return run


def fit() -> float:
    """Seconds to fit the clock to a third of the recorded RTX 4090 run: 300 requests, a full pool, prefix caching."""
    if not RTX_4090.is_dir():
        raise FileNotFoundError(RTX_4090)
    trace = load_trace(str(RTX_4090))
    assert trace.observed is not None
    began = time.perf_counter()
    fit_clock(
        trace.workload,
        Policy(name="paged", kind=Kind.PAGED, prefix_caching=True, full_sequence_must_fit=False),
        pool=Pool(bytes_per_token=131_072, num_blocks=2587, block_size=16),
        settings=Settings(max_model_len=32_768, max_num_seqs=256, max_num_batched_tokens=2048),
        observed=trace.observed,
    )
    return time.perf_counter() - began


def rate(spec: str, policy: str, pool: Pool, max_model_len: int) -> float:
    """Requests a second of a saturated queue."""
    workload = load_trace(spec).workload
    settings = Settings(max_model_len=max_model_len, max_num_seqs=1024, max_num_batched_tokens=8192)
    chosen = parse_policy(policy, base=Policy(name="", kind=Kind.PAGED))
    head = Workload(**{n: getattr(workload, n)[:10] for n in ("arrival_seconds", "prompt_tokens", "output_tokens")})
    replay(head, chosen, pool=pool, settings=settings)
    seconds, outcome = timed(lambda: replay(workload, chosen, pool=pool, settings=settings))
    assert outcome.finished + sum(outcome.rejected.values()) == len(workload)
    return len(workload) / seconds


def saturated_paged() -> float:
    return rate(
        "synthetic:sharegpt,requests=200000,rate=inf", "paged", Pool(bytes_per_token=819_200, num_blocks=983), 2048
    )


def hundred(policy: str) -> Callable[[], float]:
    spec = "synthetic:chat,requests=200000,rate=inf"
    tokens = {"max": 100 * 4096, "declared": 100 * 4096, "pow2": 200_000, "exact": 150_000}[policy.split("@")[0]]
    return lambda: rate(spec, policy, Pool(bytes_per_token=131_072, capacity_tokens=tokens), 4096)


_TEN_MILLION = """
from kvledger.sources.kernels import KernelCache
KernelCache().activate()
from kvledger.pool import parse_policy
from kvledger.replay import Pool, Settings, replay
from kvledger.sources.files import load_trace
workload = load_trace("synthetic:sharegpt,requests=10000000,rate=inf").workload
outcome = replay(workload, parse_policy("paged"), pool=Pool(bytes_per_token=819200, num_blocks=983),
                 settings=Settings(max_model_len=2048))
assert outcome.finished == 10_000_000
print([int(line.split()[1]) / 2**20 for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""


def ten_million() -> float:
    """Peak resident GiB of a process that draws and replays ten million requests."""
    return float(
        subprocess.run([sys.executable, "-c", _TEN_MILLION], check=True, capture_output=True, text=True).stdout
    )


_WEEK = """
import json, sys, tempfile, time
from kvledger.sources.kernels import KernelCache
KernelCache().activate()
from kvledger.pool import parse_policy
from kvledger.replay import Pool, Settings, parse_clock, replay
from kvledger.sources.files import load_trace
from kvledger.traces.formats.own import write_trace
from kvledger.traces import synthesise
def peak():
    return [int(line.split()[1]) / 2**20 for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
pool = Pool(bytes_per_token=131072, memory_bytes=600 * 2**30)
settings = Settings(max_model_len=4096, max_num_seqs=8192, max_num_batched_tokens=32768,
                    clock=parse_clock("0.01,1e-5,1e-5,1e-9"))
replay(synthesise("synthetic:chat,requests=10").workload, parse_policy("paged"), pool=pool, settings=settings)
began = time.process_time()
trace = load_trace(sys.argv[1])
loaded = time.process_time()
if len(sys.argv) > 2:
    with open(sys.argv[2], "wb") as stream:
        write_trace(trace, stream)
replaying = time.process_time()
outcome = replay(trace.workload, parse_policy("paged"), pool=pool, settings=settings)
assert outcome.finished == 44_000_000, outcome
print(json.dumps({"load": loaded - began, "replay": time.process_time() - replaying, "peak": peak()}))
"""
WEEK = "synthetic:chat,requests=44000000,rate=72.75,swing=0.6"


@lru_cache(maxsize=1)
def _week() -> dict[str, dict[str, float]]:
    """Draw and replay a week of 44 million requests, then read the same from Parquet and replay it."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/week.parquet"
        programs = {"drawn": [WEEK, path], "read": [path]}
        return {
            name: json.loads(
                subprocess.run(
                    [sys.executable, "-c", _WEEK, *arguments], check=True, capture_output=True, text=True
                ).stdout
            )
            for name, arguments in programs.items()
        }


def week(how: str, what: str) -> Callable[[], float]:
    return lambda: _week()[how][what]


def first_use() -> float:
    """Seconds that the kernels of `paged` take to compile and run once, as the command itself says."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = "replay synthetic:chat,requests=10 --bytes-per-token 1 --num-blocks 9000 --policy paged --json"
        done = subprocess.run(
            [sys.executable, "-m", "kvledger", *arguments.split()],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "XDG_CACHE_HOME": folder},
        )
    found = re.search(r"compiled and ran in ([0-9.]+) s", done.stderr)
    assert found, done.stderr
    return float(found[1])


def help_text() -> float:
    return 1000 * _seconds_of(["-m", "kvledger", "--help"], {})


def demo() -> float:
    return _seconds_of(["-m", "kvledger", "demo", "-q"], {})


def _seconds_of(arguments: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env={**os.environ, **environment})
    return time.perf_counter() - began


def _per_second(value: float) -> str:
    return f"{value:,.0f}/s"


KernelCache().activate()
BENCHMARKS = {
    "azure conversation, paged, full ledger": Benchmark(azure, lambda s: f"{1000 * s:.1f} ms", "under 50 ms"),
    "one prefix cache of 1 TiB, lru": Benchmark(
        cache([1024], [Eviction.LRU]), lambda s: f"{1000 * s:.1f} ms", "under 100 ms"
    ),
    "42 prefix caches, 1 GiB to 8 TiB": Benchmark(
        cache([2**i for i in range(14)], list(Eviction)), lambda s: f"{1000 * s:.0f} ms", "under 1 s"
    ),
    "mooncake conversation, prefix cache, blocks of 16": Benchmark(
        conversation("paged@16:blocks"), lambda s: f"{s:.2f} s", "under 1.5 s"
    ),
    "mooncake conversation, prefix cache, blocks of 512": Benchmark(
        conversation("paged@512:blocks"), lambda s: f"{1000 * s:.0f} ms", "under 100 ms"
    ),
    "mooncake conversation, radix tree, single tokens": Benchmark(
        conversation("paged:radix"), lambda s: f"{1000 * s:.0f} ms", "under 1.5 s"
    ),
    "a clock fitted to a recorded run": Benchmark(fit, lambda s: f"{s:.1f} s", "under 10 s", runs=3),
    "saturated paged, 983 blocks": Benchmark(saturated_paged, _per_second, "1,000,000/s"),
    **{
        f"saturated {policy}, about 100 running": Benchmark(hundred(policy), _per_second, "300,000/s")
        for policy in ("max", "max@buddy", "pow2@buddy", "exact", "exact@first")
    },
    "ten million requests": Benchmark(ten_million, lambda gib: f"{gib:.2f} GiB", "under 1 GiB", runs=1),
    **{
        f"a week of 44 million requests, {name}": Benchmark(week(*figure), write, target, runs=1)
        for name, figure, write, target in (
            ("drawn", ("drawn", "load"), lambda s: f"{s:.1f} s", "with its replay under 60 s"),
            ("read from Parquet", ("read", "load"), lambda s: f"{s:.1f} s", ""),
            ("replayed", ("drawn", "replay"), lambda s: f"{s:.1f} s", "with drawing under 60 s"),
            ("peak memory", ("read", "peak"), lambda gib: f"{gib:.2f} GiB", "under 1.5 GiB"),
        )
    },
    "first use, compiling": Benchmark(first_use, lambda s: f"{s:.1f} s", "at most 12 s", runs=3),
    "kvledger --help": Benchmark(help_text, lambda ms: f"{ms:.0f} ms", "under 150 ms"),
    "kvledger demo, after the first time": Benchmark(demo, lambda s: f"{s:.1f} s", "under 5 s", runs=3),
}
