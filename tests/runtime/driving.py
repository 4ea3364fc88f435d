"""A scheduler driven without a model, and the replay of the same requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvledger.ledger import Account
from kvledger.pool.groups import BlockGroups, GroupKind, LayerGroup
from kvledger.pool.policy import Kind, Policy
from kvledger.replay import Pool, Settings, TokenIds, Workload, replay
from kvledger.runtime.audit import audit
from kvledger.runtime.options import Generation
from kvledger.runtime.scheduler import Scheduler
from kvledger.runtime.sequence import RequestId, Sequence

FULL, WINDOW = GroupKind.FULL, GroupKind.WINDOW


@dataclass(frozen=True)
class Asked:
    """A request whose answer is known beforehand."""

    arrival: float
    prompt: list[int]
    answer: list[int]


def make_groups(*windows, block=4, token_bytes=8):
    """Return one group a window (0: all tokens), in blocks that fit them exactly."""
    return BlockGroups(
        groups=tuple(
            LayerGroup(
                kind=WINDOW if window else FULL,
                block_tokens=block,
                payload_bytes=block * token_bytes,
                span_tokens=window,
            )
            for window in windows
        ),
        block_bytes=block * token_bytes,
    )


def smallest_pool(groups, options, max_model_len):
    """Return the fewest blocks that serve one request of the longest length."""
    blocks = 1
    while (
        groups.most_tokens(blocks, in_flight_tokens=options.max_num_batched_tokens, max_model_len=max_model_len)
        < max_model_len - 1
    ):
        blocks += 1
    return blocks


def draw_requests(count, *, seed, longest=60, vocabulary=3):
    """Return requests in bursts, half of which begin as an earlier one did, its answer included."""
    random = np.random.default_rng(seed)
    arrival, asked = 0.0, []
    for _ in range(count):
        arrival += float(random.choice([0, 0, 1, 3, 20]))
        prompt = random.integers(0, vocabulary, random.integers(1, longest)).tolist()
        if asked and random.random() < 0.5:
            earlier = asked[random.integers(len(asked))]
            known = earlier.prompt + earlier.answer
            prompt = (known[: random.integers(1, len(known) + 1)] + prompt)[:longest]
        answer = random.integers(0, vocabulary, random.integers(1, longest)).tolist()
        asked.append(Asked(arrival, prompt, answer))
    return asked


def run_scheduler(scheduler: Scheduler, asked: list[Asked]):
    """Serve requests, one second a step; yield the row of every step (see `replay_rows`)."""
    now, waiting = 0.0, list(enumerate(asked))
    while waiting or not scheduler.is_idle:
        if scheduler.is_idle:
            now = max(now, waiting[0][1].arrival)
        while waiting and waiting[0][1].arrival <= now:
            number, request = waiting.pop(0)
            most = len(request.prompt) + len(request.answer)
            scheduler.add(
                Sequence(
                    request=RequestId(number),
                    tokens=list(request.prompt),
                    prompt_tokens=len(request.prompt),
                    most_tokens=most,
                )
            )
        schedule = scheduler.schedule()
        assert schedule.tokens > 0
        accounts = tuple(schedule.ledger.accounts().values())
        yield (len(scheduler.running), len(scheduler.waiting), scheduler.tally.preemptions, *accounts)
        audit(scheduler)
        now += 1
        for sequence in list(scheduler.running):
            if sequence.computed == len(sequence.tokens):
                answer = asked[sequence.request].answer
                sequence.tokens.append(answer[sequence.generated])
                if sequence.generated == len(answer):
                    scheduler.end(sequence)
        audit(scheduler)


def run_engine(engine, prompts, lengths, arrivals):
    """Serve prompts that arrive at these steps; return the row of every step (see `replay_rows`) and what was asked."""
    numbers, rows, now = [], [], 0
    while len(numbers) < len(prompts) or not engine.is_idle:
        if engine.is_idle:
            now = max(now, arrivals[len(numbers)])
        while len(numbers) < len(prompts) and arrivals[len(numbers)] <= now:
            at = len(numbers)
            numbers.append(engine.submit(prompts[at], Generation(max_tokens=lengths[at], ignore_eos=True)))
        step = engine.step()
        rows.append((step.running, step.waiting, engine.tally.preemptions, *step.ledger.accounts().values()))
        engine.check()
        assert step.ledger.capacity == engine.pages.nbytes
        now += 1
    answers = [list(engine.take(number).token_ids) for number in numbers]
    asked = [Asked(float(at), prompt, answer) for at, prompt, answer in zip(arrivals, prompts, answers, strict=True)]
    return rows, asked


def workload_of(asked: list[Asked]) -> Workload:
    """Return requests as a trace that knows every token."""
    known = [request.prompt + request.answer for request in asked]
    return Workload(
        arrival_seconds=np.array([request.arrival for request in asked]),
        prompt_tokens=np.array([len(request.prompt) for request in asked], np.int32),
        output_tokens=np.array([len(request.answer) for request in asked], np.int32),
        content=TokenIds(
            offsets=np.cumsum([0, *map(len, known)]).astype(np.int64),
            ids=np.concatenate([np.array(tokens, np.int32) for tokens in known]),
        ),
    ).check()


def replay_rows(asked, groups, options, *, blocks, max_model_len):
    """Return of every step of a replay: running, waiting, preemptions so far, and the accounts; and its outcome."""
    rows = []

    def take(series):
        columns = [series.running, series.waiting, series.preemptions]
        columns += [series.accounts[:, i] for i in range(len(Account))]
        rows.extend(zip(*(column.tolist() for column in columns), strict=True))

    outcome = replay(
        workload_of(asked),
        Policy(
            name="paged",
            kind=Kind.PAGED,
            groups=groups,
            block_size=groups.groups[0].block_tokens,
            prefix_caching=options.prefix_caching,
            watermark_ratio=options.watermark_ratio,
            full_sequence_must_fit=options.full_sequence_must_fit,
        ),
        pool=Pool(bytes_per_token=groups.token_bytes, num_blocks=blocks),
        settings=Settings(
            max_model_len=max_model_len,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
        ),
        series=take,
    )
    return rows, outcome
