"""A slow replay in plain Python, written from the design and sharing no code with the kernels.

It keeps a list of Python objects for everything and recomputes every total from them at every step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


def up(value, grain):
    return -(-value // grain) * grain


def pow2(value):
    return 1 << (value - 1).bit_length()


@dataclass
class Request:
    index: int
    arrival: float
    p: int
    o: int
    m: int
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    extent: tuple[int, int] | None = None  # address, size
    stuck_at: int = -1
    moments: dict = field(default_factory=dict)

    @property
    def tokens(self):
        return self.p + self.generated


class Space:
    """One address space: the live extents, and nothing else."""

    def __init__(self, capacity, placement):
        self.capacity, self.placement, self.rover = capacity, placement, 0
        self.live: dict[int, int] = {}
        self.roots = []
        address = 0
        for bit in reversed(range(capacity.bit_length())):
            if capacity >> bit & 1:
                self.roots.append((address, 1 << bit))
                address += 1 << bit
        self.buddies = list(self.roots)

    def holes(self):
        if self.placement == "buddy":
            return list(self.buddies)
        found, at = [], 0
        for address in sorted(self.live):
            if address > at:
                found.append((at, address - at))
            at = address + self.live[address]
        if at < self.capacity:
            found.append((at, self.capacity - at))
        return found

    def choose(self, size):
        fitting = [h for h in self.holes() if h[1] >= size]
        if not fitting:
            return None
        if self.placement in ("best", "buddy"):
            return min(fitting, key=lambda h: (h[1], h[0]))
        if self.placement == "worst":
            return max(fitting, key=lambda h: h[1])
        if self.placement == "next":
            return next((h for h in fitting if h[0] >= self.rover), fitting[0])
        return fitting[0]

    def take(self, size):
        hole = self.choose(size)
        if hole is None:
            return None
        address, room = hole
        if self.placement == "buddy":
            self.buddies.remove(hole)
            while room > size:
                room //= 2
                self.buddies.append((address + room, room))
        self.live[address] = size
        self.rover = address + size
        return address, size

    def give(self, extent):
        address, size = extent
        del self.live[address]
        if self.placement == "buddy":
            while (address ^ size, size) in self.buddies:
                self.buddies.remove((address ^ size, size))
                address, size = min(address, address ^ size), size * 2
            self.buddies.append((address, size))

    def external(self, q):
        sizes = [size for _, size in self.holes()]
        return q * (sum(sizes) // q - sum(size // q for size in sizes)) if q else 0


class Segments:
    """PyTorch's caching allocator over one device: segments of [address, size, used], in units of 512 bytes."""

    SMALL, SMALL_SEGMENT, LARGE_SEGMENT, LARGE = 2048, 4096, 40960, 20480

    def __init__(self, capacity):
        self.capacity, self.segments, self.next = capacity, [], 0
        self.live: dict[int, int] = {}

    def segment_size(self, size):
        if size <= self.SMALL:
            return self.SMALL_SEGMENT
        return self.LARGE_SEGMENT if size < self.LARGE else up(size, self.SMALL_SEGMENT)

    def total(self):
        return sum(sum(b[1] for b in s) for s in self.segments)

    def idle(self, segment):
        return len(segment) == 1 and not segment[0][2]

    def choose(self, size):
        found = [
            (block[1], block[0], segment, block)
            for segment in self.segments
            for block in segment
            if not block[2]
            and block[1] >= size
            and (sum(b[1] for b in segment) == self.SMALL_SEGMENT) == (size <= self.SMALL)
        ]
        if found:
            return min(found, key=lambda f: f[:2])
        kept = sum(sum(b[1] for b in s) for s in self.segments if not self.idle(s))
        return "device" if self.segment_size(size) + kept <= self.capacity else None

    def take(self, size):
        chosen = self.choose(size)
        if chosen is None:  # PyTorch has given back all it could before it gives up
            self.segments = [s for s in self.segments if not self.idle(s)]
            return None
        if chosen == "device":
            new = self.segment_size(size)
            if self.total() + new > self.capacity:
                self.segments = [s for s in self.segments if not self.idle(s)]
            self.segments.append([[self.next, new, False]])
            self.next += new + 1
            chosen = (new, 0, self.segments[-1], self.segments[-1][0])
        segment, block = chosen[2], chosen[3]
        left = block[1] - size
        if left > (0 if size <= self.SMALL else self.SMALL):
            segment.insert(segment.index(block) + 1, [block[0] + size, left, False])
            block[1] = size
        block[2] = True
        self.live[block[0]] = block[1]
        return block[0], block[1]

    def give(self, extent):
        del self.live[extent[0]]
        for segment in self.segments:
            for block in segment:
                if block[0] == extent[0]:
                    block[2] = False
            i = 0
            while i + 1 < len(segment):
                if not segment[i][2] and not segment[i + 1][2]:
                    segment[i][1] += segment.pop(i + 1)[1]
                else:
                    i += 1

    def external(self, q):
        if not q:
            return 0
        kept = [s for s in self.segments if not self.idle(s)]
        sizes = [b[1] for s in kept for b in s if not b[2]]
        sizes.append(self.capacity - sum(sum(b[1] for b in s) for s in kept))
        return q * (sum(sizes) // q - sum(size // q for size in sizes))


class Stalled(Exception):
    """Restarts leave no time to compute a token."""


class PlainReplay:
    """Replay ``requests`` (arrival, prompt, output, max_tokens or 0) and keep one row per step."""

    def __init__(
        self,
        requests,
        *,
        kind,
        units,
        block=1,
        reservation="max",
        placement="best",
        growth="exact",
        growth_step=256,
        buffer=0,
        granularity=1,
        watermark=0,
        whole=True,
        max_len=2**31,
        max_seqs=256,
        budget=8192,
        clock=(1.0, 0.0, 0.0, 0.0),
        token_bytes=1,
        every=0.0,
        down=0.0,
    ):
        self.kind, self.units, self.block, self.reservation = kind, units, block, reservation
        self.growth, self.growth_step, self.buffer, self.granularity = growth, growth_step, buffer, granularity
        self.watermark, self.whole, self.max_len = watermark, whole, max_len
        self.max_seqs, self.budget, self.clock = max_seqs, budget, clock
        self.placement = placement
        self.token_bytes = token_bytes
        self.space_arguments = (units,) if placement == "segments" else (units, placement)
        self.space = (Segments if placement == "segments" else Space)(*self.space_arguments)
        self.pending = deque(Request(i, *r) for i, r in enumerate(requests))
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.rejected = {"prompt_too_long": 0, "larger_than_pool": 0, "cannot_grow": 0}
        self.rows, self.preemptions, self.refused, self.asked = [], 0, 0, 0
        self.now = self.pending[0].arrival if self.pending else 0.0
        self.ended: list[Request] = []
        self.every, self.down, self.restart_at, self.progress = every, down, self.now + every, -1
        self.restarts = self.recomputed = 0

    # sizes
    def align(self, tokens):
        size = up(tokens + self.buffer, self.granularity)
        if self.placement == "segments":
            return up(size * self.token_bytes, 512) // 512
        return pow2(size) if self.placement == "buddy" else size

    def alone(self, size):
        return self.space.segment_size(size) if self.placement == "segments" else size

    def fits(self, extent):
        if self.placement == "segments":
            return extent[1] * 512 // self.token_bytes - self.buffer
        return extent[1] - self.buffer

    def reserved(self, r):
        return {
            "max": self.max_len,
            "declared": r.p + r.m,
            "pow2": min(r.p + pow2(r.o), self.max_len),
            "exact": r.p + r.o,
        }[self.reservation]

    def grown(self, tokens):
        return {"exact": tokens, "doubling": pow2(tokens), "step": up(tokens, self.growth_step)}[self.growth]

    def before_grown(self, tokens):
        size = self.grown(tokens)
        return {"exact": size - 1, "doubling": size // 2, "step": size - self.growth_step}[self.growth]

    def asks(self, r):
        if self.kind == "paged":
            return up(r.tokens, self.block) // self.block
        if self.kind in ("upfront", "no-evict"):
            return up(r.p + r.m, self.block) // self.block
        if self.kind == "contiguous":
            return self.align(self.reserved(r))
        return self.align(self.grown(r.tokens))

    def fits_alone(self, r):
        stored = r.p + r.o - 1
        if self.kind == "static-batch":
            return r.p + r.o <= self.units
        if self.kind == "paged":
            return up(stored, self.block) // self.block <= self.units
        if self.kind == "grow":
            last = self.align(self.grown(stored))
            if self.align(self.grown(min(r.p, self.budget))) >= last:
                return self.alone(last) <= self.units
            before = self.align(max(0, self.before_grown(stored)))
            return self.alone(last) + self.alone(before) <= self.units
        return self.asks(r) <= self.units

    # memory
    def free_units(self):
        if self.kind in ("contiguous", "grow"):
            return self.units - sum(self.space.live.values())
        return self.units - sum(r.blocks for r in self.running)

    def promised(self):
        return sum(up(r.p + r.m, self.block) // self.block for r in self.running)

    def next_chunk(self, r, budget):
        return min(r.tokens - r.computed, budget)

    def first_chunk(self, r, budget):
        return min(r.tokens, budget)

    def size_refused(self, r):
        return self.asks(r)

    def used_blocks(self):
        return sum(r.blocks for r in self.running)

    def unheld_units(self):
        return self.units - self.promised() if self.kind == "no-evict" else self.free_units()

    def admit(self, r, n, scheduled):
        asked, spare = self.asks(r), self.watermark if scheduled else 0
        if self.kind == "paged":
            first = up(n, self.block) // self.block
            if (asked if self.whole else first) + spare > self.free_units():
                return False
            r.blocks = first
        elif self.kind == "upfront":
            if asked + spare > self.free_units():
                return False
            r.blocks = asked
        elif self.kind == "no-evict":
            if asked + spare > self.units - self.promised():
                return False
            r.blocks = up(n, self.block) // self.block
        else:
            if self.kind == "grow" and self.whole and self.space.choose(asked) is None:
                return False
            r.extent = self.space.take(asked if self.kind == "contiguous" else self.align(self.grown(n)))
            return r.extent is not None
        return True

    def extend(self, r, n):
        if self.kind in ("paged", "no-evict"):
            need = up(r.computed + n, self.block) // self.block
            if need - r.blocks > self.free_units():
                return False
            r.blocks = need
        elif self.kind == "grow" and r.computed + n > self.fits(r.extent):
            larger = self.space.take(self.align(self.grown(r.computed + n)))
            if larger is None:
                return False
            self.space.give(r.extent)
            r.extent = larger
        return True

    def release(self, r):
        if r.extent:
            self.space.give(r.extent)
        r.extent, r.blocks, r.computed = None, 0, 0

    # the scheduler
    def join(self):
        while self.pending and self.pending[0].arrival <= self.now:
            r = self.pending.popleft()
            if r.p >= self.max_len:
                self.rejected["prompt_too_long"] += 1
                continue
            room = self.max_len - r.p
            r.m = max(1, min(r.m, room)) if r.m else room
            r.o = min(r.o, r.m)
            if not self.fits_alone(r):
                self.rejected["larger_than_pool"] += 1
                continue
            self.waiting.append(r)

    def run(self):
        while True:
            if not self.running and not self.waiting:
                if not self.pending:
                    return self
                self.now = max(self.now, self.pending[0].arrival)
            self.join()
            if self.every and self.now >= self.restart_at and (self.running or self.waiting):
                self.restart()
            elif self.running or self.waiting:
                self.batch() if self.kind == "static-batch" else self.step()

    def restart(self):
        while self.running:
            victim = self.running.pop()
            self.release(victim)
            self.waiting.appendleft(victim)
        self.forget()
        done, going = sum(r.o for r in self.ended), sum(r.generated for r in self.waiting)
        progress = (done + going, self.rejected["cannot_grow"])
        if progress == self.progress:
            raise Stalled
        self.progress = progress
        self.restarts += 1
        self.now += self.down
        self.restart_at = self.now + self.every

    def forget(self):
        """Lose what outlives requests."""
        self.space = type(self.space)(*self.space_arguments)

    def step(self):
        budget, scheduled, preempted = self.budget, [], False
        i = 0
        while i < len(self.running) and budget > 0:
            r = self.running[i]
            n = self.next_chunk(r, budget)
            if n == 0:
                i += 1
                continue
            while not self.extend(r, n):
                victim = self.running.pop()
                self.release(victim)
                self.preemptions += 1
                preempted = True
                self.waiting.appendleft(victim)
                if victim is r:
                    if self.kind == "grow" and not self.running:
                        if victim.stuck_at == victim.generated:
                            self.waiting.popleft()
                            self.rejected["cannot_grow"] += 1
                        victim.stuck_at = victim.generated
                    break
            if r not in self.running:
                break
            scheduled.append((r, n))
            budget -= n
            i += 1
        while not preempted and budget > 0 and len(self.running) < self.max_seqs and self.waiting:
            r = self.waiting[0]
            n = self.first_chunk(r, budget)
            if n == 0:
                break
            self.asked = self.size_refused(r)
            if not self.admit(r, n, bool(scheduled)):
                self.refused += self.unheld_units() >= self.asked
                break
            self.waiting.popleft()
            r.moments.setdefault("queued", self.now)
            self.running.append(r)
            scheduled.append((r, n))
            budget -= n
        prefill = decodes = 0
        for r, n in scheduled:
            r.computed += n
            if n == 1 and r.generated > 0 and r.computed == r.tokens:
                decodes += 1
            else:
                prefill += n
        if self.waiting:
            self.asked = self.asks(self.waiting[0])
        self.finish_step(prefill, decodes, sum(r.computed for r, _ in scheduled))
        for r, _ in scheduled:
            if r.computed == r.tokens:
                r.generated += 1
                r.moments.setdefault("first", self.now)
                if r.generated == r.o:
                    r.moments["end"] = self.now
                    self.running.remove(r)
                    self.release(r)
                    self.ended.append(r)
                    continue
            self.go_on(r)

    def go_on(self, r):
        """Do what a policy does with a request that was scheduled and goes on."""

    def finish_step(self, prefill, decodes, read):
        used, kept, held, never, external = self.totals()
        seconds = self.clock[0] + self.clock[1] * prefill + self.clock[2] * decodes + self.clock[3] * read
        self.rows.append(
            {
                "time": self.now,
                "seconds": seconds,
                "running": len(self.running),
                "waiting": len(self.waiting),
                "preemptions": self.preemptions,
                "used_blocks": self.used_blocks(),
                "used": used,
                "kept": kept,
                "held": held,
                "never": never,
                "external": external,
            }
        )
        self.now += seconds

    def totals(self):
        used = sum(r.computed for r in self.running)
        if self.kind == "paged":
            return used, used, sum(r.blocks for r in self.running) * self.block, 0, 0
        if self.kind in ("upfront", "no-evict"):
            kept = sum(r.p + r.m for r in self.running)
            return used, kept, self.promised() * self.block, kept - sum(r.p + r.o - 1 for r in self.running), 0
        external = self.space.external(self.asked)
        held = sum(self.space.live.values())
        if self.kind == "grow":
            return used, used, held, 0, external
        kept = sum(self.reserved(r) for r in self.running)
        return used, kept, held, kept - sum(r.p + r.o - 1 for r in self.running), external

    def batch(self):
        rows: list[Request] = []
        while self.waiting and len(rows) < self.max_seqs:
            trial = [*rows, self.waiting[0]]
            if len(trial) * (max(r.p for r in trial) + max(r.o for r in trial)) > self.units:
                break
            rows.append(self.waiting.popleft())
            rows[-1].moments.setdefault("queued", self.now)
        self.running = rows
        p, o = max(r.p for r in rows), max(r.o for r in rows)
        for t in range(1, o + 1):
            if t > 1:
                self.join()
                if self.every and self.now >= self.restart_at:
                    self.recomputed += sum(r.p + min(t - 1, r.o) - 1 for r in rows)
                    self.restart()
                    return
            if self.waiting:
                head = self.waiting[0]
                self.refused += self.units - len(rows) * (p + o) >= head.p + head.o
            alive = [r for r in rows if r.o >= t]
            used, kept = sum(r.p + t - 1 for r in alive), sum(r.p + o for r in alive)
            never = sum(o - r.o + 1 for r in alive)
            prefill, decodes = (len(rows) * p, 0) if t == 1 else (0, len(rows))
            self.totals = lambda u=used, k=kept, n=never: (u, k, len(rows) * (p + o), n, 0)
            self.finish_step(prefill, decodes, len(rows) * (p + t - 1))
        for r in rows:
            r.moments["first"] = r.moments["end"] = self.now
            self.ended.append(r)
        self.running = []
