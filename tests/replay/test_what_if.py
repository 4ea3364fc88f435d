"""Which change is called the best trade, and what is said of its price."""

from dataclasses import replace

import pytest

from kvledger.ledger import Account
from kvledger.pool import parse_policy
from kvledger.replay import Pool, Settings, parse_clock, replay
from kvledger.replay.outcome import PrefixHits
from kvledger.replay.what_if import Scenario, WhatIf, losses, weigh

from .by_hand import workload

TRAFFIC = workload(*[(0.1 * i, 40, 20) for i in range(30)])
BASE = Scenario(
    policy=parse_policy("paged@4"),
    pool=Pool(bytes_per_token=1, capacity_tokens=200),
    settings=Settings(max_model_len=80, clock=parse_clock("0.1,0,0,0")),
)


def run(scenario):
    return replay(TRAFFIC, scenario.policy, pool=scenario.pool, settings=scenario.settings)


BEFORE = run(BASE)


def changed(name, *, price="", **parts):
    scenario = replace(BASE, **parts)
    return WhatIf(change=name, scenario=scenario, outcome=run(scenario), price=price)


MORE = changed("memory=400B", pool=Pool(bytes_per_token=1, capacity_tokens=400), price="it takes 200 B more memory")
SHORT = changed("max-model-len=41", settings=replace(BASE.settings, max_model_len=41))
FEWER = PrefixHits(hit_tokens=1, queried_tokens=10, again_tokens=0)
SAME = changed("max-num-seqs=99", settings=replace(BASE.settings, max_num_seqs=99))


def test_the_fastest_change_that_serves_as_many_is_the_best_with_its_gain_and_its_price():
    verdict = weigh(BEFORE, [SAME, MORE])
    assert verdict.best == "memory=400B"
    before, now = BEFORE.end_to_end.mean, MORE.outcome.end_to_end.mean
    assert f"takes {now:.2f} s from arrival to end on average instead of {before:.2f} s" in verdict.sentence
    assert f"({100 * (now / before - 1):+.0f} %)" in verdict.sentence
    assert verdict.sentence.endswith("it takes 200 B more memory.")


def test_a_change_that_cuts_answers_is_never_the_best_but_named_when_it_is_faster():
    assert SHORT.outcome.truncated == 30
    verdict = weigh(BEFORE, [SHORT, SAME])
    assert verdict.best is None
    assert verdict.sentence.startswith("No change serves more requests, or any 1 % faster.")
    now = f"{SHORT.outcome.end_to_end.mean:.2f}"
    said = f"`max-model-len=41` would take {now} s, at the price of 30 answers cut instead of 0."
    assert said in verdict.sentence


def test_answers_that_are_cut_are_a_price_even_when_another_change_is_faster():
    quick = replace(MORE.outcome, end_to_end=replace(BEFORE.end_to_end, mean=SHORT.outcome.end_to_end.mean / 2))
    verdict = weigh(BEFORE, [SHORT, replace(MORE, outcome=quick)])
    assert verdict.best == "memory=400B"
    assert verdict.sentence.endswith("`max-model-len=41` costs 30 answers cut instead of 0.")


def test_one_of_a_kind_is_not_called_several():
    one = replace(BEFORE, truncated=1, rejected={"prompt_too_long": 1})
    assert losses(BEFORE, one) == ["1 request rejected instead of 0", "1 answer cut instead of 0"]


def test_a_prefix_cache_that_nothing_is_found_in_is_no_trade_however_fast():
    idle = PrefixHits(hit_tokens=0, queried_tokens=1200, again_tokens=400)
    after = replace(BEFORE, prefix=idle, end_to_end=replace(BEFORE.end_to_end, mean=0.5))
    caching = WhatIf(change="prefix-caching=on", scenario=BASE, outcome=after)
    unknown = weigh(BEFORE, [caching], content_known=False)
    assert unknown.best is None
    assert "`prefix-caching=on` is no trade here: the trace does not tell what its requests share" in unknown.sentence
    assert "0.50 s from arrival to end come from requests that find their own blocks" in unknown.sentence
    assert "no request finds what another has computed" in weigh(BEFORE, [caching]).sentence
    assert weigh(BEFORE, [caching, MORE]).best == "memory=400B"


def test_a_prefix_cache_with_hits_is_a_trade():
    after = replace(BEFORE, prefix=FEWER, end_to_end=replace(BEFORE.end_to_end, mean=0.5))
    verdict = weigh(BEFORE, [WhatIf(change="prefix-caching=on", scenario=BASE, outcome=after)])
    assert verdict.best == "prefix-caching=on"
    assert "no trade" not in verdict.sentence


def test_serving_requests_that_were_turned_away_counts_more_than_speed():
    poor = run(replace(BASE, pool=Pool(bytes_per_token=1, capacity_tokens=20)))
    assert poor.finished == 0
    verdict = weigh(poor, [MORE])
    assert verdict.best == "memory=400B"
    assert "it serves 30 requests whole instead of 0" in verdict.sentence


def test_a_difference_of_less_than_a_hundredth_is_no_trade():
    end = replace(BEFORE.end_to_end, mean=BEFORE.end_to_end.mean * 0.995)
    slightly = WhatIf(change="x=1", scenario=BASE, outcome=replace(BEFORE, end_to_end=end))
    assert weigh(BEFORE, [slightly]).best is None
    assert weigh(BEFORE, []).best is None


@pytest.mark.parametrize(
    ("worse", "said"),
    [
        ({"preemptions": 12_345}, "12,345 preemptions instead of"),
        ({"mean_ratio": {**BEFORE.mean_ratio, Account.INTERNAL: 0.5}}, "50.0 % of the pool internal instead of"),
        ({"prefix": None}, "no prefix hits instead of 40.0 %"),
        ({"prefix": FEWER}, "10.0 % prefix hits instead of 40.0 %"),
        ({"first_token": replace(BEFORE.first_token, mean=99.0)}, "99.00 s to the first token on average instead of"),
        ({"queue": replace(BEFORE.queue, mean=77.0)}, "77.00 s in the queue on average instead of"),
        ({"rejected": {"prompt_too_long": 3}}, "3 requests rejected instead of 0"),
    ],
)
def test_whatever_gets_worse_is_named_with_both_numbers(worse, said):
    before = replace(BEFORE, prefix=PrefixHits(hit_tokens=4, queried_tokens=10, again_tokens=0))
    after = replace(before, end_to_end=replace(BEFORE.end_to_end, mean=0.5, p99=0.6), **worse)
    sentence = weigh(before, [WhatIf(change="x=1", scenario=BASE, outcome=after)]).sentence
    assert said in sentence.partition("What gets worse: ")[2]


def test_nothing_worse_is_said_so():
    after = replace(BEFORE, end_to_end=replace(BEFORE.end_to_end, mean=0.5, p99=0.6))
    assert (
        "What gets worse: nothing that the replay can see."
        in weigh(BEFORE, [WhatIf(change="x=1", scenario=BASE, outcome=after)]).sentence
    )
