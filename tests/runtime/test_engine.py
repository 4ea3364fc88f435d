"""What an engine does with requests that end, fail, are given up, or ask for something special."""

import copy

import pytest

from kvledger.errors import CapacityError, ModelError, UsageError
from kvledger.runtime import Ending, Engine, Generation, Options, Preemption

pytest.importorskip("torch")
pytest.importorskip("transformers")

from .small_models import draw_prompts, find_difference, generate_plainly, small_model, torch

GREEDY = Generation(max_tokens=10, ignore_eos=True)


class Numbers:
    """A tokenizer that writes each token as a letter."""

    def __call__(self, text):
        return {"input_ids": [ord(letter) - 32 for letter in text]}

    def decode(self, ids, *, skip_special_tokens, clean_up_tokenization_spaces):
        return "".join(chr(i + 32) for i in ids)


@pytest.fixture
def make():
    engines = []

    def make_engine(memory="1MiB", family="llama", **settings):
        tokenizer = settings.pop("tokenizer", None)
        block_size = settings.pop("block_size", 4)
        engine = Engine(
            small_model(family), memory, block_size=block_size, tokenizer=tokenizer, options=Options(**settings)
        )
        engines.append(engine)
        return engine

    yield make_engine
    for engine in engines:
        engine.check()
        engine.close()
        assert engine.ledger().held == 0


def run_out(engine):
    """Step until nothing is left; return all tokens that came."""
    tokens = []
    while not engine.is_idle:
        tokens += engine.step().tokens
        engine.check()
    return tokens


def test_a_request_ends_at_its_stop_token(make):
    engine = make()
    plain = generate_plainly(small_model("llama"), [1, 2, 3], 10)
    stop = plain[4]
    result = engine.generate([[1, 2, 3]], Generation(max_tokens=10, stop_token_ids=(stop,), ignore_eos=True))[0]
    assert list(result.token_ids) == plain[: plain.index(stop) + 1]
    assert result.answers[0].ending is Ending.STOP


def test_a_request_ends_at_the_models_end_of_sequence(make, monkeypatch):
    plain = generate_plainly(small_model("llama"), [1, 2, 3], 10)
    monkeypatch.setattr(small_model("llama").generation_config, "eos_token_id", [plain[3], 5])
    engine = make()
    results = engine.generate([[1, 2, 3]], Generation(max_tokens=10))
    assert list(results[0].token_ids) == plain[: plain.index(plain[3]) + 1]
    assert len(engine.generate([[1, 2, 3]], GREEDY)[0].token_ids) == 10


def test_a_request_ends_at_the_tokenizers_end_of_a_turn(make):
    class Turns(Numbers):
        eos_token_id = generate_plainly(small_model("llama"), [1, 2, 3], 10)[3]

    (kept, ended) = (
        make(tokenizer=Turns()).generate([[1, 2, 3]], Generation(max_tokens=10, ignore_eos=ignored))[0].answers[0]
        for ignored in (True, False)
    )
    assert len(kept.token_ids) == 10
    assert ended.token_ids[-1] == Turns.eos_token_id
    assert len(ended.token_ids) <= 4
    assert ended.ending is Ending.STOP


def test_a_request_ends_at_its_stop_string_and_its_text_before_it(make):
    engine = make(tokenizer=Numbers())
    plain = engine.generate(["!#$"], GREEDY)[0].text
    result = engine.generate(["!#$"], Generation(max_tokens=10, stop=(plain[3:6],), ignore_eos=True))[0]
    assert result.text == plain[: plain.index(plain[3:6])]
    assert result.answers[0].ending is Ending.STOP


def test_streamed_text_joins_to_the_answer(make):
    engine = make(tokenizer=Numbers())
    number = engine.submit("!#$", GREEDY)
    tokens = run_out(engine)
    result = engine.take(number)
    assert "".join(token.text for token in tokens) == result.text
    assert [token.token_id for token in tokens] == list(result.token_ids)


def test_an_answer_is_as_long_as_the_model_may_write_when_nothing_else_ends_it(make):
    result = make(max_model_len=20).generate([[7] * 5], Generation(ignore_eos=True))[0]
    assert len(result.token_ids) == 15
    assert result.answers[0].ending is Ending.LENGTH


def test_prompts_that_cannot_be_served_say_why_and_the_others_are_answered(make):
    engine = make(max_model_len=20)
    prompts = [[1, 2], [], [3] * 20, [96], [97], [-1], "text", [4, 5]]
    results = engine.generate(prompts, GREEDY)
    assert [len(result.token_ids) for result in results] == [10, 0, 0, 10, 0, 0, 0, 10]
    messages = [result.error.message for result in results if result.error]
    assert messages == [
        "the prompt has no tokens",
        "the prompt has 20 tokens, and max_model_len is 20",
        "token 97 is not one of the model's 97",
        "token -1 is not one of the model's 97",
        "the prompt is text, and the engine has no tokenizer",
    ]
    assert isinstance(results[2].error, CapacityError)


def test_a_request_that_is_cancelled_frees_its_blocks_at_once(make):
    engine = make(prefix_caching=False)
    kept, given_up = engine.submit([1, 2, 3], GREEDY), engine.submit([4] * 30, GREEDY)
    engine.step()
    used = engine.ledger().used
    tokens = engine.cancel(given_up)
    assert [token.ending for token in tokens] == [Ending.CANCELLED]
    assert used - engine.ledger().used == 30 * engine.layout.groups.token_bytes
    run_out(engine)
    assert len(engine.take(given_up).token_ids) == 1
    assert list(engine.take(kept).token_ids) == generate_plainly(small_model("llama"), [1, 2, 3], 10)
    assert engine.cancel(given_up) == []


@pytest.mark.parametrize("preemption", Preemption)
def test_a_waiting_and_a_preempted_request_can_be_cancelled(make, preemption):
    swap_bytes = 2**20 if preemption is Preemption.SWAP else 0
    engine = make(memory=10 * 4 * 256, max_model_len=40, preemption=preemption, swap_bytes=swap_bytes)
    numbers = [engine.submit([i] * 14, Generation(max_tokens=24, ignore_eos=True)) for i in range(1, 4)]
    while not engine.tally.preemptions:
        engine.step()
    assert (engine.pages.swapped_bytes > 0) == (preemption is Preemption.SWAP)
    for number in numbers[1:]:
        assert engine.cancel(number)[0].ending is Ending.CANCELLED
    assert engine.pages.swapped_bytes == 0
    run_out(engine)
    assert len(engine.take(numbers[0]).token_ids) == 24


def test_a_model_that_fails_ends_what_took_part_and_the_rest_goes_on(make, monkeypatch):
    engine = make(max_num_seqs=1)
    first, second = engine.submit([1, 2, 3, 4, 5], GREEDY), engine.submit([1, 2, 3, 4, 5], GREEDY)
    run = engine.runner.run
    monkeypatch.setattr(engine.runner, "run", lambda schedule: 1 / 0)
    tokens = engine.step().tokens
    assert [token.ending for token in tokens] == [Ending.ERROR]
    assert tokens[0].error.message == "the model failed: ZeroDivisionError: division by zero"
    monkeypatch.setattr(engine.runner, "run", run)
    run_out(engine)
    assert engine.take(first).answers[0].error is tokens[0].error
    # Nothing of the failed step is in the prefix cache, although the prompts are the same.
    assert engine.tally.hit_tokens == 0
    assert list(engine.take(second).token_ids) == generate_plainly(small_model("llama"), [1, 2, 3, 4, 5], 10)


def test_logits_that_are_no_numbers_end_only_the_request_they_belong_to(make, monkeypatch):
    engine = make()
    bad, good = engine.submit([1, 2, 3], GREEDY), engine.submit([4, 5, 6], GREEDY)
    run = engine.runner.run

    def spoil(schedule):
        logits, places = run(schedule)
        logits = logits.clone()
        for row, place in enumerate(places):
            if schedule.sequences[place].request == bad:
                logits[row, 5] = float("nan")
        return logits, places

    monkeypatch.setattr(engine.runner, "run", spoil)
    run_out(engine)
    assert engine.take(bad).answers[0].error.message == "the model's logits are not numbers"
    assert list(engine.take(good).token_ids) == generate_plainly(small_model("llama"), [4, 5, 6], 10)


def test_the_same_seed_draws_the_same_answer_in_any_company(make):
    drawn = Generation(max_tokens=10, temperature=1.5, top_p=0.9, top_k=20, seed=7, ignore_eos=True)
    alone = make().generate([[1, 2, 3]], drawn)[0].token_ids
    engine = make(max_num_batched_tokens=5, block_size=16)
    number = engine.submit([1, 2, 3], drawn)
    others = [engine.submit(prompt, GREEDY) for prompt in draw_prompts(4, seed=9)]
    run_out(engine)
    assert engine.take(number).token_ids == alone
    assert all(engine.take(other).answers for other in others)
    assert make().generate([[1, 2, 3]], Generation(max_tokens=10, temperature=1.5, seed=8))[0].token_ids != alone


def test_samples_are_the_same_however_they_are_stored(make):
    drawn = Generation(max_tokens=8, temperature=2, seed=3, samples=4, ignore_eos=True)
    prompt = draw_prompts(1, seed=10)[0] + [1, 2, 3]
    expected = [answer.token_ids for answer in make(block_size=16).generate([prompt], drawn)[0].answers]
    for settings in ({"block_size": 1}, {"block_size": 5, "max_num_batched_tokens": 6}, {"prefix_caching": False}):
        given = make(**settings).generate([prompt], drawn)[0].answers
        assert [answer.token_ids for answer in given] == expected


def test_samples_keep_their_seats_until_they_are_forked(make):
    engine = make(max_num_seqs=4)
    asked = Generation(max_tokens=6, temperature=1, seed=1, samples=3, ignore_eos=True)
    numbers = [engine.submit([i, i, i], asked) for i in range(1, 4)]
    peak = 0
    while not engine.is_idle:
        engine.step()
        peak = max(peak, len(engine.scheduler.running))
        engine.check()
    assert peak == 3
    assert [len(engine.take(number).answers) for number in numbers] == [3, 3, 3]
    with pytest.raises(UsageError, match="5 samples are more than max_num_seqs, 4"):
        engine.submit([1], Generation(samples=5))


def test_a_request_of_several_samples_is_cancelled_before_and_after_they_are_forked(make):
    engine = make(max_num_batched_tokens=4)
    asked = Generation(max_tokens=6, temperature=1, seed=1, samples=3, ignore_eos=True)
    early, late = engine.submit([1] * 10, asked), engine.submit([2] * 3, asked)
    engine.step()
    assert len(engine.cancel(early)) == 3
    while len(engine.scheduler.running) < 3:
        engine.step()
    assert len(engine.cancel(late)) == 3
    assert [len(answer.token_ids) for answer in engine.take(early).answers] == [0, 0, 0]
    assert [len(answer.token_ids) for answer in engine.take(late).answers] == [1, 1, 1]


def test_samples_of_one_token_end_when_they_are_drawn(make):
    result = make().generate([[1, 2, 3]], Generation(max_tokens=1, temperature=3, seed=2, samples=5))[0]
    assert [len(answer.token_ids) for answer in result.answers] == [1] * 5


def test_the_ledger_counts_the_tokens_of_every_running_request(make):
    engine = make(prefix_caching=False)
    engine.submit([1] * 9, GREEDY)
    engine.submit([2] * 4, GREEDY)
    step = engine.step()
    token_bytes = engine.layout.groups.token_bytes
    assert step.ledger.used == 13 * token_bytes
    assert step.ledger.internal == 3 * token_bytes
    assert (step.prefill_tokens, step.decode_sequences) == (13, 0)
    step = engine.step()
    assert step.ledger.used == 15 * token_bytes
    assert (step.prefill_tokens, step.decode_sequences) == (0, 2)
    assert step.ledger.capacity == engine.pages.kv.nbytes == engine.ledger().capacity
    run_out(engine)


def test_a_result_is_handed_over_once(make):
    engine = make()
    number = engine.submit([1], GREEDY)
    assert engine.take(number) is None
    run_out(engine)
    assert engine.take(number).token_ids
    with pytest.raises(UsageError, match="not known"):
        engine.take(number)


def test_the_model_is_as_it_was_after_the_engine_is_closed_and_works_in_between():
    model = small_model("llama")
    before = model.config._attn_implementation
    expected = generate_plainly(model, [1, 2, 3], 5)
    engine = Engine(model, "1MiB")
    assert generate_plainly(model, [1, 2, 3], 5) == expected
    engine.close()
    assert model.config._attn_implementation == before


def test_a_model_has_its_own_attention_again_when_its_last_engine_is_closed():
    model = small_model("llama")
    before = model.config._attn_implementation
    first, second = Engine(model, "1MiB"), Engine(model, "1MiB")
    first.close()
    first.close()
    assert list(second.generate([[1, 2]], GREEDY)[0].token_ids) == generate_plainly(model, [1, 2], 10)
    second.close()
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_answered_within_its_rounding(dtype):
    model = copy.deepcopy(small_model("qwen3")).to(getattr(torch, dtype))
    prompts = draw_prompts(4, seed=15)
    engine = Engine(model, "1MiB", block_size=4, options=Options(max_num_batched_tokens=16))
    assert engine.layout.shape.dtype_bytes == 2
    results = engine.generate(prompts, GREEDY)
    engine.close()
    for prompt, result in zip(prompts, results, strict=True):
        expected = generate_plainly(model, prompt, 10)
        with torch.inference_mode():
            spread = float(model(torch.tensor([prompt])).logits[0, -1].float().std())
        given = list(result.token_ids)
        assert find_difference(model, prompt, expected, given, tolerance=0.05 * spread) is None


def test_memory_that_holds_too_little_is_refused():
    model = small_model("llama")
    with pytest.raises(CapacityError, match="1000 bytes hold no block of 16 tokens, which has 4096 bytes"):
        Engine(model, 1000)
    with pytest.raises(CapacityError, match="the 2 blocks of the pool serve one of 33 tokens, not of 100"):
        Engine(model, 2 * 4096, options=Options(max_model_len=100))
    with pytest.raises(UsageError, match="max_model_len is 300, and the model has positions for 256 tokens"):
        Engine(model, "1MiB", options=Options(max_model_len=300))
    assert model.config._attn_implementation == "sdpa"
    engine = Engine(model, 2 * 4096)
    assert engine.max_model_len == 33
    engine.close()


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (5, "a prompt is a `int`"),
        (None, "a prompt is a `NoneType`"),
        (b"ab", "a prompt is a `bytes`"),
        ([1.5], "token 0 of a prompt is a `float`"),
        ([5, "a"], "token 1 of a prompt is a `str`"),
        ([[5, 6]], "token 0 of a prompt is a `list`"),
    ],
)
def test_what_is_no_prompt_is_refused_and_leaves_nothing_behind(prompt, message):
    engine = Engine(small_model("llama"), "1MiB")
    with pytest.raises(UsageError, match=message):
        engine.submit(prompt)
    refused, answered = engine.generate([prompt, [5, 6]], GREEDY)
    assert message in refused.error.message
    assert len(answered.token_ids) == 10
    engine.close()


def test_one_text_is_no_list_of_prompts_and_a_dict_no_generation():
    engine = Engine(small_model("llama"), "1MiB")
    with pytest.raises(UsageError, match="the prompts are one text"):
        engine.generate("text")
    with pytest.raises(UsageError, match="a `dict`, not a `Generation`"):
        engine.submit([5], {"max_tokens": 3})
    assert engine.is_idle
    engine.close()


def test_tokens_of_tensors_and_arrays_are_tokens():
    engine = Engine(small_model("llama"), "1MiB")
    answers = engine.generate([[5, 6], torch.tensor([5, 6]), range(5, 7)], GREEDY)
    assert len({answer.token_ids for answer in answers}) == 1
    engine.close()


def test_a_closed_engine_says_so():
    engine = Engine(small_model("llama"), "1MiB")
    engine.close()
    for use in (lambda: engine.submit([5]), engine.step, lambda: engine.generate([[5]])):
        with pytest.raises(UsageError, match="the engine is closed"):
            use()


@pytest.mark.parametrize(
    ("memory", "block_size", "message"),
    [
        (None, 16, "kv_memory is None, not a whole number"),
        (1.5, 16, "kv_memory is 1.5"),
        (-5, 16, "kv_memory is -5, not from 0"),
        ("1MiB", "16", "block_size is '16', not a whole number"),
        ("1MiB", 0, "block_size is 0, not from 1 to 1048576"),
    ],
)
def test_memory_and_blocks_that_are_no_numbers_are_refused(memory, block_size, message):
    with pytest.raises(UsageError, match=message):
        Engine(small_model("llama"), memory, block_size=block_size)


@pytest.mark.parametrize("model", ["gpt2", None, torch.nn.Linear(2, 2)])
def test_what_is_no_model_of_transformers_is_refused(model):
    with pytest.raises(ModelError, match="is not a model of Transformers"):
        Engine(model, "1MiB")
