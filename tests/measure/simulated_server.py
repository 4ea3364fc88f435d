"""A small vLLM: scheduler, block tables, prefix cache and counters, with the truth the counters do not tell.

Written from the rules of vLLM 0.32 (first come first served, chunked prefill, last in first preempted, recompute), not
from the laws under test. Synchronous: a snapshot follows the step that emitted. Asynchronous: the next step is already
scheduled at the snapshot, its blocks are taken and its requests admitted.
"""

import random
from dataclasses import dataclass, field

from kvledger.engines.facts import HistogramReading
from kvledger.engines.vllm.metrics import VllmEngine, VllmScrape


@dataclass
class Request:
    prompt: int
    output: int
    group: int | None = None
    computed: int = 0
    generated: int = 0
    hits: int = 0
    counted: bool = False
    queried: bool = False
    copy: int | None = None
    """Which stored copy of its group's prefix it refers to."""
    scheduled: bool = False
    untold: int = 0
    """Preemptions that are counted when it emits again."""

    @property
    def tokens(self):
        return self.prompt + self.generated


@dataclass
class Server:
    """Steps on demand; ``totals`` are the counters, ``alive`` the truth."""

    blocks: int = 65
    block: int = 16
    budget: int = 48
    max_running: int = 12
    is_asynchronous: bool = False
    prefix_blocks: int = 3
    longest_blocks: int = 32
    """Blocks of the longest request the server takes."""
    caching: bool = True
    seed: int = 0
    running: list = field(default_factory=list)
    waiting: list = field(default_factory=list)
    totals: dict = field(default_factory=dict)
    copies: dict = field(default_factory=dict)
    """Group -> copy that later requests find."""
    next_copy: int = 0

    def add(self, name, amount=1):
        self.totals[name] = self.totals.get(name, 0) + amount

    def submit(self, prompt, output, group=None):
        self.waiting.append(Request(prompt, output, group if self.caching else None))

    def abort(self, generator):
        alive = self.running + self.waiting
        if alive:
            victim = generator.choice(alive)
            (self.running if victim in self.running else self.waiting).remove(victim)

    def step(self):
        """One step: what was scheduled emits, in the order the snapshot of this server expects."""
        if self.is_asynchronous:
            self._emit()
            self._schedule()
        else:
            self._schedule()
            self._emit()

    def _prefix(self, request):
        return self.prefix_blocks * self.block if request.copy is not None else 0

    def held_blocks(self):
        own = sum(-(-request.computed // self.block) - self._prefix(request) // self.block for request in self.running)
        return own + self.prefix_blocks * len({r.copy for r in self.running if r.copy is not None})

    def stored_tokens(self):
        """Distinct tokens in the blocks of running requests, those of the step under way included."""
        own = sum(request.computed - self._prefix(request) for request in self.running)
        shared = len({r.copy for r in self.running if r.copy is not None})
        return own + shared * self.prefix_blocks * self.block

    def live_tokens(self):
        return sum(request.tokens for request in self.running + self.waiting if request.counted)

    def _fits(self, request, tokens):
        before, request.computed = request.computed, tokens
        added = request not in self.running
        if added:
            self.running.append(request)
        fits = self.held_blocks() <= self.blocks - 1
        if added:
            self.running.remove(request)
        request.computed = before
        return fits

    def _schedule(self):
        budget, preempted = self.budget, False
        for request in list(self.running):
            if request not in self.running or budget <= 0:
                continue
            n = min(request.tokens - request.computed, budget)
            while not self._fits(request, request.computed + n):
                victim, preempted = self.running.pop(), True
                if victim.scheduled:
                    budget += 1
                victim.computed, victim.copy, victim.scheduled = 0, None, False
                victim.untold += 1
                self.waiting.insert(0, victim)
                if victim is request:
                    break
            if request in self.running:
                request.computed += n
                request.scheduled = n > 0
                budget -= n
                self._publish(request)
        while not preempted and budget > 0 and self.waiting and len(self.running) < self.max_running:
            request = self.waiting[0]
            found = self.copies.get(request.group) if request.group is not None else None
            hit = self.prefix_blocks * self.block if found is not None else 0
            if hit > request.tokens - 1:
                found, hit = None, 0
            request.copy = found
            n = min(request.tokens - hit, budget)
            if not self._fits(request, request.tokens) or not self._fits(request, hit + n):
                request.copy = None
                return
            self.waiting.pop(0)
            self.running.append(request)
            request.computed, request.scheduled = hit + n, True
            budget -= n
            if not request.queried:
                request.queried = True
                request.hits = hit
                if self.caching:
                    self.add("queries", request.prompt)
            self._publish(request)

    def _publish(self, request):
        """Offer the prefix of a group once one of its requests has computed it."""
        whole = self.prefix_blocks * self.block
        wrote = request.copy is None and request.computed >= whole
        if request.group is not None and wrote and request.group not in self.copies and request.prompt >= whole:
            request.copy, self.next_copy = self.next_copy, self.next_copy + 1
            self.copies[request.group] = request.copy

    def _emit(self):
        handed_out = self.totals.get("generated", 0)
        self._hand_out()
        if self.totals.get("generated", 0) > handed_out:
            self.add("steps")

    def _hand_out(self):
        for request in list(self.running):
            if not request.scheduled or request.computed < request.tokens:
                request.scheduled = False
                continue
            request.scheduled = False
            if not request.counted:
                request.counted = True
                self.add("started")
                self.add("prompt", request.prompt)
                self.add("cached", request.hits)
            request.generated += 1
            self.add("generated")
            self.add("preempted", request.untold)
            request.untold = 0
            if request.generated == request.output:
                self.running.remove(request)
                self.add("ended")
                self.add("prompt_ended", request.prompt)
                self.add("generated_ended", request.generated)
                self.add("computed_ended", request.prompt - request.hits)

    def scrape(self):
        t = self.totals.get

        def histogram(name, count, total):
            return HistogramReading(name=name, edges=(), counts=(), count=t(count, 0), total=t(total, 0))

        whole = self.blocks - 1
        iterated = t("prompt", 0) + t("generated", 0) - t("cached", 0)
        return VllmScrape(
            engines=(
                VllmEngine(
                    index=0,
                    running=len(self.running),
                    waiting=len(self.waiting),
                    usage_ratio=1.0 - (whole - self.held_blocks()) / whole,
                    prompt_tokens=t("prompt", 0),
                    generation_tokens=t("generated", 0),
                    cached_tokens=t("cached", 0),
                    query_tokens=t("queries", 0),
                    hit_tokens=0,
                    preemptions=t("preempted", 0),
                    histograms={
                        "request_prompt_tokens": histogram("p", "ended", "prompt_ended"),
                        "request_generation_tokens": histogram("g", "ended", "generated_ended"),
                        "request_prefill_kv_computed_tokens": histogram("k", "ended", "computed_ended"),
                        "time_to_first_token_seconds": histogram("t", "started", "none"),
                        "iteration_tokens_total": HistogramReading(
                            name="i", edges=(), counts=(), count=t("steps", 0), total=iterated
                        ),
                    },
                    cache_config={
                        "block_size": str(self.block),
                        "num_gpu_blocks": str(self.blocks),
                        "enable_prefix_caching": str(self.caching),
                        "kv_cache_size_tokens": str(self.blocks * self.block),
                        "kv_cache_max_concurrency": str(self.blocks / self.longest_blocks),
                    },
                ),
            ),
            start_seconds=1.0,
        )


def drive(server, *, seed, steps, aborts=0.0, sharing=0.0, pressure=0.4, every=3):
    """Yield (scrape, stored tokens, live tokens) at random steps of a random load, and at the end until idle."""
    generator = random.Random(seed)
    for step in range(steps + 2000):
        if step < steps and generator.random() < pressure:
            group = generator.randrange(2) if generator.random() < sharing else None
            server.submit(generator.randrange(1, 150), generator.randrange(1, 60), group)
        if step < steps and generator.random() < aborts:
            server.abort(generator)
        server.step()
        if generator.randrange(every) == 0 or (step >= steps and not server.running and not server.waiting):
            yield server.scrape(), server.stored_tokens(), server.live_tokens()
        if step >= steps and not server.running and not server.waiting:
            return
