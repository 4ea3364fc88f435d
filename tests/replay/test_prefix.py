"""Block tables with a prefix cache against a plain one, step by step; and recorded runs of vLLM."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.errors import UsageError
from kvledger.ledger import Account
from kvledger.pool import Eviction, Kind, Policy
from kvledger.replay import (
    HashIds,
    HashKind,
    Pool,
    Settings,
    SharedPrefix,
    TokenIds,
    Workload,
    parse_clock,
    replay,
    replay_plainly,
)
from kvledger.sources.files import load_trace

from .by_hand import assert_equal
from .plain_prefix import PlainPrefix
from .plain_replay import Stalled
from .random_traffic import traffic

ORDER = list(Account)


def ragged(rows, dtype):
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    flat = np.array([value for row in rows for value in row], dtype)
    return offsets, flat


def contents(kind, requests, streams, grain):
    """Return the content columns of a workload, and the same content token by token for the plain replay."""
    known, rows = [], []
    for (_, prompt, output, _), (stream, shared) in zip(requests, streams, strict=True):
        shared = min(shared, prompt)
        tokens = [("s", stream, i) for i in range(shared)] + [("u", len(known), i) for i in range(prompt - shared)]
        if kind == "stream":
            known.append([("s", 0, i) for i in range(shared)])
        elif kind == "tokens":
            tokens += [("o", len(known), i) for i in range(output)]
            known.append(tokens)
            rows.append([hash(token) % (2**31) for token in tokens])
        else:
            pieces = [
                tuple(tokens[: i + grain] if kind == "chain" else tokens[i : i + grain])
                for i in range(0, prompt, grain)
            ]
            # An id tells only whether the whole piece is the same, the cut last one included.
            known.append([(pieces[i // grain], i % grain) for i in range(prompt)])
            rows.append([hash(piece) % (2**60) for piece in pieces])
    if kind == "stream":
        return SharedPrefix(tokens=np.array([len(k) for k in known], np.int32)), known
    if kind == "tokens":
        offsets, ids = ragged(rows, np.int32)
        return TokenIds(offsets=offsets, ids=ids), known
    offsets, ids = ragged(rows, np.int64)
    lengths = None
    if kind == "pieces":
        sizes = [min(grain, prompt - i) for _, prompt, _, _ in requests for i in range(0, prompt, grain)]
        lengths = np.array(sizes, np.int32)
    how = HashKind.CHAIN if kind == "chain" else HashKind.CONTENT
    return HashIds(offsets=offsets, ids=ids, block_tokens=grain, kind=how, lengths=lengths), known


@st.composite
def scenarios(draw):
    count = draw(st.integers(1, 25))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 1.0, 9.0]), min_size=count, max_size=count))
    lengths = st.integers(1, draw(st.sampled_from([6, 40])))
    requests = [(float(a), draw(lengths), draw(lengths), 0) for a in np.cumsum(gaps)]
    streams = [(draw(st.integers(0, 1)), draw(st.integers(0, 40))) for _ in requests]
    block = draw(st.sampled_from([1, 2, 4]))
    kind = draw(st.sampled_from(["stream", "chain", "content", "tokens", "pieces"]))
    grain = draw(st.sampled_from([4, 8])) if kind != "pieces" else draw(st.sampled_from([3, 5]))
    scheduler = {
        "max_model_len": draw(st.sampled_from([50, 100])),
        "max_num_seqs": draw(st.sampled_from([1, 3, 16])),
        "max_num_batched_tokens": draw(st.sampled_from([1, 7, 4096])),
    }
    units = draw(st.integers(-(-80 // block), 200 // block))
    return (
        requests,
        contents(kind, requests, streams, grain),
        block,
        units,
        scheduler,
        draw(st.booleans()),
        draw(st.sampled_from([0.0, 0.0, 0.2])),
    )


@settings(max_examples=200, deadline=None)
@given(scenarios(), st.sampled_from([0.0, 0.0, 5.0, 23.0]), st.sampled_from(list(Eviction)))
def test_every_step_equals_the_plain_prefix_cache_and_balances(scenario, every, eviction):
    requests, (content, known), block, units, scheduler, whole, watermark = scenario
    arrival, prompt, output, _ = (np.array(column) for column in zip(*requests, strict=True))
    workload = Workload(
        arrival_seconds=arrival.astype(np.float64),
        prompt_tokens=prompt.astype(np.int32),
        output_tokens=output.astype(np.int32),
        content=content,
    )
    policy = Policy(
        name="p", kind=Kind.PAGED, block_size=block, prefix_caching=True, watermark_ratio=watermark,
        full_sequence_must_fit=whole, eviction=eviction,
    )  # fmt: skip
    chunks = []
    pool = Pool(bytes_per_token=3, num_blocks=units, block_size=block)
    chosen = Settings(**scheduler, restart_every_seconds=every, restart_down_seconds=every)
    plain = PlainPrefix(
        requests, known, units=units, block=block, whole=whole, watermark=int(watermark * units),
        max_len=scheduler["max_model_len"], max_seqs=scheduler["max_num_seqs"],
        budget=scheduler["max_num_batched_tokens"], every=every, down=every, eviction=str(eviction),
    )  # fmt: skip
    try:
        plain.run()
    except Stalled:
        with pytest.raises(UsageError, match="leaves `p` no time to compute"):
            replay(workload, policy, pool=pool, settings=chosen)
        return
    outcome = replay(workload, policy, pool=pool, settings=chosen, series=chunks.append)
    expected = []
    for row, cached in zip(plain.rows, plain.cached_rows, strict=True):
        parts = {"used": row["used"], "cached": cached, "internal": row["held"] - row["used"]}
        parts["free"] = units * block - sum(parts.values())
        expected.append([3 * parts.get(str(account), 0) for account in ORDER])
    if chunks:
        assert np.concatenate([c.accounts for c in chunks]).tolist() == expected
    for name in ("running", "waiting", "preemptions", "used_blocks"):
        assert [v for c in chunks for v in getattr(c, name).tolist()] == [row[name] for row in plain.rows], name
    assert outcome.rejected == {k: v for k, v in plain.rejected.items() if v}
    assert (outcome.refused_while_free, outcome.restarts) == (plain.refused, plain.restarts)
    hits = outcome.prefix
    assert (hits.hit_tokens, hits.queried_tokens, hits.again_tokens) == (
        plain.hit_tokens, plain.queried_tokens, plain.again_tokens,
    )  # fmt: skip
    seconds = sum(row["seconds"] for row in plain.rows) or 1.0
    saved = sum(s * row["seconds"] for s, row in zip(plain.saved_rows, plain.rows, strict=True)) / seconds
    assert outcome.shared_saving_ratio == pytest.approx(saved / (units * block), abs=1e-9)


@pytest.mark.parametrize(("block", "grain", "every"), [(4, 64, 0.0), (16, 16, 0.0), (1, 48, 9.0), (32, 8, 0.0)])
def test_runs_that_share_their_fate_answer_as_their_blocks_do_one_by_one(block, grain, every):
    """Prompts of eighty streams: many end within an id, find it cut or evicted in part, or are preempted."""
    requests = traffic(2500, seed=grain)
    random = np.random.default_rng(block)
    streams = random.integers(0, 80, len(requests))
    counts = -(-requests.prompt_tokens.astype(np.int64) // grain)
    rows = [stream * 1000 + np.arange(count) for stream, count in zip(streams, counts, strict=True)]
    content = HashIds(
        offsets=np.concatenate([[0], np.cumsum(counts)]), ids=np.concatenate(rows), block_tokens=grain,
        kind=HashKind.CHAIN,
    )  # fmt: skip
    arguments = (replace(requests, content=content), Policy(name="p", kind=Kind.PAGED, block_size=block,
                                                            prefix_caching=True))  # fmt: skip
    pool = Pool(bytes_per_token=3, capacity_tokens=2400)
    chosen = Settings(max_model_len=900, max_num_seqs=128, max_num_batched_tokens=500, restart_every_seconds=every,
                      clock=parse_clock("0.01,2e-5,1e-4,1e-8"))  # fmt: skip
    by_runs = replay(*arguments, pool=pool, settings=chosen)
    one_by_one = replay_plainly(*arguments, pool=pool, settings=chosen)
    assert_equal(by_runs, one_by_one)
    assert by_runs.prefix == one_by_one.prefix
    assert by_runs.preemptions > 50
    assert 0.05 < by_runs.prefix.hit_ratio < 0.9


@pytest.mark.parametrize("run", ["prefix-a", "prefix-b"])
def test_every_step_of_a_recorded_vllm_run_with_a_prefix_cache_is_equal(shared, run):
    folder = shared / "golden" / "vllm-0.32.0" / run
    config = json.loads((folder / "config.json").read_text())
    steps = list(csv.DictReader((folder / "steps.csv").read_text().splitlines()))
    chunks = []
    replay(
        load_trace(str(folder / "requests.csv")).workload,
        Policy(name="paged", kind=Kind.PAGED, block_size=config["block_size"], prefix_caching=True),
        pool=Pool(bytes_per_token=1, num_blocks=config["usable_blocks"], block_size=config["block_size"]),
        settings=Settings(**{n: config[n] for n in ("max_model_len", "max_num_seqs", "max_num_batched_tokens")}),
        series=chunks.append,
    )
    for name in ("running", "waiting", "used_blocks", "preemptions"):
        ours = np.concatenate([getattr(chunk, name) for chunk in chunks])
        assert ours.tolist() == [int(step[name]) for step in steps], name


def test_blocks_that_do_not_fit_the_ids_of_the_trace_are_refused():
    workload = Workload(
        arrival_seconds=np.zeros(1),
        prompt_tokens=np.array([600], np.int32),
        output_tokens=np.array([1], np.int32),
        content=HashIds(offsets=np.array([0, 2]), ids=np.array([1, 2]), block_tokens=512, kind=HashKind.CHAIN),
    )
    policy = Policy(name="paged", kind=Kind.PAGED, block_size=48, prefix_caching=True)
    with pytest.raises(UsageError, match="blocks of 512 tokens, which --block-size 48 does not fit"):
        replay(workload, policy, pool=Pool(bytes_per_token=1, num_blocks=99), settings=Settings(max_model_len=1000))


def test_an_endless_cache_serves_what_an_endless_cache_can(shared):
    """37.4 % of the prompt tokens of the Mooncake conversation trace (full blocks of 512 only: a little less)."""
    workload = load_trace(str(shared / "traces/mooncake/conversation_trace.jsonl.gz")).workload
    outcome = replay(
        workload,
        Policy(name="paged", kind=Kind.PAGED, block_size=512, prefix_caching=True),
        pool=Pool(bytes_per_token=1, num_blocks=400_000, block_size=512),
        settings=Settings(max_model_len=2**20, max_num_seqs=256, clock=parse_clock("1e-6,0,0,0")),
    )
    assert outcome.prefix.hit_ratio == pytest.approx(0.374, abs=0.003)
