"""Records of SGLang's radix cache, and the same operations on our radix tree."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from kvledger.pool import radix
from kvledger.pool.compiled import compiled

from .manager_records import content_of

ADMIT, EXTEND, CHUNK, FINISH, DROP = range(5)
COMPUTED, TREE, NODE = range(3)


@compiled
def run_operations(t, content, requests, operations, results):
    """Do operations (what, request, a, b) and write (had room, tokens found, tokens free, evictable, locked)."""
    page = t.counts[radix.PAGE]
    for i in range(operations.shape[0]):
        what, request, a, b = operations[i]
        row = requests[request]
        done, found = True, 0
        private = (row[COMPUTED] - row[TREE] + page - 1) // page * page
        if what == ADMIT:
            node = radix.match(t, content, request, a - 1)
            found = t.nodes[node, radix.END]
            radix.lock(t, node)
            done = radix.take(t, (b + page - 1) // page * page)
            if done:
                row[COMPUTED], row[TREE], row[NODE] = found + b, found, node
            else:
                radix.unlock(t, node)
        elif what == EXTEND:
            done = radix.take(t, (a + b - row[TREE] + page - 1) // page * page - private)
            if done:
                row[COMPUTED] = a + b
        elif what == DROP:
            t.counts[radix.FREE] += private
            radix.unlock(t, row[NODE])
            row[:] = 0
        else:
            node, there = radix.insert(t, content, request, row[COMPUTED])
            stored = t.nodes[node, radix.END]
            t.counts[radix.FREE] += there - row[TREE]
            if what == CHUNK:
                radix.unlock(t, row[NODE])
                radix.lock(t, node)
                row[TREE], row[NODE] = stored, node
                found = stored
            else:
                t.counts[radix.FREE] += private - (stored - row[TREE])
                radix.unlock(t, row[NODE])
                row[:] = 0
        results[i, 0], results[i, 1], results[i, 2] = done, found, t.counts[radix.FREE]
        results[i, 3], results[i, 4] = t.counts[radix.CACHED], t.counts[radix.LOCKED]


class Answer(NamedTuple):
    results: np.ndarray
    seconds: float


def answer(record):
    """Return what our tree answers to the operations of a record, and the seconds that took."""
    case, requests = record["case"], record["requests"]
    tree = radix.new_tree(case["tokens"], page_tokens=case["page"], by_birth=case["eviction"] == "fifo")
    content = content_of(requests, case["page"])
    operations = np.array(record["operations"], np.int64)
    results = np.zeros((len(operations), 5), np.int64)
    state = np.zeros((len(requests), 3), np.int64)
    run_operations(tree, content, state, operations[:0], results)  # compiles
    start = time.perf_counter()
    run_operations(tree, content, state, operations, results)
    return Answer(results, time.perf_counter() - start)
