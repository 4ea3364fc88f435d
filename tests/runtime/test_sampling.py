"""Tokens are drawn with the chances that temperature, top-k and top-p leave."""

from collections import Counter

import pytest

from kvledger.runtime.options import Generation
from kvledger.runtime.sampling import Drawer, draw_token

torch = pytest.importorskip("torch")

CHANCES = [0.5, 0.25, 0.15, 0.1]
DRAWS = 4000


def draw(chances, **settings):
    """Return the share of every token in many draws."""
    logits = torch.log(torch.tensor(chances)) + 3
    drawer, generation = Drawer(11, 0), Generation(**{"temperature": 1.0, **settings})
    counts = Counter(draw_token(logits, generation, drawer) for _ in range(DRAWS))
    return [counts[token] / DRAWS for token in range(len(chances))]


def near(chances):
    return pytest.approx(chances, abs=0.03)


def test_tokens_come_as_often_as_their_chances_say():
    assert draw(CHANCES) == near(CHANCES)


def test_the_order_of_tokens_makes_no_difference():
    assert draw(CHANCES[::-1]) == near(CHANCES[::-1])


def test_temperature_bends_the_chances():
    squared = [chance**2 for chance in CHANCES]
    assert draw(CHANCES, temperature=0.5) == near([chance / sum(squared) for chance in squared])


def test_top_k_keeps_the_likeliest():
    assert draw(CHANCES, top_k=2) == near([2 / 3, 1 / 3, 0, 0])
    assert draw(CHANCES, top_k=1) == [1, 0, 0, 0]
    assert draw(CHANCES, top_k=100) == near(CHANCES)


def test_top_p_keeps_the_fewest_tokens_that_reach_it():
    assert draw(CHANCES, top_p=0.5) == [1, 0, 0, 0]
    assert draw(CHANCES, top_p=0.6) == near([2 / 3, 1 / 3, 0, 0])
    assert draw(CHANCES, top_p=1e-9) == [1, 0, 0, 0]


def test_top_p_counts_what_top_k_leaves():
    assert draw(CHANCES, top_k=2, top_p=0.66) == [1, 0, 0, 0]


@pytest.mark.parametrize("kept", [100, 1500, 4000])
def test_top_p_is_exact_in_a_large_vocabulary(kept):
    # Equal chances among `kept` tokens, so that top-p of a half needs half of them; the rest never comes.
    chances = torch.full((5000,), 1e-9)
    chances[torch.randperm(5000, generator=torch.Generator().manual_seed(2))[:kept]] = 1.0
    drawer, generation = Drawer(3, 0), Generation(temperature=1.0, top_p=0.5)
    drawn = {draw_token(torch.log(chances), generation, drawer) for _ in range(300)}
    assert all(chances[token] == 1.0 for token in drawn)
    assert len(drawn) <= kept // 2 + 1


@pytest.mark.parametrize("temperature", [1e-300, 1e-9, 100.0])
def test_extreme_temperatures_are_no_error(temperature):
    shares = draw([0.7, 0.3], temperature=temperature)
    assert shares == ([1, 0] if temperature < 1 else near([0.5, 0.5]))


def test_tokens_that_cannot_come_never_do():
    logits = torch.tensor([float("-inf"), 0.0, float("-inf")])
    drawer = Drawer(1, 0)
    assert {draw_token(logits, Generation(temperature=5.0), drawer) for _ in range(100)} == {1}


def test_samples_of_one_seed_are_drawn_apart_and_each_again_the_same():
    first, second, again = Drawer(5, 0), Drawer(5, 1), Drawer(5, 0)
    numbers = [first.draw() for _ in range(5)]
    assert numbers == [again.draw() for _ in range(5)]
    assert numbers != [second.draw() for _ in range(5)]
