"""A radix tree of token spans, as SGLang's prefix cache keeps it (mem_cache/radix_cache.py, checked on 0.5.18).

A node is a span of tokens and hangs on the node whose span comes before; its tokens are stored as long as it is there.
A look-up goes down as far as the content is the same and splits the node in which it ends; all it meets counts as used
now. A running request locks the path to its last node. A node nobody locks is evictable: of the leaves the one whose
turn it is goes whole, and then its parent may be a leaf. Spans begin and end at multiples of a page (one token by
default). Two requests that compute the same keep it once: inserting what is there already gives the copy back.

::

    root ── [0, 40) locks 2 ─┬─ [40, 300) locks 1
                             └─ [40, 90) locks 0   <- evictable leaf

A content is told by the key of everything up to its end (`content.chain_key`), so a node is found by the key of its
first page, and how far two requests agree inside a node by bisection. All functions are compiled and work in place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from kvledger.pool import heap, prefix
from kvledger.pool.compiled import called, inlined
from kvledger.pool.content import chain_key

Array = Any  # a numpy array; numba knows its type

ROOT = 0
NOBODY = -1

# Numbers of `RadixTree.counts`; those of MASK and CACHED are the ones of `prefix`, whose hashing is used here.
FREE, CACHED, MASK, LOCKED, CLOCK, BIRTHS, LEAVES, SPARE, NEXT, PAGE, BY_BIRTH = range(11)

# Columns of `RadixTree.nodes`.
PARENT, CHILDREN, START, END, OWNER, LOCKS, TOUCHED, BORN = range(8)


class RadixTree(NamedTuple):
    """The arrays of one tree of up to ``n`` nodes; node 0 is the root."""

    nodes: Array  # (n, 8) int64
    keys: Array  # (n,) uint64: everything up to the end of the first page
    slots: Array  # (power of two, at least 2 n) int32: open addressing by key, a node or -1
    ranks: Array  # (n,) int64: of the evictable leaves, the greatest goes first
    heap: Array  # (n,) int32: the evictable leaves
    where: Array  # (n,) int32: the place of each in the heap
    spare: Array  # (n,) int32: nodes that were given back
    counts: Array  # (11,) int64: tokens free, evictable and locked, clocks, and sizes


def new_tree(tokens: int, *, page_tokens: int, by_birth: bool) -> RadixTree:
    """Return an empty tree over a pool of ``tokens``, which are whole pages.

    ``by_birth``: the node that was made first goes first; else the one used longest ago.
    """
    nodes = tokens // page_tokens + 2  # a node has a page at least
    size = 1 << max(4, (2 * nodes - 1).bit_length())
    tree = RadixTree(
        nodes=np.zeros((nodes, 8), np.int64),
        keys=np.zeros(nodes, np.uint64),
        slots=np.full(size, NOBODY, np.int32),
        ranks=np.zeros(nodes, np.int64),
        heap=np.zeros(nodes, np.int32),
        where=np.zeros(nodes, np.int32),
        spare=np.zeros(nodes, np.int32),
        counts=np.zeros(11, np.int64),
    )
    tree.counts[[FREE, MASK, NEXT, PAGE, BY_BIRTH]] = (tokens, size - 1, ROOT + 1, page_tokens, by_birth)
    tree.nodes[ROOT, LOCKS] = 1
    return tree


@inlined
def page_key(t, content, request, start):
    """Return the key of everything up to the end of the page that begins at ``start``; never 0."""
    return chain_key(content, request, start + t.counts[PAGE]) | numba.uint64(1)


@inlined
def find_child(t, content, request, start):
    """Return the node that holds the tokens of a request from ``start`` on, or -1."""
    return t.slots[prefix.find_slot(t, page_key(t, content, request, start))]


@inlined
def find_end(t, content, request, node, end):
    """Return up to where a request and a node agree, at most ``end``; they agree in the first page of the node."""
    owner, page = t.nodes[node, OWNER], t.counts[PAGE]
    stop = min(t.nodes[node, END], end)
    if owner == request or chain_key(content, request, stop) == chain_key(content, owner, stop):
        return stop
    low, high = t.nodes[node, START] + page, stop
    while high - low > page:
        middle = low + (high - low) // page // 2 * page
        if chain_key(content, request, middle) == chain_key(content, owner, middle):
            low = middle
        else:
            high = middle
    return low


@inlined
def is_evictable(t, node):
    """Tell whether a node is a leaf that nobody locks."""
    return t.nodes[node, LOCKS] == 0 and t.nodes[node, CHILDREN] == 0


@inlined
def rank_of(t, node):
    """Return the rank of an evictable leaf: the longer ago, the greater."""
    return -t.nodes[node, BORN if t.counts[BY_BIRTH] == 1 else TOUCHED]


@inlined
def push(t, node):
    """Put a leaf among the evictable ones."""
    size = t.counts[LEAVES]
    t.ranks[node] = rank_of(t, node)
    heap.place(t.heap, t.where, size, node)
    heap.rise(t.heap, t.where, t.ranks, size)
    t.counts[LEAVES] += 1


@inlined
def pull(t, node):
    """Take a leaf from among the evictable ones."""
    heap.remove(t.heap, t.where, t.ranks, t.counts[LEAVES], node)
    t.counts[LEAVES] -= 1


@inlined
def touch(t, node):
    """Note that a node was used now."""
    t.nodes[node, TOUCHED] = t.counts[CLOCK]
    if is_evictable(t, node):
        heap.move(t.heap, t.where, t.ranks, t.counts[LEAVES], node, rank_of(t, node))


@inlined
def new_node(t, parent, start, end, owner, locks):
    """Return a node that was not there, with all but its key and its place in the table."""
    if t.counts[SPARE] > 0:
        t.counts[SPARE] -= 1
        node = numba.int64(t.spare[t.counts[SPARE]])
    else:
        node = t.counts[NEXT]
        t.counts[NEXT] += 1
    t.counts[BIRTHS] += 1
    row = t.nodes[node]
    row[PARENT], row[CHILDREN], row[START], row[END] = parent, 0, start, end
    row[OWNER], row[LOCKS], row[TOUCHED], row[BORN] = owner, locks, t.counts[CLOCK], t.counts[BIRTHS]
    return node


@inlined
def enter(t, node, key):
    """Let a node be found by its key."""
    t.keys[node] = key
    t.slots[prefix.find_slot(t, key)] = node


@called
def split(t, content, node, at):
    """Divide a node at a token, and return the new one, which is its first part."""
    row = t.nodes[node]
    upper = new_node(t, row[PARENT], row[START], at, row[OWNER], row[LOCKS])
    t.nodes[upper, CHILDREN] = 1
    slot = prefix.find_slot(t, t.keys[node])
    t.keys[upper] = t.keys[node]
    t.slots[slot] = upper
    row[PARENT], row[START] = upper, at
    enter(t, node, page_key(t, content, row[OWNER], at))
    return upper


@called
def descend(t, content, request, end):
    """Go down as far as the first ``end`` tokens of a request are there; return the last node, which may be new."""
    t.counts[CLOCK] += 1
    node = numba.int64(ROOT)
    while t.nodes[node, END] < end:
        child = numba.int64(find_child(t, content, request, t.nodes[node, END]))
        if child == NOBODY:
            break
        touch(t, child)
        stop = find_end(t, content, request, child, end)
        if stop < t.nodes[child, END]:
            return split(t, content, child, stop)
        node = child
    return node


@inlined
def whole_pages(t, tokens):
    """Return ``tokens`` rounded down to pages."""
    return tokens // t.counts[PAGE] * t.counts[PAGE]


@inlined
def match(t, content, request, tokens):
    """Return the last node of the longest stored prefix of the first ``tokens`` of a request."""
    return descend(t, content, request, whole_pages(t, tokens))


@called
def insert(t, content, request, tokens):
    """Store the whole pages of the first ``tokens`` of a request; return the last node and how much was there before.

    The tokens that were not there have been taken from the free ones already.
    """
    end = whole_pages(t, tokens)
    node = descend(t, content, request, end)
    there = t.nodes[node, END]
    if there < end:
        if node != ROOT and is_evictable(t, node):
            pull(t, node)
        leaf = new_node(t, node, there, end, request, 0)
        t.nodes[node, CHILDREN] += 1
        enter(t, leaf, page_key(t, content, request, there))
        t.counts[CACHED] += end - there
        push(t, leaf)
        node = leaf
    return node, there


@inlined
def count_idle(t, node):
    """Return the tokens of the path to a node that nobody locks."""
    idle = 0
    while t.nodes[node, LOCKS] == 0:
        idle += t.nodes[node, END] - t.nodes[node, START]
        node = t.nodes[node, PARENT]
    return idle


@inlined
def lock(t, node):
    """Keep the path to a node from being evicted."""
    while node != ROOT:
        if t.nodes[node, LOCKS] == 0:
            if is_evictable(t, node):
                pull(t, node)
            length = t.nodes[node, END] - t.nodes[node, START]
            t.counts[CACHED] -= length
            t.counts[LOCKED] += length
        t.nodes[node, LOCKS] += 1
        node = t.nodes[node, PARENT]


@inlined
def unlock(t, node):
    """Undo one `lock`."""
    while node != ROOT:
        t.nodes[node, LOCKS] -= 1
        if t.nodes[node, LOCKS] == 0:
            length = t.nodes[node, END] - t.nodes[node, START]
            t.counts[CACHED] += length
            t.counts[LOCKED] -= length
            if is_evictable(t, node):
                push(t, node)
        node = t.nodes[node, PARENT]


@called
def evict(t, tokens):
    """Give back at least ``tokens``, or all that is evictable: whole leaves, in their turn."""
    given = 0
    while given < tokens and t.counts[LEAVES] > 0:
        node = numba.int64(t.heap[0])
        pull(t, node)
        length = t.nodes[node, END] - t.nodes[node, START]
        given += length
        prefix.close_gap(t, prefix.find_slot(t, t.keys[node]))
        parent = t.nodes[node, PARENT]
        t.nodes[parent, CHILDREN] -= 1
        if is_evictable(t, parent):
            push(t, parent)
        t.spare[t.counts[SPARE]] = node
        t.counts[SPARE] += 1
        t.counts[CACHED] -= length
    t.counts[FREE] += given


@inlined
def take(t, tokens):
    """Take ``tokens``, evicting what lacks; False when there are too few even so."""
    if tokens > t.counts[FREE] + t.counts[CACHED]:
        return False
    if tokens > t.counts[FREE]:
        evict(t, tokens - t.counts[FREE])
    t.counts[FREE] -= tokens
    return True
