"""Contiguous reservation in the engine has, step by step, the ledger that the replay has of the same policy."""

import numpy as np
import pytest

from kvledger.errors import CapacityError, ModelError, UsageError
from kvledger.ledger import Account
from kvledger.pool.policy import parse_policy
from kvledger.replay import Pool, Settings, replay
from kvledger.runtime.options import Options, Reservation
from kvledger.runtime.scheduler import Scheduler

from .driving import draw_requests, make_groups, run_scheduler, workload_of

LONGEST = 130
NAMES = {Reservation.MAX: "max@best", Reservation.POW2: "pow2@best", Reservation.DECLARED: "exact@best"}


def replayed(asked, policy, *, tokens, options):
    rows = []

    def take(series):
        columns = [series.running, series.waiting, series.preemptions]
        columns += [series.accounts[:, i] for i in range(len(Account))]
        rows.extend(zip(*(column.tolist() for column in columns), strict=True))

    replay(
        workload_of(asked),
        parse_policy(policy),
        pool=Pool(bytes_per_token=8, capacity_tokens=tokens),
        settings=Settings(
            max_model_len=LONGEST,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
        ),
        series=take,
    )
    return rows


@pytest.mark.parametrize("reservation", NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_every_step_has_the_ledger_of_the_replay(reservation, seed):
    random = np.random.default_rng(seed)
    options = Options(
        reservation=reservation,
        prefix_caching=False,
        max_num_seqs=int(random.choice([3, 16])),
        max_num_batched_tokens=int(random.choice([7, 64, 4096])),
    )
    tokens = int(LONGEST * random.choice([1, 2.4, 7]))
    asked = draw_requests(20, seed=seed)
    scheduler = Scheduler(make_groups(0, block=1), options, blocks=tokens, max_model_len=LONGEST)

    ours = list(run_scheduler(scheduler, asked))

    assert ours == replayed(asked, NAMES[reservation], tokens=tokens, options=options)
    assert scheduler.tables.free_blocks == tokens


def test_a_pool_that_holds_no_reservation_is_refused():
    options = Options(reservation=Reservation.MAX, prefix_caching=False)
    with pytest.raises(CapacityError, match=f"one request may reserve {LONGEST}"):
        Scheduler(make_groups(0, block=1), options, blocks=LONGEST - 1, max_model_len=LONGEST)


def test_an_extent_has_the_grain_of_a_token():
    options = Options(reservation=Reservation.MAX, prefix_caching=False)
    with pytest.raises(UsageError, match="block_size is 4"):
        Scheduler(make_groups(0, block=4), options, blocks=LONGEST, max_model_len=LONGEST)


def test_layers_with_windows_do_not_share_an_extent():
    options = Options(reservation=Reservation.MAX, prefix_caching=False)
    with pytest.raises(ModelError, match="sliding window"):
        Scheduler(make_groups(0, 8, block=1), options, blocks=4 * LONGEST, max_model_len=LONGEST)


def test_extents_have_no_prefix_cache():
    with pytest.raises(UsageError, match="prefix cache"):
        Options(reservation=Reservation.MAX)
