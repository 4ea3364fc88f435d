"""A slow replay of block tables over groups of layers, sharing no code with the kernels.

A hit is found by trying every length; every amount is recounted from sets of token positions at every step.
"""

from __future__ import annotations

import math

from .plain_prefix import Block
from .plain_replay import PlainReplay, up


class PlainGroups(PlainReplay):
    """``groups`` are (kind, block, span, payload); ``known`` gives the tokens of each request that are known."""

    def __init__(self, requests, groups, known, *, block_bytes, caching, **settings):
        super().__init__(requests, kind="paged", **settings)
        self.groups, self.known, self.block_bytes, self.caching = groups, known, block_bytes, caching
        self.queue = [Block() for _ in range(self.units)]
        self.all, self.births = list(self.queue), 0
        self.tables, self.settled, self.junction, self.scheduled_now = {}, {}, {}, {}
        self.align = math.lcm(*(block for _, block, _, _ in groups))
        self.fresh = set()
        self.hit_tokens = self.queried_tokens = self.again_tokens = 0
        self.cached_rows, self.saved_rows, self.stale_rows = [], [], []

    # what a group needs
    def first_needed(self, g, computed):
        kind, _, span, _ = self.groups[g]
        if kind == "window":
            return max(0, computed - (span - 1))
        if kind == "chunk":
            return computed - computed % span
        return max(0, computed - 1) if kind == "state" else 0

    def limit(self, g):
        kind, block, span, _ = self.groups[g]
        if kind == "window":
            return up(min(span - 1 + self.budget, self.max_len), block) // block + 1
        if kind == "chunk":
            return up(min(span + self.budget, self.max_len), block) // block
        return 2 if kind == "state" else 10**9

    def sparse(self, g):
        return self.caching and self.groups[g][0] == "state"

    def count(self, g, tokens):
        return up(tokens, self.groups[g][1]) // self.groups[g][1]

    def fits_alone(self, r):
        stored = r.p + r.o - 1
        return sum(min(self.count(g, stored), self.limit(g)) for g in range(len(self.groups))) <= self.units

    # the prefix cache
    def content(self, r, end):
        known = self.known[r.index]
        return tuple(known[i] if i < len(known) else (r.index, i) for i in range(end))

    def find(self, r, g, index):
        identity = (g, self.content(r, (index + 1) * self.groups[g][1]))
        there = [b for b in self.all if b.identity == identity]
        return min(there, key=lambda b: b.born) if there else None

    def accepts(self, r, g, length):
        block, begin = self.groups[g][1], self.first_needed(g, length)
        return all(self.find(r, g, i) for i in range(begin // block, length // block))

    def longest(self, r, groups):
        for length in range((r.tokens - 1) // self.align * self.align, 0, -self.align):
            if all(self.accepts(r, g, length) for g in groups):
                return length
        return 0

    def hit(self, r):
        if not self.caching:
            return 0
        every = range(len(self.groups))
        first = min(every, key=lambda g: (self.groups[g][0] != "full", g))
        leading = [g for g in every if self.groups[g][:3] == self.groups[first][:3]]
        length, reach = self.longest(r, every), self.longest(r, leading)
        self.junction[r.index] = reach if reach > length and len(self.groups) > 1 else 0
        return length

    def found(self, r, g, length):
        """The entries of a hit: blocks from the first needed token on, None before."""
        begin = self.first_needed(g, length) // self.groups[g][1]
        entries = length // self.groups[g][1]
        return [None] * min(begin, entries) + [self.find(r, g, i) for i in range(begin, entries)]

    def identify(self, r, total):
        whole = total - total % self.align
        for g, (kind, block, span, _) in enumerate(self.groups if self.caching else ()):
            need = up(span - 1, block) // block if kind == "window" else 1
            for i in range(self.settled[r.index][g], whole // block):
                ends = [b - b % self.align for b in (r.p - 1, self.junction.get(r.index, 0))]
                kept = kind in ("full", "chunk") or any(e // block - need <= i < e // block for e in ends)
                entry = self.tables[r.index][g][i]
                if entry is not None and kept:
                    self.births += 1
                    entry.identity, entry.born = (g, self.content(r, (i + 1) * block)), self.births
                    self.fresh.add(entry.identity)
            self.settled[r.index][g] = max(self.settled[r.index][g], whole // block)
            last = r.p - 1 - (r.p - 1) % self.align
            if kind == "state" and 0 < whole == last and self.tables[r.index][g][whole // block - 1] is not None:
                self.fresh.add((g, self.content(r, whole)))

    def forget(self):
        for block in self.all:
            assert block.references == 0
            block.identity = None

    # blocks
    def take(self):
        block = self.queue.pop(0)
        block.identity, block.references = None, 1
        return block

    def let_go(self, block):
        if block is None:
            return
        block.references -= 1
        if block.references == 0:
            self.queue.insert(0, block) if block.identity is None else self.queue.append(block)

    def missing(self, r, total):
        lacks = [self.count(g, total) - len(self.tables[r.index][g]) for g in range(len(self.groups))]
        return sum(min(max(0, n), 1) if self.sparse(g) else max(0, n) for g, n in enumerate(lacks))

    def lengthen(self, r, total):
        for g, table in enumerate(self.tables[r.index]):
            more = self.count(g, total) - len(table)
            if self.sparse(g) and more > 0:
                table += [None] * (more - 1) + [self.take()]
            else:
                table += [self.take() for _ in range(more)]

    def asked_for(self, r, hit, total, limited):
        asked = 0
        for g in range(len(self.groups)):
            entries = self.found(r, g, hit)
            needed = min(self.count(g, total), self.limit(g) if limited and not self.sparse(g) else 10**9)
            behind = max(self.first_needed(g, hit) // self.groups[g][1], len(entries))
            new = max(0, needed - behind)
            asked += min(new, 1) if self.sparse(g) else new
            asked += sum(b is not None and b.references == 0 for b in entries)
        return asked

    def free_units(self):
        return len(self.queue)

    def used_blocks(self):
        return self.units - len(self.queue)

    def size_refused(self, r):
        return self.asked_for(r, self.hit(r), r.tokens, True)

    # the scheduler's hooks
    def step(self):
        self.fresh, self.scheduled_now = set(), {}
        super().step()

    def cut(self, r, start, n):
        """Beside states, chunks end at blocks, so that the state there can be kept."""
        block, end = self.groups[0][1], start + n
        prefill = max(r.p, r.tokens - 1)
        if not any(self.sparse(g) for g in range(len(self.groups))) or start >= prefill:
            return n
        if end < prefill and (end - end % block > start or block <= self.budget):
            end -= end % block
        stops = [(r.tokens - 1) // block * block]
        if start % block:
            stops.append(start - start % block + block)
        junction = self.junction.get(r.index, 0)
        if start < junction < end:
            stops.append(start + (junction - start) // block * block)
        return max(0, min([s for s in stops if start < s < end], default=end) - start)

    def first_chunk(self, r, budget):
        hit = self.hit(r)
        return self.cut(r, hit, min(r.tokens - hit, budget))

    def next_chunk(self, r, budget):
        return self.cut(r, r.computed, super().next_chunk(r, budget))

    def admit(self, r, n, scheduled):
        hit = self.hit(r)
        spare = self.watermark if self.running else 0
        if self.whole and self.asked_for(r, hit, r.tokens, True) + spare > len(self.queue):
            return False
        if self.asked_for(r, hit, hit + n, False) + spare > len(self.queue):
            return False
        tables = [self.found(r, g, hit) for g in range(len(self.groups))]
        if any(self.sparse(g) and t and t[-1].identity in self.fresh for g, t in enumerate(tables)):
            return False
        for block in (b for table in tables for b in table if b is not None):
            if block.references == 0:
                self.queue.remove(block)
            block.references += 1
        for g, table in enumerate(tables):
            table += [None] * (self.first_needed(g, hit) // self.groups[g][1] - len(table))
        self.tables[r.index], self.settled[r.index] = tables, [len(table) for table in tables]
        r.computed = hit
        self.lengthen(r, hit + n)
        self.identify(r, hit + n)
        self.scheduled_now[r.index] = n
        if "queued" in r.moments:
            self.again_tokens += hit
        else:
            self.hit_tokens += hit
            self.queried_tokens += r.tokens
        return True

    def extend(self, r, n):
        for g, table in enumerate(self.tables[r.index]):
            for i in reversed(range(min(len(table), self.first_needed(g, r.computed) // self.groups[g][1]))):
                self.let_go(table[i])
                table[i] = None
        if self.missing(r, r.computed + n) > len(self.queue):
            return False
        self.lengthen(r, r.computed + n)
        self.identify(r, r.computed + n)
        self.scheduled_now[r.index] = n
        return True

    def release(self, r):
        for table in self.tables.pop(r.index):
            for block in reversed(table):
                self.let_go(block)
        self.scheduled_now.pop(r.index, None)
        r.computed = 0

    # the books
    def slots(self, r):
        """Yield (block, group, slots filled, slots needed) of every block a request holds."""
        before = r.computed - self.scheduled_now.get(r.index, 0)
        for g, table in enumerate(self.tables[r.index]):
            kind, size, _, _ = self.groups[g]
            need = self.first_needed(g, before)
            for i, block in enumerate(table):
                if block is not None and kind == "state":
                    yield block, g, {0}, {0} if (i + 1) * size > need else set()
                elif block is not None:
                    filled = {t for t in range(i * size, (i + 1) * size) if t < r.computed}
                    yield block, g, filled, {t for t in filled if t >= need}

    def slot_bytes(self, g):
        kind, block, _, payload = self.groups[g]
        return payload if kind == "state" else payload // block

    def totals(self):
        filled, needed, logical, group_of = {}, {}, 0, {}
        for r in self.running:
            for block, g, full, need in self.slots(r):
                key = id(block)
                group_of[key] = g
                filled[key] = filled.get(key, set()) | full
                needed[key] = needed.get(key, set()) | need
                logical += len(need) * self.slot_bytes(g)
        used = sum(len(slots) * self.slot_bytes(group_of[key]) for key, slots in needed.items())
        stale = sum(len(filled[key] - needed[key]) * self.slot_bytes(group_of[key]) for key in filled)
        self.cached_rows.append(sum(b.identity is not None for b in self.queue) * self.block_bytes)
        self.saved_rows.append(logical - used)
        self.stale_rows.append(stale)
        return used, used, len(filled) * self.block_bytes, 0, 0

    def finish_step(self, prefill, decodes, read):
        token = sum(payload // block for kind, block, _, payload in self.groups if kind != "state")
        scheduled = [r for r in self.running if self.scheduled_now.get(r.index)]
        read = sum(len(need) * self.slot_bytes(g) for r in scheduled for _, g, _, need in self.slots(r))
        super().finish_step(prefill, decodes, read / token if token else 0)
