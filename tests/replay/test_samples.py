"""Samples as requests of their own: against recorded runs of vLLM, a plain prefix cache, and counting by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.errors import TraceError, UsageError
from kvledger.pool import Kind, Policy, Preemption, Sampling, parse_policies, parse_policy
from kvledger.replay import Beams, Pool, Settings, SharedPrefix, Workload, replay
from kvledger.replay.samples import split_samples, with_beams, with_samples

from .by_hand import workload
from .plain_prefix import PlainPrefix
from .test_groups import block_groups
from .test_prefix import scenarios

DATA = Path(__file__).parents[1] / "data" / "vllm-0.32.0"
RUNS = json.loads((DATA / "sample-runs.json").read_text(encoding="utf-8"))
SMALL = Pool(bytes_per_token=1, capacity_tokens=64)


@pytest.mark.parametrize("run", RUNS, ids=[run["name"] for run in RUNS])
def test_every_step_of_a_recorded_vllm_run_with_several_samples_is_equal(run):
    """vLLM 0.32 driven with n = 1 to 6: its scheduler sees each sample as a request of its own."""
    columns = {name: np.array(values, np.int32) for name, values in run["requests"].items()}
    shared = columns.pop("shared_prefix_tokens")
    requests = Workload(arrival_seconds=np.zeros(len(shared)), content=SharedPrefix(tokens=shared), **columns)
    block = run["block_size"]
    policy = Policy(
        name="paged", kind=Kind.PAGED, block_size=block, prefix_caching=run["prefix_caching"],
        sampling=Sampling.REQUESTS,
    )  # fmt: skip
    if run["sliding_window"]:
        page = block * 512
        window = ("window", block, run["sliding_window"], page)
        policy = replace(policy, groups=block_groups([window, window, ("full", block, 0, page)], page))
    chunks = []
    replay(
        requests, policy, pool=Pool(bytes_per_token=1, num_blocks=run["usable_blocks"], block_size=block),
        settings=Settings(**run["settings"]), series=chunks.append,
    )  # fmt: skip
    for name, expected in run["steps"].items():
        assert [v for c in chunks for v in getattr(c, name).tolist()] == expected, name


@settings(max_examples=80, deadline=None)
@given(scenarios(), st.lists(st.integers(1, 4), min_size=25, max_size=25))
def test_siblings_find_the_whole_prompt_and_only_the_first_the_recorded_answer(scenario, samples):
    requests, (content, known), block, units, scheduler, whole, watermark = scenario
    arrival, prompt, output, _ = (np.array(column) for column in zip(*requests, strict=True))
    samples = np.array(samples[: len(requests)], np.int32)
    parents = np.repeat(np.arange(len(requests)), samples)
    children, theirs = [], []
    for child, parent in enumerate(parents.tolist()):
        whole_prompt = [*known[parent], *(("p", parent, i) for i in range(len(known[parent]), int(prompt[parent])))]
        is_first = child == 0 or parents[child - 1] != parent
        children.append(requests[parent])
        theirs.append(whole_prompt if is_first else whole_prompt[: int(prompt[parent])])
    plain = PlainPrefix(
        children, theirs, units=units, block=block, whole=whole, watermark=int(watermark * units),
        max_len=scheduler["max_model_len"], max_seqs=scheduler["max_num_seqs"],
        budget=scheduler["max_num_batched_tokens"],
    ).run()  # fmt: skip
    chunks = []
    outcome = replay(
        Workload(
            arrival_seconds=arrival.astype(np.float64), prompt_tokens=prompt.astype(np.int32),
            output_tokens=output.astype(np.int32), content=content, samples=samples,
        ),
        Policy(name="p", kind=Kind.PAGED, block_size=block, prefix_caching=True, watermark_ratio=watermark,
               full_sequence_must_fit=whole),
        pool=Pool(bytes_per_token=3, num_blocks=units, block_size=block),
        settings=Settings(**scheduler),
        series=chunks.append,
    )  # fmt: skip
    for name in ("running", "waiting", "preemptions", "used_blocks"):
        assert [v for c in chunks for v in getattr(c, name).tolist()] == [row[name] for row in plain.rows], name
    assert (outcome.prefix.hit_tokens, outcome.prefix.again_tokens) == (plain.hit_tokens, plain.again_tokens)
    ended = {}
    for r in plain.ended:
        ended.setdefault(int(parents[r.index]), []).append(r)
    served = {parent: rs for parent, rs in ended.items() if len(rs) == samples[parent]}
    assert outcome.finished == len(served)
    assert outcome.finished + sum(outcome.rejected.values()) == outcome.requests == len(requests)
    assert outcome.output_tokens == sum(r.o for rs in served.values() for r in rs)
    assert outcome.prompt_tokens == sum(rs[0].p for rs in served.values())
    assert outcome.truncated == sum(rs[0].o < output[parent] for parent, rs in served.items())
    for row, (name, pick) in enumerate((("queued", min), ("first", min), ("end", max))):
        expected = {parent: pick(r.moments[name] for r in rs) for parent, rs in served.items()}
        assert {i: t for i, t in enumerate(outcome.latencies[row].tolist()) if t == t} == expected
    assert outcome.end_to_end is None or outcome.end_to_end.mean == pytest.approx(
        np.mean([outcome.latencies[2][parent] - arrival[parent] for parent in served])
    )


@pytest.mark.parametrize("policy", [p.name for p in parse_policies("all") if p.name not in ("paged", "vmm")])
def test_other_policies_give_every_sample_memory_of_its_own(policy):
    """Two requests of 4 + 4 with 3 samples each, as six requests of one."""
    one = replay(workload(*[(0, 4, 4)] * 6), parse_policy(policy), pool=SMALL, settings=Settings(max_model_len=10))
    several = replay(
        with_samples(workload((0, 4, 4), (0, 4, 4)), 3), parse_policy(policy), pool=SMALL,
        settings=Settings(max_model_len=10),
    )  # fmt: skip
    assert several.mean_ratio == one.mean_ratio
    assert several.steps == one.steps
    assert (several.requests, several.sequences, several.finished) == (2, 6, 2)
    assert (several.prompt_tokens, several.output_tokens) == (8, 24)
    assert several.sharing.samples_as is Sampling.REQUESTS
    assert several.sharing.block_saving_ratio is None


def test_requests_are_rejected_whole_and_by_the_same_reasons_as_one_sample():
    traffic = workload((0, 12, 2), (0, 9, 2), (0, 2, 9), (0, 2, 2))
    for policy in ("max", "paged", "grow"):
        chosen = parse_policy(policy, base=Policy(name="", kind=Kind.PAGED, sampling=Sampling.REQUESTS, block_size=2))
        pool, scheduler = Pool(bytes_per_token=1, capacity_tokens=10), Settings(max_model_len=10)
        one = replay(traffic, chosen, pool=pool, settings=scheduler)
        two = replay(with_samples(traffic, 2), chosen, pool=pool, settings=scheduler)
        assert two.rejected == one.rejected
        assert (two.finished, two.truncated) == (one.finished, one.truncated)


def test_more_samples_than_seats_are_rejected_where_samples_run_together():
    outcome = replay(
        with_samples(workload((0, 2, 2), (0, 2, 2)), 5), parse_policy("paged@2"), pool=SMALL,
        settings=Settings(max_model_len=10, max_num_seqs=4),
    )  # fmt: skip
    assert outcome.rejected == {"too_many_samples": 2}


def test_a_beam_search_beside_a_prefix_cache_is_refused_with_the_reason():
    policy = Policy(name="paged", kind=Kind.PAGED, prefix_caching=True)
    with pytest.raises(UsageError, match="vLLM V1 sends each candidate as a request of one token"):
        replay(with_beams(workload((0, 2, 2)), 2), policy, pool=SMALL, settings=Settings(max_model_len=10))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling": Sampling.FORKS}, "samples as forks beside a radix tree"),
        ({"preemption": Preemption.SWAP, "swap_bytes": 100}, "swapping beside a radix tree"),
    ],
)
def test_what_no_engine_does_beside_a_radix_tree_is_refused(changes, message):
    policy = replace(parse_policy("paged:radix"), **changes)
    with pytest.raises(UsageError, match=message):
        replay(with_samples(workload((0, 2, 2)), 2), policy, pool=SMALL, settings=Settings(max_model_len=10))


def test_numbers_of_samples_that_cannot_be_are_refused():
    requests = workload((0, 2, 2), (0, 3, 2))
    with pytest.raises(UsageError, match="0 samples are not from 1 to 1024"):
        with_samples(requests, 0)
    with pytest.raises(UsageError, match="1,025 samples are not from 1 to 1024"):
        with_beams(requests, 1025)
    with pytest.raises(UsageError, match="turnover of beams is 2"):
        with_beams(requests, 2, turnover_ratio=2)
    with pytest.raises(TraceError, match="a request has 5,000 samples, more than 1024"):
        replace(requests, samples=np.array([1, 5000], np.int32)).check()
    with pytest.raises(TraceError, match="`samples` has the value 0"):
        replace(requests, samples=np.array([1, 0], np.int32)).check()
    with pytest.raises(TraceError, match="beams are told for 1 request, but 2 requests have a number"):
        replace(requests, samples=np.ones(2, np.int32), beams=Beams(mask=np.ones(1, np.bool_))).check()


def test_samples_arrive_with_their_siblings_in_order():
    split = split_samples(replace(workload((0, 2, 2), (1, 3, 4)), samples=np.array([2, 3], np.int32)))
    assert split.firsts.tolist() == [0, 2]
    assert split.workload.arrival_seconds.tolist() == [0, 0, 1, 1, 1]
    assert split.workload.prompt_tokens.tolist() == [2, 2, 3, 3, 3]
