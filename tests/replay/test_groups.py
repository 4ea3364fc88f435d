"""Groups of layers over one pool against a plain replay, step by step; and recorded runs of vLLM."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.errors import UsageError
from kvledger.ledger import Account
from kvledger.pool import Kind, Policy
from kvledger.pool.groups import BlockGroups, GroupKind, LayerGroup
from kvledger.replay import Clock, Pool, Settings, SharedPrefix, Workload, replay
from kvledger.sources.files import load_trace

from .plain_groups import PlainGroups
from .plain_replay import Stalled
from .test_prefix import contents

ORDER = list(Account)
DATA = Path(__file__).parents[1] / "data" / "vllm-0.32.0"


def block_groups(groups, block_bytes):
    return BlockGroups(
        groups=tuple(
            LayerGroup(kind=GroupKind(kind), block_tokens=block, span_tokens=span, payload_bytes=payload)
            for kind, block, span, payload in groups
        ),
        block_bytes=block_bytes,
    )


@st.composite
def layer_groups(draw, caching):
    block = draw(st.sampled_from([1, 2, 4]))
    kinds = st.sampled_from(["full", "window", "chunk", "state"] if block < 4 else ["full", "window", "window"])
    groups = []
    for kind in draw(st.lists(kinds, min_size=1, max_size=3)):
        span = draw(st.integers(2, 14)) if kind == "window" else 0
        if kind == "chunk":
            span = block * draw(st.integers(1, 4)) if caching else draw(st.integers(1, 13))
        size, payload = block, block * draw(st.integers(1, 3))
        if kind == "state":
            size, payload = (block, draw(st.integers(1, 9))) if caching else (100, draw(st.integers(1, 9)))
        groups.append((kind, size, span, payload))
    if all(kind in ("full", "window") for kind, *_ in groups) and draw(st.booleans()):
        kind, size, span, payload = groups[-1]
        groups[-1] = (kind, size * 2, span, payload * 2)
    return groups, max(payload for *_, payload in groups) + draw(st.sampled_from([0, 3]))


@st.composite
def scenarios(draw):
    caching = draw(st.booleans())
    groups, block_bytes = draw(layer_groups(caching))
    count = draw(st.integers(1, 14))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 1.0, 9.0]), min_size=count, max_size=count))
    lengths = st.integers(1, draw(st.sampled_from([6, 24])))
    requests = [(float(a), draw(lengths), draw(lengths), 0) for a in np.cumsum(gaps)]
    streams = [(draw(st.integers(0, 1)), draw(st.integers(0, 24))) for _ in requests]
    kind = draw(st.sampled_from(["stream", "chain", "tokens"]))
    scheduler = {
        "max_model_len": draw(st.sampled_from([30, 60])),
        "max_num_seqs": draw(st.sampled_from([1, 3, 16])),
        "max_num_batched_tokens": draw(st.sampled_from([1, 7, 4096])),
    }
    units = draw(st.integers(2, 60)) * len(groups)
    whole, watermark = draw(st.booleans()), draw(st.sampled_from([0.0, 0.0, 0.2]))
    return (
        caching,
        groups,
        block_bytes,
        requests,
        contents(kind, requests, streams, 8),
        scheduler,
        units,
        whole,
        watermark,
    )


@settings(max_examples=200, deadline=None)
@given(scenarios(), st.sampled_from([0.0, 0.0, 5.0, 23.0]))
def test_every_step_equals_the_plain_block_tables_and_balances(scenario, every):
    caching, groups, block_bytes, requests, (content, known), scheduler, units, whole, watermark = scenario
    arrival, prompt, output, _ = (np.array(column) for column in zip(*requests, strict=True))
    workload = Workload(
        arrival_seconds=arrival.astype(np.float64),
        prompt_tokens=prompt.astype(np.int32),
        output_tokens=output.astype(np.int32),
        content=content,
    )
    plain = PlainGroups(
        requests, groups, known, block_bytes=block_bytes, caching=caching, units=units, whole=whole,
        watermark=int(watermark * units), max_len=scheduler["max_model_len"], max_seqs=scheduler["max_num_seqs"],
        budget=scheduler["max_num_batched_tokens"], clock=(1.0, 0.25, 0.5, 0.125), every=every, down=every,
    )  # fmt: skip
    policy = Policy(
        name="p", kind=Kind.PAGED, prefix_caching=caching, watermark_ratio=watermark, full_sequence_must_fit=whole,
        groups=block_groups(groups, block_bytes),
    )  # fmt: skip
    chunks = []
    chosen = Settings(
        **scheduler, clock=Clock(name="test", base=1.0, a=0.25, b=0.5, c=0.125), restart_every_seconds=every,
        restart_down_seconds=every,
    )  # fmt: skip
    pool = Pool(bytes_per_token=1, num_blocks=units)
    try:
        plain.run()
    except Stalled:
        with pytest.raises(UsageError, match="leaves `p` no time to compute"):
            replay(workload, policy, pool=pool, settings=chosen)
        return
    outcome = replay(workload, policy, pool=pool, settings=chosen, series=chunks.append)
    for name in ("running", "waiting", "preemptions", "used_blocks"):
        assert [v for c in chunks for v in getattr(c, name).tolist()] == [row[name] for row in plain.rows], name
    expected = []
    for row, cached in zip(plain.rows, plain.cached_rows, strict=True):
        parts = {"used": row["used"], "cached": cached, "internal": row["held"] - row["used"]}
        parts["free"] = units * block_bytes - sum(parts.values())
        expected.append([parts.get(str(account), 0) for account in ORDER])
    if chunks:
        assert np.concatenate([c.accounts for c in chunks]).tolist() == expected
        times = np.concatenate([c.time_seconds for c in chunks])
        assert times == pytest.approx([row["time"] - requests[0][0] for row in plain.rows])
    assert outcome.rejected == {k: v for k, v in plain.rejected.items() if v}
    assert (outcome.refused_while_free, outcome.restarts) == (plain.refused, plain.restarts)
    if caching:
        hits = outcome.prefix
        assert (hits.hit_tokens, hits.queried_tokens, hits.again_tokens) == (
            plain.hit_tokens, plain.queried_tokens, plain.again_tokens,
        )  # fmt: skip
    seconds = [row["seconds"] for row in plain.rows]
    capacity = units * block_bytes * (sum(seconds) or 1.0)
    for ratio, rows in ((outcome.shared_saving_ratio, plain.saved_rows), (outcome.stale_ratio, plain.stale_rows)):
        assert ratio == pytest.approx(sum(v * s for v, s in zip(rows, seconds, strict=True)) / capacity, abs=1e-9)


def steps_of(policy, workload, num_blocks, scheduler):
    chunks = []
    replay(
        workload,
        policy,
        pool=Pool(bytes_per_token=1, num_blocks=num_blocks),
        settings=Settings(**scheduler),
        series=chunks.append,
    )
    names = ("running", "waiting", "used_blocks", "preemptions")
    return {name: [v for chunk in chunks for v in getattr(chunk, name).tolist()] for name in names}


def scheduler_of(config):
    return {name: config[name] for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens")}


@pytest.mark.parametrize("run", ["hybrid-a", "hybrid-prefix-a"])
def test_every_step_of_a_golden_run_of_a_hybrid_model_is_equal(shared, run):
    folder = shared / "golden" / "vllm-0.32.0" / run
    config = json.loads((folder / "config.json").read_text())
    steps = list(csv.DictReader((folder / "steps.csv").read_text().splitlines()))
    block, page = config["block_size"], config["block_size"] * 512
    groups = [("window", block, 128, page), ("window", block, 128, page), ("full", block, 0, page)]
    policy = Policy(
        name="paged", kind=Kind.PAGED, prefix_caching=config["enable_prefix_caching"], groups=block_groups(groups, page)
    )
    ours = steps_of(
        policy, load_trace(str(folder / "requests.csv")).workload, config["usable_blocks"], scheduler_of(config)
    )
    assert ours == {name: [int(step[name]) for step in steps] for name in ours}


RUNS = json.loads((DATA / "hybrid-runs.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("run", RUNS, ids=[run["name"] for run in RUNS])
def test_every_step_of_a_recorded_run_of_a_hybrid_model_is_equal(run):
    prompts = np.array(run["requests"]["prompt_tokens"], np.int32)
    shared_prefix = np.array(run["requests"]["shared_prefix_tokens"], np.int32)
    workload = Workload(
        arrival_seconds=np.zeros(len(prompts)),
        prompt_tokens=prompts,
        output_tokens=np.array(run["requests"]["output_tokens"], np.int32),
        content=SharedPrefix(tokens=shared_prefix),
    )
    groups = [(g["kind"], g["block"], g["span"], g["block"] if g["kind"] != "state" else 1) for g in run["groups"]]
    policy = Policy(
        name="paged", kind=Kind.PAGED, prefix_caching=run["prefix_caching"],
        groups=block_groups(groups, max(payload for *_, payload in groups)),
    )  # fmt: skip
    assert steps_of(policy, workload, run["usable_blocks"], run["settings"]) == run["steps"]


def test_a_request_that_the_pool_cannot_be_sure_to_serve_is_rejected():
    """Blocks of 4: full attention of 21 stored tokens takes 6, a window of 5 at most ceil((4 + 8) / 4) + 1 = 4."""
    policy = Policy(
        name="paged", kind=Kind.PAGED, groups=block_groups([("window", 4, 5, 4), ("full", 4, 0, 4)], 4)
    )  # fmt: skip
    workload = Workload(
        arrival_seconds=np.zeros(2),
        prompt_tokens=np.array([20, 20], np.int32),
        output_tokens=np.array([1, 2], np.int32),
    )
    scheduler = Settings(max_model_len=64, max_num_batched_tokens=8)
    outcome = replay(workload, policy, pool=Pool(bytes_per_token=1, num_blocks=9), settings=scheduler)
    assert (outcome.finished, outcome.rejected) == (1, {"larger_than_pool": 1})
    outcome = replay(workload, policy, pool=Pool(bytes_per_token=1, num_blocks=10), settings=scheduler)
    assert outcome.finished == 2


def test_a_window_gives_its_blocks_back_and_a_full_table_does_not():
    """One request of 1 + 40 tokens, blocks of 4, window 5: at the last step 40 tokens are stored.

    The full table has 10 blocks. The window's step of token 39 needs tokens 35 to 39: blocks 8 and 9, of which token 32
    to 34 are stale. Used: 40 + 5 slots of 2 bytes; held: 12 blocks of 8 bytes.
    """
    policy = Policy(
        name="paged", kind=Kind.PAGED, groups=block_groups([("window", 4, 5, 8), ("full", 4, 0, 8)], 8)
    )  # fmt: skip
    workload = Workload(
        arrival_seconds=np.zeros(1), prompt_tokens=np.array([1], np.int32), output_tokens=np.array([40], np.int32)
    )
    chunks = []
    replay(
        workload, policy, pool=Pool(bytes_per_token=1, num_blocks=20), settings=Settings(max_model_len=64),
        series=chunks.append,
    )  # fmt: skip
    last = dict(zip(ORDER, chunks[-1].accounts[-1].tolist(), strict=True))
    assert chunks[-1].used_blocks[-1] == 12
    assert (last[Account.USED], last[Account.INTERNAL], last[Account.FREE]) == (90, 6, 64)


def test_a_prefix_cache_over_chunks_beside_other_blocks_is_refused():
    groups = block_groups([("chunk", 4, 8, 4), ("full", 8, 0, 8)], 8)
    policy = Policy(name="paged", kind=Kind.PAGED, prefix_caching=True, groups=groups)
    workload = Workload(
        arrival_seconds=np.zeros(1), prompt_tokens=np.array([9], np.int32), output_tokens=np.array([1], np.int32)
    )
    with pytest.raises(UsageError, match="a prefix cache over a chunk needs blocks of one size in all groups"):
        replay(workload, policy, pool=Pool(bytes_per_token=1, num_blocks=99), settings=Settings(max_model_len=100))


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"kind": GroupKind.WINDOW, "block_tokens": 4, "payload_bytes": 4, "span_tokens": 1}, "a window of 1 token "),
        ({"kind": GroupKind.FULL, "block_tokens": 0, "payload_bytes": 0}, "a block of 0 tokens"),
        ({"kind": GroupKind.FULL, "block_tokens": 4, "payload_bytes": 5}, "5 bytes are no whole number"),
        ({"kind": GroupKind.STATE, "block_tokens": 4, "payload_bytes": -1}, "a block of -1 bytes"),
    ],
)
def test_a_group_that_cannot_be_is_refused(group, message):
    with pytest.raises(UsageError, match=message):
        LayerGroup(**group)


def test_a_block_that_does_not_hold_the_widest_group_is_refused():
    with pytest.raises(UsageError, match="a block of 7 bytes does not hold the 8 bytes of a group"):
        block_groups([("full", 4, 0, 8)], 7)
    with pytest.raises(UsageError, match="0 groups of layers"):
        BlockGroups(groups=(), block_bytes=1)


def test_other_policies_keep_every_token_of_every_layer():
    groups = block_groups([("window", 4, 5, 8), ("full", 4, 0, 8)], 8)
    assert groups.token_bytes == 4
    policy = Policy(name="max", kind=Kind.CONTIGUOUS, groups=groups)
    size = Pool(bytes_per_token=groups.token_bytes, memory_bytes=4000).divide(policy)
    assert (size.units, size.unit_bytes) == (1000, 4)
