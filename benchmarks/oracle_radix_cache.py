"""Record what SGLang's own `RadixCache` does under a random schedule, for the tests of our radix tree.

Needs torch and the source of SGLang 0.5.18 (the folder that holds ``sglang``); what the cache does not need is replaced
by empty modules, so it runs on any CPU::

    python benchmarks/oracle_radix_cache.py SOURCE OUT.json --case token --seed 7 --operations 10000

A record is ours: the requests as lengths and shared prefixes, and each operation (admit, extend, store a chunk, finish,
drop) with what the cache answered: whether it had room, the tokens it found, and the tokens free, evictable and locked
afterwards. Also the seconds that it took. No part of SGLang is stored.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import itertools
import json
import random
import sys
import time
import types
from array import array
from pathlib import Path
from unittest import mock

ADMIT, EXTEND, CHUNK, FINISH, DROP = range(5)
CASES = {"token": (1, "lru"), "page": (4, "lru"), "wide": (16, "lru"), "fifo": (1, "fifo"), "pages-fifo": (4, "fifo")}
# What the cache itself is made of; everything else that it imports is replaced.
_REAL = {
    "sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.mem_cache.radix_cache",
    "sglang.srt.mem_cache.base_prefix_cache", "sglang.srt.mem_cache.cache_init_params",
    "sglang.srt.mem_cache.evict_policy",
}  # fmt: skip


def prompt_tokens(number, request):
    """Return the token ids of a prompt; unique ones are counted from the number of the request."""
    prompt, _, stream, shared = request
    return [(1 + stream) * 2**20 + i if i < shared else 2**23 + number * 2**12 + i for i in range(prompt)]


class _Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module without content for every part of SGLang that is not the cache."""

    def find_spec(self, name, *_):
        if name.partition(".")[0] != "sglang" or name in _REAL:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = lambda name: _placeholder(name)
        return module

    def exec_module(self, module):
        pass


def _placeholder(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {"__init__": _nothing})


def _nothing(*_, **__):
    """Do nothing, whatever is given."""


def load_cache(source):
    """Return SGLang's module of the radix cache."""
    sys.path.insert(0, str(source))
    sys.meta_path.insert(0, _Empty())
    for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache"):  # without what their own imports pull in
        package = types.ModuleType(name)
        package.__path__ = [str(Path(source, *name.split(".")))]
        sys.modules[name] = package
    strategies = importlib.import_module("sglang.srt.mem_cache.evict_policy")
    utils = types.ModuleType("sglang.srt.mem_cache.utils")
    utils.get_eviction_strategy = lambda name, *_: {"lru": strategies.LRUStrategy, "fifo": strategies.FIFOStrategy}[
        name
    ]()
    utils.split_node_hash_value = lambda *_: (None, None)
    utils.get_hash_str = None
    sys.modules[utils.__name__] = utils
    events = types.ModuleType("sglang.srt.mem_cache.events")
    methods = ("_record_store_event", "_record_remove_event", "_record_all_cleared_event")
    events.KVCacheEventMixin = type("KVCacheEventMixin", (), dict.fromkeys(methods, _nothing))
    sys.modules[events.__name__] = events
    return importlib.import_module("sglang.srt.mem_cache.radix_cache")


class Pool:
    """The free tokens: SGLang's allocators as far as the cache asks them."""

    def __init__(self, tokens):
        self.device, self.free_tokens = "cpu", tokens

    def available_size(self):
        return self.free_tokens

    def free_segment(self, indices, **_):
        self.free_tokens += len(indices)

    def free_segments(self, segments):
        for indices, _ in segments:
            self.free_segment(indices)


class Driver:
    """The cache, and a schedule that drives it the way SGLang's scheduler does."""

    def __init__(self, module, case, requests, rng):
        import torch

        page, eviction = CASES[case["name"]]
        self.module, self.torch, self.page = module, torch, page
        self.pool = Pool(case["tokens"])
        longest = max(prompt + output for prompt, output, *_ in requests) + page
        rows = types.SimpleNamespace(
            req_to_token=torch.zeros((len(requests), longest), dtype=torch.int64),
            write=lambda at, values: rows.req_to_token.__setitem__(at, values),
        )
        self.cache = module.RadixCache(
            module.CacheInitParams(
                disable=False,
                req_to_token_pool=rows,
                token_to_kv_pool_allocator=self.pool,
                page_size=page,
                eviction_policy=eviction,
            )
        )
        self.requests, self.rng, self.most = requests, rng, case["in_flight"]
        self.live, self.running, self.waiting, self.next = {}, [], [], 0
        self.operations, self.results, self.seconds = [], [], 0.0

    def note(self, operation, number, a, b, done, hit):
        self.operations.append((operation, number, a, b))
        cache = self.cache
        self.results.append((int(done), hit, self.pool.free_tokens, cache.evictable_size(), cache.protected_size()))

    def timed(self, function, *arguments, **named):
        start = time.perf_counter()
        answer = function(*arguments, **named)
        self.seconds += time.perf_counter() - start
        return answer

    def pages(self, tokens):
        return -(-tokens // self.page) * self.page

    def held(self, request):
        return self.pages(request.computed - request.cache_protected_len)

    def take(self, tokens):
        """Take tokens as `evict_from_tree_cache` and the allocators do, or nothing when there are too few."""
        if tokens > self.pool.free_tokens + self.cache.evictable_size():
            return False
        if tokens > self.pool.free_tokens:
            self.timed(self.cache.evict, self.module.EvictParams(num_tokens=tokens - self.pool.free_tokens))
        self.pool.free_tokens -= tokens
        return True

    def arrive(self):
        number = self.next % len(self.requests)
        if number in self.live:
            return
        self.next += 1
        request = types.SimpleNamespace(
            req_pool_idx=number, origin_input_ids=array("q", prompt_tokens(number, self.requests[number])),
            output_ids=array("q"), extra_key=None, cache_salt=None, priority=0, computed=0, cache_protected_len=0,
            last_node=None, prefix_indices=None,
        )  # fmt: skip
        request.get_fill_ids = lambda: self.known(request)[: request.computed]
        self.live[number] = request
        self.waiting.append(number)

    def known(self, request):
        return request.origin_input_ids + request.output_ids

    def admit(self):
        number = self.waiting[0]
        request, cache = self.live[number], self.cache
        known = self.known(request)
        key = self.module.RadixKey(known[: len(known) - 1])
        found = self.timed(cache.match_prefix, self.module.MatchPrefixParams(key=key))
        hit, n = len(found.device_indices), 0
        n = min(len(known) - hit, self.rng.randint(1, self.most))
        self.timed(cache.inc_lock_ref, found.last_device_node)
        done = self.take(self.pages(n))
        if done:
            request.last_node, request.cache_protected_len, request.computed = found.last_device_node, hit, hit + n
            self.waiting.pop(0)
            self.running.append(number)
        else:
            self.timed(cache.dec_lock_ref, found.last_device_node)
        self.note(ADMIT, number, len(known), n, done, hit)
        if done:
            self.store(number)

    def store(self, number):
        """Store a chunk that was computed, and go on."""
        request = self.live[number]
        if request.computed == len(request.origin_input_ids) + len(request.output_ids) and self.emit(number):
            return
        self.timed(self.cache.cache_unfinished_req, request)
        self.note(CHUNK, number, request.computed, 0, True, request.cache_protected_len)

    def emit(self, number):
        """Let a request with everything computed emit a token; True when it was the last."""
        request = self.live[number]
        request.output_ids.append(2**24 + number * 2**12 + len(request.output_ids))
        if len(request.output_ids) < self.requests[number][1]:
            return False
        self.leave(number, FINISH)
        del self.live[number]
        return True

    def leave(self, number, how):
        request = self.live[number]
        self.running.remove(number)
        unstored = self.held(request) - (request.computed - request.cache_protected_len)  # slots of the last page
        self.timed(self.cache.cache_finished_req, request, is_insert=how == FINISH, kv_len_to_handle=request.computed)
        self.pool.free_tokens += unstored
        request.cache_protected_len = request.computed = 0
        self.note(how, number, 0, 0, True, 0)

    def extend(self):
        number = self.rng.choice(self.running)
        request = self.live[number]
        known = len(request.origin_input_ids) + len(request.output_ids)
        is_prefill = request.computed < known - 1 or not request.output_ids
        n = min(known - request.computed, self.rng.randint(1, self.most))
        while True:
            protected = request.cache_protected_len
            more = self.pages(request.computed + n - protected) - self.held(request)
            done = self.take(more)
            self.note(EXTEND, number, request.computed, n, done, 0)
            if done:
                break
            victim = self.running[-1]
            self.leave(victim, DROP)
            self.waiting.insert(0, victim)
            if victim == number:
                return
        request.computed += n
        if is_prefill:
            self.store(number)
        elif request.computed == known:
            self.emit(number)

    def run(self, operations):
        while len(self.operations) < operations:
            if len(self.waiting) < 4:
                self.arrive()
            if self.waiting and len(self.running) < 6 and self.rng.random() < 0.3:
                self.admit()
            elif self.running:
                self.extend()


def draw_requests(rng, count, longest):
    """Draw (prompt, output, stream, shared): the first ``shared`` tokens come from one of three streams."""
    requests = []
    for _ in range(count):
        prompt = rng.randint(1, longest - 1)
        output = rng.randint(1, min(longest - prompt, rng.choice([3, longest])))
        requests.append((prompt, output, rng.randrange(3), rng.randint(0, prompt)))
    return requests


def record(module, name, seed, operations):
    """Drive the cache with one random schedule and return its record."""
    rng = random.Random(seed)
    page = CASES[name][0]
    longest = rng.choice([40, 120])
    case = {
        "name": name,
        "page": page,
        "eviction": CASES[name][1],
        "tokens": rng.randint(longest + 4 * page, 4 * longest + 4 * page) // page * page,
        "in_flight": rng.choice([1, 7, 64]),
        "longest": longest,
    }
    requests = draw_requests(rng, 60, longest)
    driver = Driver(module, case, requests, rng)
    with mock.patch.object(module.time, "monotonic", side_effect=itertools.count(1)):  # no two moments are the same
        driver.run(operations)
    return {
        "engine": "sglang",
        "version": "0.5.18",
        "seed": seed,
        "case": case,
        "requests": requests,
        "operations": driver.operations,
        "results": driver.results,
        "seconds": round(driver.seconds, 4),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source", help="the folder that holds `sglang`, such as site-packages")
    parser.add_argument("out")
    parser.add_argument("--case", choices=CASES, default="token")
    parser.add_argument("--seed", type=int, action="append")
    parser.add_argument("--operations", type=int, default=1000)
    options = parser.parse_args()
    module = load_cache(options.source)
    records = [record(module, options.case, seed, options.operations) for seed in options.seed or [1]]
    Path(options.out).write_text(json.dumps(records, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
