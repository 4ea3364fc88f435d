"""A prefix cache alone against a plain one, and against the curve that kvcache-simulator 0.1.3 draws."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.errors import UsageError
from kvledger.replay import HashIds, HashKind, SharedPrefix, TokenIds, Workload
from kvledger.replay.cache import Eviction, cut_blocks, measure_cache
from kvledger.sources.files import load_trace

from .plain_cache import PlainCache

GIB = 2**30
BLOCK_BYTES = 160 * 2**20  # 512 tokens of llama-3.1-70b in bf16: 327,680 bytes each


def workload_of(paths, *, prompts=None, grain=4):
    """Return requests with content ids along these paths; prompts fill their last block unless given."""
    offsets = np.cumsum([0, *map(len, paths)]).astype(np.int64)
    return Workload(
        arrival_seconds=np.zeros(len(paths)),
        prompt_tokens=np.array(prompts or [grain * len(p) for p in paths], np.int32),
        output_tokens=np.ones(len(paths), np.int32),
        content=HashIds(
            offsets=offsets,
            ids=np.array([i for p in paths for i in p], np.int64),
            block_tokens=grain,
            kind=HashKind.CONTENT,
        ),
    )


paths = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple), min_size=1, max_size=40)


@settings(max_examples=200, deadline=None)
@given(paths, st.integers(0, 12), st.sampled_from(list(Eviction)), st.sampled_from([0.0, 0.5]), st.booleans())
def test_every_eviction_finds_what_the_plain_cache_finds(requests, size, eviction, warm_up, whole):
    stream = cut_blocks(workload_of(requests), block_size=4, whole_blocks=whole)
    (point,) = measure_cache(stream, sizes=[size], evictions=[eviction], warm_up_ratio=warm_up)
    most = [len(r) - 1 for r in requests] if whole else None
    hits = PlainCache(requests, str(eviction), size, most_hits=most).run().hits
    first = int(len(requests) * warm_up)
    lengths = [len(r) for r in requests]
    assert point.first == first
    assert point.hit_ratio == pytest.approx(sum(hits[first:]) / sum(lengths[first:]))
    assert point.whole_hit_ratio == pytest.approx(sum(hits) / sum(lengths))


@settings(max_examples=60, deadline=None)
@given(paths, st.integers(0, 12))
def test_nothing_beats_the_clairvoyant_and_a_cache_that_holds_all_reaches_the_ceiling(requests, size):
    stream = cut_blocks(workload_of(requests), block_size=4, whole_blocks=False)
    points = measure_cache(stream, sizes=[size], evictions=list(Eviction), warm_up_ratio=0.0)
    full = measure_cache(stream, sizes=[stream.distinct, 10**9], evictions=list(Eviction), warm_up_ratio=0.0)
    best = points[-1]
    assert best.eviction is Eviction.BELADY
    assert max(p.hit_ratio for p in points) <= best.hit_ratio + 1e-12
    assert len({p.hit_ratio for p in full}) == 1
    assert best.hit_ratio <= full[0].hit_ratio + 1e-12


def test_blocks_smaller_and_larger_than_the_ids_of_the_trace_find_the_same_shared_text():
    requests = [(1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 9, 9)]
    found = {}
    for block in (2, 4, 8):
        stream = cut_blocks(workload_of(requests), block_size=block, whole_blocks=False)
        (point,) = measure_cache(stream, sizes=[999], evictions=[Eviction.LRU], warm_up_ratio=0.0)
        found[block] = round(point.whole_hit_ratio * 48)
    assert found == {2: 12 + 8, 4: 12 + 8, 8: 8 + 8}


def test_a_partial_last_block_counts_only_where_partial_blocks_do():
    twice = workload_of([(1, 2), (1, 2)], prompts=[6, 6])
    for whole, tokens in ((False, 6), (True, 4)):
        stream = cut_blocks(twice, block_size=4, whole_blocks=whole)
        (point,) = measure_cache(stream, sizes=[9], evictions=[Eviction.LRU], warm_up_ratio=0.0)
        assert round(point.whole_hit_ratio * 12) == tokens


def test_token_ids_and_common_streams_are_content_too():
    tokens = TokenIds(offsets=np.array([0, 9, 18]), ids=np.array([*range(9), *range(7), 70, 80], np.int32))
    stream_of = {
        "tokens": (tokens, 4),
        "stream": (SharedPrefix(tokens=np.array([9, 5], np.int32)), 4),
    }
    for content, found in stream_of.values():
        workload = Workload(
            arrival_seconds=np.zeros(2),
            prompt_tokens=np.array([8, 8], np.int32),
            output_tokens=np.ones(2, np.int32),
            content=content,
        )
        stream = cut_blocks(workload, block_size=4, whole_blocks=False)
        (point,) = measure_cache(stream, sizes=[9], evictions=[Eviction.LRU], warm_up_ratio=0.0)
        assert round(point.whole_hit_ratio * 16) == found


def test_a_trace_without_content_is_refused():
    workload = Workload(
        arrival_seconds=np.zeros(1), prompt_tokens=np.array([8], np.int32), output_tokens=np.array([1], np.int32)
    )
    with pytest.raises(UsageError, match="does not tell what its requests share"):
        cut_blocks(workload, block_size=4, whole_blocks=False)


@pytest.mark.parametrize(("sizes", "warm_up"), [([-1], 0.5), ([1], 1.0), ([1], -0.1)])
def test_sizes_below_zero_and_warm_ups_that_leave_nothing_are_refused(sizes, warm_up):
    stream = cut_blocks(workload_of([(1, 2)]), block_size=4, whole_blocks=False)
    with pytest.raises(UsageError, match="below"):
        measure_cache(stream, sizes=sizes, evictions=[Eviction.LRU], warm_up_ratio=warm_up)


_PUBLISHED = {
    # trace, eviction: {GiB: % of the prompt tokens of the last half}
    ("conversation", Eviction.LRU): dict(
        zip((1, 64, 128, 256, 512, 1024, 2048, 4096, 8192), (4.5, 4.5, 4.6, 5.2, 7.3, 15.3, 25.0, 33.0, 37.8))
    ),
    ("conversation", Eviction.FIFO): {1024: 14.3, 2048: 21.6, 4096: 29.0, 8192: 34.9},
    ("conversation", Eviction.BELADY): {64: 12.6, 256: 24.5, 512: 32.0, 1024: 38.6},
    ("synthetic", Eviction.LRU): {64: 5.3, 512: 30.2, 1024: 48.8, 2048: 67.7, 4096: 82.6},
}
_CEILING = {"conversation": (39.8, 37.4), "synthetic": (86.3, 65.1)}


def mooncake(shared, name):
    workload = load_trace(str(shared / f"traces/mooncake/{name}_trace.jsonl.gz")).workload
    return cut_blocks(workload, block_size=512, whole_blocks=False)


@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_the_mooncake_curves_are_those_of_kvcache_simulator(shared, name):
    stream = mooncake(shared, name)
    for (trace, eviction), curve in _PUBLISHED.items():
        if trace == name:
            sizes = [gib * GIB // BLOCK_BYTES for gib in curve]
            points = measure_cache(stream, sizes=sizes, evictions=[eviction])
            found = [100 * point.hit_ratio for point in points]
            assert found == pytest.approx(list(curve.values()), abs=0.06), eviction
            assert all(point.filled for point in points)
    (ceiling,) = measure_cache(stream, sizes=[stream.distinct], evictions=[Eviction.LRU])
    assert (100 * ceiling.hit_ratio, 100 * ceiling.whole_hit_ratio) == pytest.approx(_CEILING[name], abs=0.06)


def test_42_points_of_the_mooncake_conversation_take_less_than_a_second(shared):
    stream = mooncake(shared, "conversation")
    measure_cache(stream, sizes=[9], evictions=list(Eviction))  # compiled
    began = time.perf_counter()
    measure_cache(stream, sizes=[(GIB << i) // BLOCK_BYTES for i in range(14)], evictions=list(Eviction))
    assert time.perf_counter() - began < 1


def test_more_blocks_than_can_be_told_apart_are_refused():
    three = Workload(
        arrival_seconds=np.zeros(3),
        prompt_tokens=np.full(3, 10**8, np.int32),
        output_tokens=np.ones(3, np.int32),
        content=SharedPrefix(tokens=np.ones(3, np.int32)),
    )
    with pytest.raises(UsageError, match="300,000,000 blocks of 1 token"):
        cut_blocks(three, block_size=1, whole_blocks=False)
