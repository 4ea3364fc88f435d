"""How many free blocks are cached: the bounds against a plain block pool that knows, and against real schedulers."""

import random
from collections import deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.engines.facts import HistogramReading
from kvledger.engines.vllm.metrics import VllmEngine
from kvledger.ledger import Account, Accuracy
from kvledger.measure.figure import Span
from kvledger.measure.meter import Meter
from tests.measure.recorded import measure, scrapes

BLOCK = 4


@dataclass
class Request:
    prompt: int
    output: int
    content: int
    blocks: list = field(default_factory=list)
    stored: int = 0
    emitted: int = 0
    hits: int = 0


class Pool:
    """A queue of free blocks: bare ones are taken first, of the others the one given back longest ago.

    A block that holds a whole block of content stands as its key; one content may be in several blocks.
    """

    def __init__(self, blocks, *, unconfirmed):
        self.blocks, self.bare, self.cached = blocks, blocks, deque()
        self.unconfirmed, self.waiting, self.running = unconfirmed, deque(), []
        self.counts = dict.fromkeys(["prompt", "generated", "hits", "started", "queries"], 0)

    def free(self):
        return self.bare + len(self.cached)

    def step(self):
        for request in list(self.running):
            self.grow(request, request.stored + 1)
            request.emitted += 1
            self.counts["generated"] += 1
            if request.emitted == 1:
                self.counts["started"] += 1
                self.counts["prompt"] += request.prompt
                self.counts["hits"] += request.hits
            if request.emitted == request.output:
                self.leave(request)
        while self.waiting and self.free() > 30:
            self.admit(self.waiting.popleft())

    def admit(self, request):
        self.counts["queries"] += request.prompt
        while request.hits + BLOCK < request.prompt and (request.content, request.hits // BLOCK) in self.cached:
            key = (request.content, request.hits // BLOCK)
            self.cached.remove(key)
            request.blocks.append(key)
            request.hits += BLOCK
        self.grow(request, request.prompt)
        self.running.append(request)

    def grow(self, request, tokens):
        while len(request.blocks) * BLOCK < tokens:
            if self.bare:
                self.bare -= 1
            else:
                self.cached.popleft()
            request.blocks.append(None)
        request.stored = tokens
        for place in range((tokens - self.unconfirmed) // BLOCK):
            request.blocks[place] = (request.content, place)

    def leave(self, request):
        self.running.remove(request)
        self.bare += request.blocks.count(None)
        self.cached.extend(key for key in reversed(request.blocks) if key is not None)

    def scrape(self):
        c, whole = self.counts, self.blocks
        started = HistogramReading(name="t", edges=(), counts=(), count=c["started"], total=0)
        return VllmEngine(
            index=0,
            running=len(self.running),
            waiting=len(self.waiting),
            usage_ratio=1 - self.free() / whole,
            prompt_tokens=c["prompt"],
            generation_tokens=c["generated"],
            cached_tokens=c["hits"],
            query_tokens=c["queries"],
            histograms={"time_to_first_token_seconds": started},
            cache_config={
                "block_size": str(BLOCK),
                "num_gpu_blocks": str(whole + 1),
                "enable_prefix_caching": "True",
                "kv_cache_size_tokens": str((whole + 1) * BLOCK),
                "kv_cache_max_concurrency": str((whole + 1) / 50),
            },
        )


def read(meter, engine):
    from kvledger.engines.vllm.metrics import VllmScrape

    (reading,) = meter.take(VllmScrape(engines=(engine,), start_seconds=1.0), seconds=0.0)
    return reading


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), skip=st.integers(0, 80), unconfirmed=st.integers(0, 1))
def test_the_bounds_hold_what_a_plain_pool_has_cached(seed, skip, unconfirmed):
    generator, pool, meter = random.Random(seed), Pool(200, unconfirmed=unconfirmed), Meter()
    for step in range(160):
        if generator.random() < 0.4:
            fresh = generator.randrange(10**9)
            content = generator.choice([fresh, fresh, step % 3]) if step % 7 else fresh
            pool.waiting.append(Request(generator.randrange(1, 60), generator.randrange(1, 12), content))
        pool.step()
        if step >= skip and generator.random() < 0.5:
            span = read(meter, pool.scrape()).sheet.figure("cached").span
            assert span.low <= len(pool.cached) * BLOCK <= span.high


def test_once_the_pool_was_filled_nearly_all_that_is_free_is_cached():
    """512 blocks, four requests of 20 blocks at once: what ran, began and was in prefill is at most 12 at once."""
    pool, meter = Pool(512, unconfirmed=0), Meter()
    for number in range(110):
        pool.waiting.extend(
            [Request(76, 4, 10 * number + n) for n in range(4 if number % 4 == 0 < 100 - number else 0)]
        )
        pool.step()
        reading = read(meter, pool.scrape())
    sheet = reading.sheet
    low, high = (end / BLOCK for end in (sheet.figure("cached").low, sheet.figure("cached").high))
    assert reading.running == 0
    assert low >= 512 - 2 * 12
    assert low <= len(pool.cached) <= high == 512
    assert sheet.figure("cached").accuracy is Accuracy.MODELLED
    assert sheet.ledger[Account.CACHED] == sheet.figure("cached").low
    assert "nobody reset" in sheet.figure("cached").formula


def test_a_fresh_engine_has_cached_nothing():
    reading = read(Meter(), Pool(100, unconfirmed=0).scrape())
    assert reading.sheet.figure("cached").span == Span.exact(0)
    assert reading.sheet.ledger[Account.FREE] == 100 * BLOCK


@pytest.mark.parametrize(
    "changes",
    [
        {"draft_tokens": 5},
        {"cached_tokens": None},
        {"cache_config": {"block_size": "32", "num_gpu_blocks": "257", "enable_prefix_caching": "True"}},
    ],
    ids=["speculation", "no hits counted", "before 0.26"],
)
def test_where_the_rule_does_not_hold_there_is_no_least(changes):
    meter = Meter()
    for scrape in scrapes("async"):
        reading = read(meter, replace(scrape.engines[0], **changes))
        assert reading.sheet.figure("cached").low == 0


def test_without_a_prefix_cache_nothing_is_cached():
    for scrape in scrapes("async")[::20]:
        config = {**scrape.engines[0].cache_config, "enable_prefix_caching": "False"}
        reading = read(Meter(), replace(scrape.engines[0], cache_config=config))
        assert reading.sheet.figure("cached").span == Span.exact(0)


def test_the_books_of_a_recorded_server_balance_with_what_is_cached():
    cached = [reading.sheet.ledger[Account.CACHED] for _, reading in measure("async")]
    assert cached[0] == 0
    assert cached[-1] > 0
