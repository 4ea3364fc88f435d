"""Record what vLLM's own `KVCacheManager` does under a random schedule, for the tests of our block tables.

Run with the Python of an installed vLLM 0.32 (CPU builds will do)::

    python benchmarks/oracle_kv_cache_manager.py OUT.json --case mixed --seed 7 --operations 10000

A record is ours: the groups of layers, the requests as lengths and shared prefixes, and each operation (admit, extend,
free, next step) with what the manager answered: whether it had the blocks, the tokens it found in the prefix cache, the
blocks in use afterwards. Also the seconds that the manager itself took. No part of vLLM is stored.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path

ADMIT, EXTEND, FREE, STEP = range(4)
CASES = ("full", "window", "mixed", "sizes", "windows", "chunk", "state", "uncached")


def draw_case(name, rng):
    """Draw groups, and the settings that matter to the manager."""
    block = rng.choice([1, 4, 8, 16, 32]) if name in ("full", "window") else rng.choice([4, 8, 16])
    window = rng.randint(2, 6 * block + 2)
    full = {"kind": "full", "block": block, "span": 0}
    sliding = {"kind": "window", "block": block, "span": window}
    wide = {"kind": "window", "block": block, "span": window + rng.randint(1, 5 * block)}
    chunked = {"kind": "chunk", "block": block, "span": block * rng.randint(1, 6)}
    state = {"kind": "state", "block": block, "span": 0}
    groups = {
        "full": [full],
        "window": [sliding],
        "mixed": [sliding, full] if rng.random() < 0.4 else [sliding, sliding, full],
        "sizes": [{**sliding, "block": block}, {**full, "block": block * rng.choice([2, 3])}],
        "windows": [wide, sliding, full] if rng.random() < 0.7 else [wide, sliding],
        "chunk": [chunked, full] if rng.random() < 0.5 else [chunked, chunked, full],
        "state": [state, state, full] if rng.random() < 0.7 else [state, full],
        "uncached": [sliding, {**chunked, "span": chunked["span"] + rng.randint(0, 3)}, full],
    }[name]
    return {
        "name": name,
        "groups": groups,
        "caching": name != "uncached" and not (name == "full" and rng.random() < 0.2),
        "blocks": rng.randint(20, 60) * len(groups),
        "max_model_len": 30 * block,
        "in_flight": rng.choice([1, 3 * block, 12 * block]),
        "whole": rng.random() < 0.7,
    }


def draw_requests(case, rng, count):
    """Draw (prompt, output, stream, shared): the first ``shared`` tokens come from one of three streams."""
    longest = case["max_model_len"]
    requests = []
    for _ in range(count):
        prompt = rng.randint(1, longest - 1)
        output = rng.randint(1, min(longest - prompt, rng.choice([3, longest])))
        requests.append((prompt, output, rng.randrange(3), rng.randint(0, prompt)))
    return requests


def prompt_tokens(number, request):
    """Return the token ids of a prompt; unique ones are counted from the number of the request."""
    prompt, _, stream, shared = request
    return [(1 + stream) * 2**20 + i if i < shared else 2**23 + number * 2**12 + i for i in range(prompt)]


class Driver:
    """vLLM's manager, and the schedule that drives it the way its scheduler does."""

    def __init__(self, case, requests, rng):
        import torch
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import (
            ChunkedLocalAttentionSpec,
            FullAttentionSpec,
            KVCacheConfig,
            KVCacheGroupSpec,
            MambaSpec,
            SlidingWindowSpec,
        )

        shape = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}

        def spec(group):
            block, span = group["block"], group["span"]
            match group["kind"]:
                case "full":
                    return FullAttentionSpec(block_size=block, **shape)
                case "window":
                    return SlidingWindowSpec(block_size=block, sliding_window=span, **shape)
                case "chunk":
                    return ChunkedLocalAttentionSpec(block_size=block, attention_chunk_size=span, **shape)
                case "state":
                    return MambaSpec(
                        block_size=block, shapes=((1,),), dtypes=(torch.float32,), mamba_cache_mode="align"
                    )

        sizes = [group["block"] for group in case["groups"]]
        hashed = math.gcd(*sizes)
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(hashed, sha256) if case["caching"] else None
        self.manager = KVCacheManager(
            KVCacheConfig(
                num_blocks=case["blocks"] + 1,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec([f"layer.{i}"], spec(g)) for i, g in enumerate(case["groups"])],
                prefix_cache_retention_interval=0,
            ),
            max_model_len=case["max_model_len"],
            scheduler_block_size=math.lcm(*sizes),
            hash_block_size=hashed,
            max_in_flight_tokens=case["in_flight"],
            enable_caching=case["caching"],
        )
        self.case, self.requests, self.rng = case, requests, rng
        self.live, self.running, self.waiting, self.next = {}, [], [], 0
        self.operations, self.results, self.seconds = [], [], 0.0

    def used(self):
        pool = self.manager.block_pool
        return pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()

    def note(self, operation, number, a, b, answer):
        self.operations.append((operation, number, a, b))
        self.results.append((*answer, self.used()))

    def timed(self, function, *arguments, **named):
        start = time.perf_counter()
        answer = function(*arguments, **named)
        self.seconds += time.perf_counter() - start
        return answer

    def arrive(self):
        from vllm import SamplingParams
        from vllm.v1.request import Request

        number = self.next % len(self.requests)
        if number in self.live:
            return
        self.next += 1
        self.live[number] = Request(
            str(number), prompt_tokens(number, self.requests[number]), SamplingParams(max_tokens=2**20), None,
            block_hasher=self.hasher,
        )  # fmt: skip
        self.waiting.append(number)

    def chunk(self, start, tokens):
        """Return how many tokens to compute next; beside states, chunks end at block boundaries."""
        end = start + min(tokens - start, self.rng.randint(1, self.case["in_flight"]))
        if not (self.case["caching"] and any(g["kind"] == "state" for g in self.case["groups"])):
            return end - start
        block = self.case["groups"][0]["block"]
        last = (tokens - 1) // block * block
        if end < tokens:
            end = max(end // block * block, min((start // block + 1) * block, tokens))
        return (last if start < last < end else end) - start

    def admit(self):
        number = self.waiting[0]
        request = self.live[number]
        blocks, hit, request.shared_prefix_boundary = self.timed(self.manager.get_computed_blocks, request)
        n = self.chunk(hit, request.num_tokens)
        taken = self.timed(
            self.manager.allocate_slots, request, n, num_new_computed_tokens=hit, new_computed_blocks=blocks,
            full_sequence_must_fit=self.case["whole"], has_scheduled_reqs=bool(self.running),
        )  # fmt: skip
        self.note(ADMIT, number, request.num_tokens, n, (int(taken is not None), hit))
        if taken is not None:
            self.waiting.pop(0)
            self.running.append(number)
            self.advance(request, number, hit + n)

    def extend(self):
        number = self.rng.choice(self.running)
        request = self.live[number]
        n = self.chunk(request.num_computed_tokens, request.num_tokens)
        while True:
            taken = self.timed(self.manager.allocate_slots, request, n)
            self.note(EXTEND, number, request.num_computed_tokens, n, (int(taken is not None), 0))
            if taken is not None:
                self.advance(request, number, request.num_computed_tokens + n)
                return
            victim = self.running[-1]
            self.leave(victim)
            self.live[victim].num_computed_tokens = 0
            self.waiting.insert(0, victim)
            if victim == number:
                return

    def advance(self, request, number, computed):
        request.num_computed_tokens = computed
        if computed == request.num_tokens:
            generated = request.num_tokens - request.num_prompt_tokens
            if generated + 1 == self.requests[number][1]:
                self.leave(number)
                del self.live[number]
            else:
                request.append_output_token_ids(2**24 + number * 2**12 + generated)

    def leave(self, number):
        self.timed(self.manager.free, self.live[number])
        self.running.remove(number)
        self.note(FREE, number, 0, 0, (1, 0))

    def step(self):
        self.timed(self.manager.new_step_starts)
        self.note(STEP, 0, 0, 0, (1, 0))

    def drive(self, operations):
        while len(self.operations) < operations:
            if len(self.waiting) < 3:
                self.arrive()
            draw = self.rng.random()
            if draw < 0.3 and self.waiting:
                self.admit()
            elif draw < 0.9 and self.running:
                self.extend()
            elif draw < 0.92 and self.running:
                number = self.rng.choice(self.running)
                self.leave(number)
                del self.live[number]
            else:
                self.step()


def record(name, seed, operations):
    """Return the record of one random schedule."""
    rng = random.Random(f"{name} {seed}")
    case = draw_case(name, rng)
    requests = draw_requests(case, rng, max(50, operations // 25))
    driver = Driver(case, requests, rng)
    driver.drive(operations)
    return {
        "engine": "vllm",
        "version": "0.32.0",
        "seed": seed,
        "case": case,
        "requests": requests,
        "operations": driver.operations,
        "results": driver.results,
        "manager_seconds": round(driver.seconds, 4),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--operations", type=int, default=10_000)
    options = parser.parse_args()
    records = [record(name, seed, options.operations) for name in options.case or CASES for seed in options.seed or [0]]
    options.out.write_text(json.dumps(records, separators=(",", ":")) + "\n", encoding="utf-8")
    for one in records:
        rate = len(one["operations"]) / one["manager_seconds"]
        print(one["case"]["name"], one["seed"], f"{rate:,.0f} operations a second in vLLM's manager")


if __name__ == "__main__":
    main()
