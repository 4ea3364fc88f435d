"""A slow replay of block tables that fork and swap, written from the docs and sharing no code with the kernels.

A block is a Python list of the tokens in it, and a table a list of such lists; who shares a block is found by looking.
Every sequence also keeps its history on its own, and after every write its blocks must read back as that history.
"""

from __future__ import annotations

import copy
from collections import deque

from .plain_replay import up

M64 = 2**64 - 1


def mix(value):
    z = (value + 0x9E3779B97F4A7C15) & M64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


class Sequence:
    def __init__(self):
        self.table, self.history = [], []


class Group:
    """One request: its sequences, and how many tokens of its line are computed."""

    def __init__(self, index, arrival, p, o, width, beam):
        self.index, self.arrival, self.p, self.o, self.width, self.beam = index, arrival, p, o, width, beam
        self.generated, self.moments = 0, {}
        self.empty()

    def empty(self):
        self.sequences, self.computed, self.on_host = [Sequence()], 0, False

    @property
    def known(self):
        return self.p + self.width * self.generated

    def blocks(self):
        return list({id(block): block for s in self.sequences for block in s.table}.values())

    def fork(self):
        if len(self.sequences) < self.width:
            first = self.sequences[0]
            for _ in range(self.width - 1):
                twin = Sequence()
                twin.table, twin.history = list(first.table), list(first.history)
                self.sequences.append(twin)

    def write(self, block_size):
        """Write the next token of the line."""
        if self.computed < self.p:
            sequence, token = self.sequences[0], ("prompt", self.computed)
        else:
            self.fork()
            turn, j = divmod(self.computed - self.p, self.width)
            sequence, token = self.sequences[j], ("own", j, turn)
        if not sequence.table or len(sequence.table[-1]) == block_size:
            sequence.table.append([])
        elif any(b is sequence.table[-1] for s in self.sequences if s is not sequence for b in s.table):
            sequence.table[-1] = list(sequence.table[-1])
            self.copies += 1
        sequence.table[-1].append(token)
        sequence.history.append(token)
        self.computed += 1

    copies = 0

    def after(self, n, block_size):
        """Return what the group would be with ``n`` more tokens."""
        trial = copy.deepcopy(self)
        for _ in range(n):
            trial.write(block_size)
        return trial

    def check(self):
        for sequence in self.sequences:
            assert [token for block in sequence.table for token in block] == sequence.history


class PlainForks:
    """Replay ``requests`` (arrival, prompt, output, samples, beam) and keep one row per step."""

    def __init__(
        self, requests, *, units, block, host=None, whole=True, watermark=0, max_len=2**31, max_seqs=256, budget=8192,
        clock=(1.0, 0.0, 0.0, 0.0, 0.0), turnover=0.0, seed=0, every=0.0, down=0.0,
    ):  # fmt: skip
        self.units, self.block, self.host, self.whole, self.watermark = units, block, host, whole, watermark
        self.max_len, self.max_seqs, self.budget, self.clock = max_len, max_seqs, budget, clock
        self.turnover, self.seed, self.every, self.down = turnover, seed, every, down
        self.pending = deque(Group(i, *r) for i, r in enumerate(requests))
        self.waiting, self.running, self.rows = deque(), [], []
        self.rejected = {"prompt_too_long": 0, "larger_than_pool": 0, "too_many_samples": 0}
        self.preemptions = self.refused = self.recomputed = self.copies = self.restarts = 0
        self.swapped = self.no_room = self.out = self.back = self.peak_host = self.moved = 0
        self.alone = self.together = self.saved = 0.0
        self.now = self.pending[0].arrival if self.pending else 0.0
        self.restart_at, self.ended = self.now + every, []

    # memory
    def free(self):
        return self.units - sum(len(g.blocks()) for g in self.running)

    def on_host(self):
        return sum(len(g.blocks()) for g in self.waiting if g.on_host)

    def extend(self, g, n):
        trial = g.after(n, self.block)
        if len(trial.blocks()) - len(g.blocks()) > self.free():
            return False
        before = g.copies
        for _ in range(n):
            g.write(self.block)
        self.copies += g.copies - before
        g.check()
        return True

    def evict(self, g):
        if self.host is not None:
            if self.on_host() + len(g.blocks()) <= self.host:
                g.on_host = True
                self.swapped += 1
                self.out += len(g.blocks())
                self.moved += len(g.blocks())
                self.peak_host = max(self.peak_host, self.on_host() + len(g.blocks()))
                return
            self.no_room += 1
        self.recomputed += g.computed
        g.empty()

    def admit(self, g, n, scheduled):
        spare = self.watermark if scheduled else 0
        held = 0 if g.on_host else len(g.blocks())
        whole = len(g.after(g.known - g.computed, self.block).blocks()) - held
        first = len(g.after(n, self.block).blocks()) - held
        if (whole if self.whole else first) + spare > self.free():
            self.refused += self.free() >= whole
            return False
        if g.on_host:
            self.back += len(g.blocks())
            self.moved += len(g.blocks())
            g.on_host = False
        return True

    # the scheduler
    def join(self):
        while self.pending and self.pending[0].arrival <= self.now:
            g = self.pending.popleft()
            if g.p >= self.max_len:
                self.rejected["prompt_too_long"] += 1
                continue
            g.o = min(g.o, self.max_len - g.p)
            shared = g.p // self.block if g.o > 1 else 0
            most = shared + (g.width if g.o > 1 else 1) * (up(g.p + g.o - 1, self.block) // self.block - shared)
            if g.width > self.max_seqs:
                self.rejected["too_many_samples"] += 1
            elif most > self.units:
                self.rejected["larger_than_pool"] += 1
            else:
                self.waiting.append(g)

    def run(self):
        while True:
            if not self.running and not self.waiting:
                if not self.pending:
                    return self
                self.now = max(self.now, self.pending[0].arrival)
            self.join()
            if not self.running and not self.waiting:
                continue
            if self.every and self.now >= self.restart_at:
                self.restart()
            else:
                self.step()

    def restart(self):
        while self.running:
            g = self.running.pop()
            self.recomputed += g.computed
            g.empty()
            self.waiting.appendleft(g)
        for g in self.waiting:
            if g.on_host:
                self.recomputed += g.computed
                g.empty()
        self.restarts += 1
        self.now += self.down
        self.restart_at = self.now + self.every

    def step(self):
        budget, scheduled, preempted, self.moved = self.budget, [], False, 0
        i = 0
        while i < len(self.running) and budget > 0:
            g = self.running[i]
            n = min(g.known - g.computed, budget)
            before = g.computed
            while g in self.running and not self.extend(g, n):
                victim = self.running.pop()
                self.evict(victim)
                self.preemptions += 1
                preempted = True
                self.waiting.appendleft(victim)
            if g not in self.running:
                break
            scheduled.append((g, before, n))
            budget -= n
            i += 1
        while not preempted and budget > 0 and self.waiting:
            g = self.waiting[0]
            if sum(r.width for r in self.running) + g.width > self.max_seqs:
                break
            n = min(g.known - g.computed, budget)
            if not self.admit(g, n, bool(scheduled)):
                break
            self.waiting.popleft()
            g.moments.setdefault("queued", self.now)
            before = g.computed
            self.running.append(g)
            assert self.extend(g, n)
            scheduled.append((g, before, n))
            budget -= n
        self.close(scheduled)
        for g, _, _ in scheduled:
            if g.computed == g.known:
                self.emit(g)

    def close(self, scheduled):
        prefill = decodes = read = 0
        for g, before, n in scheduled:
            turns = [t - g.p for t in range(before, before + n) if t >= g.p]
            busy = {t % g.width for t in turns} if turns else {0}
            read += sum(len(g.sequences[j].history) for j in busy)
            if before >= g.p and n <= g.width and g.generated and g.computed == g.known:
                decodes += n
            else:
                prefill += n
        base, a, b, c, d = self.clock
        seconds = base + a * prefill + b * decodes + c * read + d * self.moved * self.block
        used = sum(len(block) for g in self.running for block in g.blocks())
        logical = sum(len(s.history) for g in self.running for s in g.sequences)
        blocks = self.units - self.free()
        self.alone += seconds * sum(len(s.table) for g in self.running for s in g.sequences)
        self.together += seconds * blocks
        self.saved += seconds * (logical - used)
        self.rows.append({
            "time": self.now, "seconds": seconds, "running": sum(g.width for g in self.running),
            "waiting": len(self.waiting), "preemptions": self.preemptions, "used_blocks": blocks, "used": used,
            "held": blocks * self.block,
        })  # fmt: skip
        self.now += seconds

    def emit(self, g):
        g.generated += 1
        g.moments.setdefault("first", self.now)
        if g.generated == g.o:
            g.moments["end"] = self.now
            self.running.remove(g)
            self.ended.append(g)
        elif g.generated == 1:
            g.fork()
        elif g.beam:
            key = mix(self.seed ^ mix(g.index) ^ (g.generated << 32))
            if (key >> 11) * 2.0**-53 < self.turnover:
                chosen = [mix((key + j) & M64) % g.width for j in range(g.width)]
                living = [(list(s.table), list(s.history)) for s in g.sequences]
                for sequence, parent in zip(g.sequences, chosen, strict=True):
                    sequence.table, sequence.history = list(living[parent][0]), list(living[parent][1])
                g.check()
