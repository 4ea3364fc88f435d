"""The pool of Transformers counted from block tables, on a stand-in with the names of its own objects (5.24)."""

from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kvledger.engines.transformers.metrics import read_metrics
from kvledger.errors import MissingExtra
from kvledger.live import transformers_serve
from kvledger.live.transformers_pages import count_pages

PAGE, TOKEN = 16, 100
SECTOR = 2 * PAGE * TOKEN


class Pool:
    """Sectors of two blocks; ``free`` counts the free blocks of each kind."""

    def __init__(self, free_sectors, free):
        self.free_sectors, self.free = list(range(free_sectors)), free

    def count_free_blocks(self, index):
        return self.free[index]


def kind(index, tables, *, cached=0, window=None):
    found = SimpleNamespace(
        index=index,
        block_table=tables,
        bytes_per_block=PAGE * TOKEN,
        tokens_per_page=PAGE,
        ledger=SimpleNamespace(cached_blocks=set(range(900, 900 + cached))),
    )
    if window is not None:
        found.sliding_window = window
    return found


def cache(allocators, *, free_sectors, free, sectors):
    return SimpleNamespace(
        pool=Pool(free_sectors, free),
        num_sectors=sectors,
        bytes_per_sector=SECTOR,
        cache_allocators={str(one.index): one for one in allocators},
    )


def scheduler(lengths, waiting=()):
    active = {name: SimpleNamespace(current_len=lambda tokens=tokens: tokens) for name, tokens in lengths.items()}
    return SimpleNamespace(active_requests=active, waiting_requests=dict.fromkeys(waiting))


def test_a_tail_is_internal_and_a_shared_block_counts_once():
    one = kind(0, {"a": [1, 2, 3], "b": [1, 4]}, cached=3)
    found = count_pages(
        cache([one], free_sectors=5, free={0: 1}, sectors=9), scheduler({"a": 40, "b": 20}, waiting=["c"])
    )
    ledger = found.ledger.check()
    assert (found.running, found.waiting, found.tokens) == (2, 1, 60)
    assert ledger.used == (16 + 16 + 8 + 4) * TOKEN
    assert ledger.internal == (8 + 12) * TOKEN
    assert ledger.cached == 3 * PAGE * TOKEN
    assert ledger.free == 5 * SECTOR + PAGE * TOKEN
    assert ledger.unattributed == 2 * SECTOR
    assert ledger.capacity == 11 * SECTOR
    assert ledger.memo.shared_saving == 16 * TOKEN


def test_a_window_keeps_its_own_tokens_only():
    full = kind(0, {"a": [1, 2, 3, 4]})
    ring = kind(1, {"a": [8, 9]}, window=32)
    found = count_pages(cache([full, ring], free_sectors=1, free={0: 0, 1: 0}, sectors=4), scheduler({"a": 50}))
    assert found.ledger.used == (50 + 32) * TOKEN
    assert found.ledger.internal == 14 * TOKEN


def test_a_request_without_tokens_has_blocks_and_no_use():
    found = count_pages(cache([kind(0, {"a": [1, 2]})], free_sectors=0, free={0: 0}, sectors=1), scheduler({"a": 0}))
    assert (found.ledger.used, found.ledger.internal) == (0, 2 * PAGE * TOKEN)


def test_a_count_that_does_not_add_up_is_none():
    assert count_pages(cache([kind(0, {})], free_sectors=3, free={0: 0}, sectors=4), scheduler({})) is None


def test_tables_that_change_while_they_are_copied_are_counted_again():
    class Moving(dict):
        tries = 0

        def items(self):
            Moving.tries += 1
            if Moving.tries < 3:
                raise RuntimeError("dictionary changed size during iteration")
            return super().items()

    one = kind(0, Moving({"a": [1, 2]}))
    found = count_pages(cache([one], free_sectors=0, free={0: 0}, sectors=1), scheduler({"a": 32}))
    assert (found.ledger.used, Moving.tries) == (32 * TOKEN, 3)


def scrape(state):
    registry = CollectorRegistry()
    registry.register(transformers_serve.PagesCollector(state, version="5.24.0"))
    return read_metrics(generate_latest(registry).decode())[0]


def state(processor=None, *, paged=True):
    manager = SimpleNamespace(_cb=SimpleNamespace(batch_processor=processor))
    return SimpleNamespace(_continuous_batching=paged, _cb_manager=manager, _cb_model_id="/home/ann/models/tiny@main")


def test_what_is_told_is_read_again():
    one = kind(0, {"a": [1, 2, 3], "b": [1, 4]}, cached=3)
    pages = cache([one], free_sectors=5, free={0: 1}, sectors=9)
    snapshot = scrape(state(SimpleNamespace(cache=pages, scheduler=scheduler({"a": 40, "b": 20}))))
    (pool,) = snapshot.pools
    assert (snapshot.model, snapshot.running.value, snapshot.live_tokens.value) == ("tiny", 2, 60)
    assert (pool.capacity.value, pool.stored.value) == (11 * SECTOR, 44 * TOKEN)
    assert (pool.used.value, pool.shared_saving.value) == (64 * TOKEN, 16 * TOKEN)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (state(paged=False), "without --continuous-batching"),
        (state(), "made at the first request"),
        (SimpleNamespace(_continuous_batching=True), "made at the first request"),
        (
            state(SimpleNamespace(cache=cache([], free_sectors=0, free={}, sectors=1), scheduler=scheduler({}))),
            "never stood still",
        ),
    ],
)
def test_a_server_without_a_pool_says_why(given, problem):
    snapshot = scrape(given)
    assert snapshot.pools == ()
    assert problem in snapshot.problem


def test_without_transformers_the_reason_is_said(monkeypatch):
    monkeypatch.setattr(transformers_serve.importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError))
    with pytest.raises(MissingExtra, match="transformers serve"):
        transformers_serve.main([])
