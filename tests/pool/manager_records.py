"""Records of vLLM's KV cache manager, and the same operations on our block tables."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from kvledger.pool import prefix
from kvledger.pool.compiled import compiled
from kvledger.pool.content import BY_CHAIN, Content
from kvledger.pool.group_hits import count_asked, enter, find_prefix, hits_fresh_state
from kvledger.pool.group_tables import FRESH, PROMPT, extend, give_up, new_tables
from kvledger.pool.groups import BlockGroups, GroupKind, LayerGroup
from kvledger.replay._identity import chain_tokens

ADMIT, EXTEND, FREE, STEP = range(4)


@compiled
def run_operations(t, prompts, operations, whole, results):
    """Do operations (what, request, a, b) and write (had the blocks, tokens found, blocks in use)."""
    blocks = t.pool.references.shape[0]
    for i in range(operations.shape[0]):
        what, request, a, b = operations[i]
        done, hit = True, 0
        if what == ADMIT:
            t.ends[request, PROMPT] = prompts[request]
            hit = find_prefix(t, request, request, a)
            free = t.pool.counts[prefix.FREE]
            done = not (whole and count_asked(t, request, hit, a, True) > free)
            done = done and count_asked(t, request, hit, hit + b, False) <= free
            done = done and not hits_fresh_state(t, request)
            if done:
                enter(t, request, request, hit, b)
        elif what == EXTEND:
            done = extend(t, request, request, a, b)
        elif what == FREE:
            give_up(t, request)
        else:
            t.numbers[FRESH] = 0
        results[i, 0], results[i, 1], results[i, 2] = done, hit, blocks - t.pool.counts[prefix.FREE]


def groups_of(case):
    return BlockGroups(
        groups=tuple(
            LayerGroup(
                kind=GroupKind(group["kind"]), block_tokens=group["block"], span_tokens=group["span"],
                payload_bytes=group["block"],
            )
            for group in case["groups"]
        ),
        block_bytes=max(group["block"] for group in case["groups"]),
    )  # fmt: skip


def prompt_tokens(number, request):
    """Return token ids that are equal exactly where the recorder's are."""
    prompt, _, stream, shared = request
    return [(1 + stream) * 2**20 + i if i < shared else 2**23 + number * 2**12 + i for i in range(prompt)]


def content_of(requests, grain):
    rows = [prompt_tokens(number, request) for number, request in enumerate(requests)]
    counts = [len(row) // grain for row in rows]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    ids = np.empty(int(offsets[-1]), np.int64)
    chain_tokens(starts, np.array([token for row in rows for token in row], np.int32), offsets, ids, grain)
    how = np.array([BY_CHAIN, grain], np.int64)
    return Content(how=how, offsets=offsets, ids=ids, covered=(np.array(counts) * grain).astype(np.int32))


class Answer(NamedTuple):
    results: np.ndarray
    seconds: float


def answer(record):
    """Return what our block tables answer to the operations of a record, and the seconds that took."""
    case, requests = record["case"], record["requests"]
    groups = groups_of(case)
    tables = new_tables(
        groups, content_of(requests, groups.grain_tokens), blocks=case["blocks"], slots=len(requests),
        longest_tokens=case["max_model_len"] + 1, in_flight_tokens=case["in_flight"],
        max_model_len=case["max_model_len"], caching=case["caching"],
    )  # fmt: skip
    operations = np.array(record["operations"], np.int64)
    results = np.zeros((len(operations), 3), np.int64)
    prompts = np.array([request[0] for request in requests], np.int64)
    run_operations(tables, prompts, operations[:0], case["whole"], results)  # compiles
    start = time.perf_counter()
    run_operations(tables, prompts, operations, case["whole"], results)
    return Answer(results, time.perf_counter() - start)
