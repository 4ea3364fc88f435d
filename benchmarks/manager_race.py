"""Race our prefix caches against vLLM's own `KVCacheManager` on a real trace: the same operations, the same answers.

    python -m benchmarks.manager_race TRACE --vllm-python VENV/bin/python --block-size 16

Requests come one after the other; each is looked up, given blocks for all of its prompt, and freed. The tokens found
for each request, and the free blocks in the end, must be equal for vLLM, for our blocks and for our runs of blocks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from kvledger.pool import prefix, runs
from kvledger.pool.compiled import compiled
from kvledger.replay import Workload
from kvledger.replay.cache import cut_blocks
from kvledger.replay.identity import KnownContent, find_known_content
from kvledger.sources.files import load_trace


@compiled
def serve_blocks(pool, offsets, nodes, tokens, block, table, found):
    """Serve the requests block by block; note the tokens found for each, -1 where it did not fit."""
    for i in range(found.shape[0]):
        begin, full = offsets[i], offsets[i + 1] - offsets[i]
        hits, idle = 0, 0
        while hits < (tokens[i] - 1) // block:
            cached = prefix.find_block(pool, prefix.mix(nodes[begin + hits]))
            if cached == prefix.NOBODY:
                break
            table[hits] = cached
            idle += pool.references[cached] == 0
            hits += 1
        needed = (tokens[i] + block - 1) // block
        found[i] = -1
        if needed - hits + idle > pool.counts[prefix.FREE]:
            continue
        found[i] = hits * block
        for index in range(hits):
            prefix.refer(pool, table[index])
        for index in range(hits, needed):
            table[index] = prefix.allocate(pool)
        for index in range(hits, full):
            prefix.insert(pool, table[index], prefix.mix(nodes[begin + index]))
        for index in range(needed - 1, -1, -1):
            prefix.release(pool, table[index])


@compiled
def serve_runs(pool, offsets, ids, tokens, block, each, table, found):
    """Serve the requests by runs: an id of the trace covers ``each`` blocks."""
    for i in range(found.shape[0]):
        full, most = tokens[i] // block, (tokens[i] - 1) // block
        hits, idle = 0, 0
        while hits < most:
            limit = min(each, most - hits)
            parts, unused = runs.find_parts(pool, prefix.mix(ids[offsets[i] + hits // each]), limit)
            hits += parts
            idle += unused
            if parts < limit:
                break
        needed = (tokens[i] + block - 1) // block
        found[i] = -1
        if needed - hits + idle > pool.counts[prefix.FREE]:
            continue
        found[i] = hits * block
        length = 0
        for index in range(0, hits, each):
            key = prefix.mix(ids[offsets[i] + index // each])
            length, _ = runs.refer(pool, table, length, key, min(each, hits - index))
        runs.take(pool, needed - hits)
        index = hits
        while index < full:
            first = index // each * each
            stop = min(first + each, full)
            key = prefix.mix(ids[offsets[i] + index // each])
            length = runs.identify(pool, table, length, key, index - first, stop - first)
            index = stop
        pool.counts[prefix.FREE] += needed - full
        runs.release(pool, table, length)


class Race:
    """A trace cut into blocks, and the pool it is served from."""

    def __init__(self, workload: Workload, *, block_size: int, capacity_tokens: int) -> None:
        self.stream = cut_blocks(workload, block_size=block_size, whole_blocks=True)
        self.known: KnownContent = find_known_content(workload, block_size=block_size)
        self.blocks = capacity_tokens // block_size
        self.longest = int(np.diff(self.stream.offsets).max()) + 2

    def by_blocks(self, requests: int) -> tuple[float, list[int], int]:
        """Return processor seconds, the tokens found for each request, and the free blocks in the end."""
        pool, found = prefix.new_pool(self.blocks), np.zeros(requests, np.int64)
        s, table = self.stream, np.zeros(self.longest, np.int32)
        began = time.process_time()
        serve_blocks(pool, s.offsets, s.nodes, s.prompt_tokens, s.block_size, table, found)
        return time.process_time() - began, found.tolist(), int(pool.counts[prefix.FREE])

    def by_runs(self, requests: int) -> tuple[float, list[int], int]:
        """Return the same of runs."""
        pool, found = runs.new_run_pool(self.blocks), np.zeros(requests, np.int64)
        s, known, table = self.stream, self.known, np.zeros((self.longest, 2), np.int32)
        each = max(1, known.grain_tokens // s.block_size)
        began = time.process_time()
        serve_runs(pool, known.offsets, known.ids, s.prompt_tokens, s.block_size, each, table, found)
        return time.process_time() - began, found.tolist(), int(pool.counts[prefix.FREE])

    def by_vllm(self, requests: int, python: str) -> tuple[float, list[int], int]:
        """Return the same of vLLM's manager, which a process of its own drives."""
        s = self.stream
        with tempfile.TemporaryDirectory() as folder:
            prompts, answer = Path(folder, "prompts.npz"), Path(folder, "answer.json")
            np.savez(
                prompts, block_size=s.block_size, blocks=self.blocks, tokens=s.prompt_tokens[:requests],
                offsets=s.offsets[: requests + 1], nodes=s.nodes[: s.offsets[requests]],
            )  # fmt: skip
            script = Path(__file__).with_name("oracle_manager_speed.py")
            subprocess.run([python, str(script), str(prompts), str(answer)], check=True)
            told = json.loads(answer.read_text(encoding="utf-8"))
        return sum(told["seconds"]), told["found_tokens"], told["free_blocks"][-1]

    def row(self, requests: int, python: str) -> str:
        """Run all three, and return a row of the table."""
        for warm in (self.by_blocks, self.by_runs):
            warm(1)
        requests = min(requests, self.stream.requests)
        vllm, *answer = self.by_vllm(requests, python)
        fastest = []
        for ours in (self.by_blocks, self.by_runs):
            tries = [ours(requests) for _ in range(5)]
            assert all([found, free] == answer for _, found, free in tries), "they do not answer the same"
            fastest.append(sorted(seconds for seconds, _, _ in tries)[2])
        found = sum(tokens for tokens in answer[0] if tokens > 0) / int(self.stream.prompt_tokens[:requests].sum())
        rates = [requests / seconds for seconds in (vllm, *fastest)]
        return (
            f"| {self.stream.block_size} | {requests:,} | {found:.1%} | "
            + " | ".join(f"{rate:,.0f}" for rate in rates)
            + f" | {rates[1] / rates[0]:,.0f} | {rates[2] / rates[0]:,.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", help="a trace with chain ids of 512 tokens, such as Mooncake's")
    parser.add_argument("--vllm-python", required=True)
    parser.add_argument("--block-size", type=int, action="append")
    parser.add_argument("--capacity-tokens", type=int, default=3_355_443, help="default: 1 TiB of Llama-3.1-70B")
    parser.add_argument("--requests", type=int, default=2**62)
    options = parser.parse_args()
    workload = load_trace(options.trace).workload
    print("| block | requests | found | vLLM, requests a second | our blocks | our runs | times | times |")
    print("|---|---|---|---|---|---|---|---|")
    for size in options.block_size or [16, 512]:
        race = Race(workload, block_size=size, capacity_tokens=options.capacity_tokens)
        print(race.row(options.requests, options.vllm_python), flush=True)


if __name__ == "__main__":
    main()
