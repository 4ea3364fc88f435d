"""A slow replay of block tables with a prefix cache, written from the design and sharing no code with the kernels.

Blocks are Python objects in a list that is the free queue; identities are tuples of the content itself.
"""

from __future__ import annotations

from .plain_replay import PlainReplay, up


class Block:
    def __init__(self):
        self.identity, self.references, self.born, self.rank = None, 0, 0, ()


class PlainPrefix(PlainReplay):
    """`PlainReplay` with a prefix cache; ``known`` gives the tokens of each request whose content is known."""

    def __init__(self, requests, known, eviction="lru", **settings):
        super().__init__(requests, kind="paged", **settings)
        self.eviction, self.ranked = eviction, 0
        self.known, self.queue = known, [Block() for _ in range(self.units)]
        self.all, self.clock_of_birth = list(self.queue), 0
        self.tables = {}
        self.hit_tokens = self.queried_tokens = self.again_tokens = 0
        self.cached_rows, self.saved_rows = [], []

    def content(self, r, index):
        """Everything up to the end of a block, as a tuple; tokens of unknown content are the request's own."""
        end = (index + 1) * self.block
        known = self.known[r.index]
        return tuple(known[i] if i < len(known) else (r.index, i) for i in range(end))

    def find(self, identity):
        there = [b for b in self.all if b.identity == identity]
        return min(there, key=lambda b: b.born) if there else None

    def hits(self, r):
        found = []
        while len(found) < (r.tokens - 1) // self.block:
            block = self.find(self.content(r, len(found)))
            if block is None:
                break
            found.append(block)
        return found

    def take(self):
        block = self.victim()
        self.queue.remove(block)
        block.identity, block.references = None, 1
        return block

    def victim(self):
        """Return the free block that goes first: one without identity, else as the eviction has it."""
        if self.eviction == "lru" or self.queue[0].identity is None:
            return self.queue[0]
        if self.eviction == "fifo":
            return min(self.queue, key=lambda b: b.born)
        return max(self.queue, key=lambda b: b.rank)

    def is_served(self, r):
        room = self.max_len - r.p
        if room <= 0:
            return False
        o = min(r.o, max(1, min(r.m, room)) if r.m else room)
        return up(r.p + o - 1, self.block) // self.block <= self.units

    def foresee(self, r, index):
        """Return (1, request, depth) of the next request that looks for a block, (2, ...) when none does."""
        self.ranked += 1
        identity = self.content(r, index)
        for other in (*self.waiting, *self.pending):
            looks = "queued" not in other.moments and self.is_served(other) and index < (other.p - 1) // self.block
            if looks and self.content(other, index) == identity:
                return (1, other.index, index)
        return (2, -self.ranked)

    def rank_released(self, r, index, block):
        if self.eviction != "belady" or block.references > 1 or block.identity is None:
            return
        if r.generated < r.o:  # preempted: it comes back for the block before all others
            self.ranked += 1
            block.rank = (0, -self.ranked)
            return
        rank, first = self.foresee(r, index), self.find(block.identity)
        block.rank = rank if first is block else (2, -self.ranked)
        if first is not block and first.references == 0:
            first.rank = rank

    def identify(self, r, n):
        for index in range(r.computed // self.block, (r.computed + n) // self.block):
            self.clock_of_birth += 1
            self.tables[r.index][index].identity = self.content(r, index)
            self.tables[r.index][index].born = self.clock_of_birth

    def free_units(self):
        return len(self.queue)

    def admit(self, r, n, scheduled):
        found = self.hits(r)
        idle = sum(b.references == 0 for b in found)
        spare = self.watermark if scheduled else 0
        first = up(len(found) * self.block + n, self.block) // self.block
        blocks = up(r.tokens, self.block) // self.block if self.whole else first
        if blocks - len(found) + idle + spare > len(self.queue):
            return False
        for block in found:
            if block.references == 0:
                self.queue.remove(block)
            block.references += 1
        r.computed = len(found) * self.block
        self.tables[r.index] = found + [self.take() for _ in range(first - len(found))]
        self.identify(r, n)
        if "queued" in r.moments:
            self.again_tokens += r.computed
        else:
            self.hit_tokens += r.computed
            self.queried_tokens += r.tokens
        return True

    def first_chunk(self, r, budget):
        return min(r.tokens - len(self.hits(r)) * self.block, budget)

    def size_refused(self, r):
        found = self.hits(r)
        return up(r.tokens, self.block) // self.block - len(found) + sum(b.references == 0 for b in found)

    def extend(self, r, n):
        table = self.tables[r.index]
        need = up(r.computed + n, self.block) // self.block - len(table)
        if need > len(self.queue):
            return False
        table += [self.take() for _ in range(need)]
        self.identify(r, n)
        return True

    def release(self, r):
        for index, block in reversed(list(enumerate(self.tables.pop(r.index)))):
            self.rank_released(r, index, block)
            block.references -= 1
            if block.references == 0:
                if block.identity is None:
                    self.queue.insert(0, block)
                else:
                    self.queue.append(block)
        r.computed = 0

    def forget(self):
        for block in self.all:
            assert block.references == 0
            block.identity = None

    def totals(self):
        filled = {}
        for r in self.running:
            for index, block in enumerate(self.tables[r.index]):
                filled[id(block)] = max(0, min(self.block, r.computed - index * self.block))
        used = sum(filled.values())
        self.cached_rows.append(sum(b.identity is not None for b in self.queue) * self.block)
        self.saved_rows.append(sum(r.computed for r in self.running) - used)
        return used, used, len(filled) * self.block, 0, 0

    def used_blocks(self):
        return self.units - len(self.queue)
