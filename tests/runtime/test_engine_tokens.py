"""The engine answers with the tokens of Transformers' own generate(), whatever the cache has to do for it."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvledger.errors import UsageError
from kvledger.runtime import Attention, Engine, Generation, Options, Preemption, Reservation

from .small_models import draw_prompts, find_difference, generate_plainly, small_model

FAMILIES = ["llama", "qwen3", "mistral", "gpt2", "phi", "gemma3"]
MORE = [
    "gemma2",
    "gpt_oss",
    "opt",
    "gpt_neox",
    "cohere2",
    "exaone4",
    "mixtral",
    "phi3",
    "starcoder2",
    "smollm3",
    "granite",
    "qwen2",
    "qwen2_moe",
    "olmo3",
    "gptj",
]
TOKENS = 12
TOLERANCE = 1e-3


def smallest_memory(model, options, block_size, *, longest):
    """Return the bytes that serve just one sequence of ``longest`` tokens."""
    engine = Engine(model, "64MiB", block_size=block_size, options=options)
    engine.close()
    groups, blocks = engine.layout.groups, 1
    budget = options.max_num_batched_tokens
    while groups.most_tokens(blocks, in_flight_tokens=budget, max_model_len=longest) < longest:
        blocks += 1
    return (blocks + 2) * groups.block_bytes


def answer(model, prompts, *, block_size, options, memory="16MiB"):
    engine = Engine(model, memory, block_size=block_size, options=options)
    wanted = [engine.submit(prompt, Generation(max_tokens=TOKENS, ignore_eos=True)) for prompt in prompts]
    while not engine.is_idle:
        step = engine.step()
        assert step.ledger.capacity == engine.pages.nbytes
        engine.check()
    answers = [list(engine.take(number).token_ids) for number in wanted]
    tally = engine.tally
    assert engine.ledger().held == 0
    engine.close()
    return answers, tally


def assert_same_tokens(model, prompts, answers):
    for prompt, given in zip(prompts, answers, strict=True):
        expected = generate_plainly(model, prompt, TOKENS)
        assert find_difference(model, prompt, expected, given, tolerance=TOLERANCE) is None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_a_ragged_batch_is_answered_as_one_by_one(family, block_size):
    model, prompts = small_model(family), draw_prompts(7, seed=1)
    answers, _ = answer(model, prompts, block_size=block_size, options=Options())
    assert_same_tokens(model, prompts, answers)


@pytest.mark.slow
@pytest.mark.parametrize("family", MORE)
@pytest.mark.parametrize("attention", [Attention.COMPILED, Attention.GATHER])
def test_more_families_are_answered_in_chunks_and_with_little_memory(family, attention):
    model, prompts = small_model(family), [prompt[:20] for prompt in draw_prompts(7, seed=12)]
    options = Options(max_model_len=72, max_num_batched_tokens=16, attention=attention)
    memory = smallest_memory(model, options, 4, longest=71)
    answers, _ = answer(model, prompts, block_size=4, options=options, memory=memory)
    assert_same_tokens(model, prompts, answers)


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_in_chunks_give_the_same_tokens(family):
    model, prompts = small_model(family), draw_prompts(5, seed=2)
    answers, _ = answer(model, prompts, block_size=4, options=Options(max_num_batched_tokens=7))
    assert_same_tokens(model, prompts, answers)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("preemption", Preemption)
def test_requests_that_gave_way_give_the_same_tokens(family, preemption):
    swap_bytes = 2**24 if preemption is Preemption.SWAP else 0
    options = Options(max_model_len=72, preemption=preemption, swap_bytes=swap_bytes, max_num_batched_tokens=64)
    model, prompts = small_model(family), [p[:9] + [5] * 4 for p in draw_prompts(12, seed=3)]
    memory = smallest_memory(model, options, 2, longest=71)
    answers, tally = answer(model, prompts, block_size=2, options=options, memory=memory)
    assert tally.preemptions > 0
    assert (tally.swaps > 0) == (preemption is Preemption.SWAP)
    assert_same_tokens(model, prompts, answers)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefix_from_the_cache_gives_the_same_tokens(family):
    model = small_model(family)
    shared = draw_prompts(1, seed=4, longest=60)[0] * 3
    prompts = [shared[:40] + rest for rest in draw_prompts(5, seed=5, longest=20)] * 2
    answers, tally = answer(model, prompts, block_size=4, options=Options(max_num_seqs=2))
    assert tally.hit_tokens > 0
    assert_same_tokens(model, prompts, answers)


def test_both_ways_of_attention_give_the_same_tokens():
    model, prompts = small_model("gemma3"), draw_prompts(6, seed=6)
    answers, _ = answer(model, prompts, block_size=4, options=Options(attention=Attention.GATHER))
    assert_same_tokens(model, prompts, answers)


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_of_one_prompt_are_forked_and_each_is_what_it_would_be_alone(family):
    model, prompt = small_model(family), draw_prompts(1, seed=8)[0] + [3] * 5
    engine = Engine(model, "1MiB", block_size=4)
    number = engine.submit(prompt, Generation(max_tokens=TOKENS, ignore_eos=True, temperature=2, seed=5, samples=6))
    saved = 0
    while not engine.is_idle:
        saved = max(saved, engine.step().ledger.memo.shared_saving)
        engine.check()
    together = [answer.token_ids for answer in engine.take(number).answers]
    assert len({tokens[0] for tokens in together}) > 1
    kept = 8 if family == "mistral" else len(prompt)  # all of its layers have a window
    assert saved >= 5 * max(1, kept // 4 - 3) * engine.layout.groups.token_bytes
    for tokens in together:
        # A greedy continuation of what was drawn tells that the forked blocks hold what they should.
        start = prompt + list(tokens)
        follow = engine.generate([start], Generation(max_tokens=3, ignore_eos=True))[0].token_ids
        assert list(follow) == generate_plainly(model, start, 3)
    engine.close()


@pytest.mark.parametrize("reservation", [Reservation.MAX, Reservation.POW2, Reservation.DECLARED])
def test_extents_give_the_same_tokens(reservation):
    model, prompts = small_model("llama"), draw_prompts(8, seed=9)
    options = Options(reservation=reservation, prefix_caching=False, max_model_len=80)
    answers, tally = answer(model, prompts, block_size=1, options=options, memory=200 * 2 * 2 * 8 * 4 * 2)
    assert tally.preemptions == 0
    assert_same_tokens(model, prompts, answers)


def test_extents_are_not_shared_by_samples():
    options = Options(reservation=Reservation.MAX, prefix_caching=False, max_model_len=80)
    engine = Engine(small_model("llama"), "1MiB", block_size=1, options=options)
    with pytest.raises(UsageError, match="2 samples"):
        engine.submit([5, 6], Generation(samples=2))
    engine.close()
