"""The ledger of somebody's own `generate()` loop, counted by hand beside it."""

import inspect
import threading

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from kvledger.runtime import observe  # noqa: E402
from tests.runtime.small_models import small_model  # noqa: E402

SLOT = 2 * 2 * 8 * 4 * 2
"""Keys and values of a token: 2 of them, 2 heads, size 8, 4 bytes, 2 layers."""


def ragged(lengths):
    longest = max(lengths)
    tokens = torch.tensor([[0] * (longest - n) + list(range(2, 2 + n)) for n in lengths])
    mask = torch.tensor([[0] * (longest - n) + [1] * n for n in lengths])
    return {"input_ids": tokens, "attention_mask": mask}


def generate(model, lengths, tokens, **more):
    settings = {"max_new_tokens": tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0, **more}
    with observe(model) as seen:
        model.generate(**ragged(lengths), **settings)
    return seen


def test_a_dynamic_cache_holds_the_padding_of_the_shorter_row():
    seen = generate(small_model("llama"), [3, 10], 4)

    assert [o.ledger.capacity for o in seen.observations] == [2 * n * SLOT for n in (10, 11, 12, 13)]
    assert [o.ledger.used for o in seen.observations] == [(13 + 2 * k) * SLOT for k in range(4)]
    assert all(o.ledger.internal == 7 * SLOT and o.ledger.reserved == 0 for o in seen.observations)


def test_a_static_cache_reserves_what_is_not_written_yet():
    seen = generate(small_model("llama"), [3, 10], 4, cache_implementation="static")

    assert [o.ledger.capacity for o in seen.observations] == [2 * 13 * SLOT] * 4
    assert [o.ledger.reserved for o in seen.observations] == [2 * n * SLOT for n in (3, 2, 1, 0)]
    assert all(o.ledger.internal == 7 * SLOT for o in seen.observations)


def test_a_row_that_has_ended_holds_everything_for_nothing():
    model = small_model("llama")
    rows = ragged([10, 9])
    plain = model.generate(**rows, max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0)
    first, second = plain[:, 10:].tolist()
    ending = next(token for token in first[:-2] if token not in second)
    was = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = ending
    try:
        with observe(model) as seen:
            answer = model.generate(**rows, max_new_tokens=6, do_sample=False, pad_token_id=0)
    finally:
        model.generation_config.eos_token_id = was

    stopped = [row.index(ending) if ending in row else None for row in answer[:, 10:].tolist()]
    assert stopped[0] is not None
    assert stopped[1] is None
    for step, o in enumerate(seen.observations):
        live = [n + step for n, end in zip((10, 9), stopped, strict=True) if end is None or step <= end]
        assert o.running == len(live)
        assert o.ledger.used == sum(live) * SLOT
        assert o.ledger.capacity == 2 * (10 + step) * SLOT


def test_a_sliding_window_keeps_the_storage_behind_its_slice():
    seen = generate(small_model("mistral"), [20], 3)
    first = seen.observations[0].ledger

    assert first.capacity == 20 * SLOT, "the slice of 7 tokens is a view of all 20"
    assert first.used == 7 * SLOT
    assert first.internal == 13 * SLOT


def test_the_next_loop_begins_with_every_row_alive():
    model = small_model("llama")
    with observe(model) as seen:
        for _ in range(2):
            model.generate(**ragged([5, 5]), max_new_tokens=2, do_sample=False, eos_token_id=None, pad_token_id=0)

    assert [o.running for o in seen.observations] == [2, 2, 2, 2]


def test_a_loop_without_a_cache_is_said_to_be_unseen():
    seen = generate(small_model("llama"), [5], 2, use_cache=False)

    assert seen.observations == []
    assert "No forward has filled a cache" in str(seen)
    assert sum(seen.unseen.values()) == 2


def test_the_text_says_what_was_measured():
    text = str(generate(small_model("llama"), [3, 10], 4))

    assert "4 forwards" in text
    assert "used" in text
    assert "reserved" not in text


def test_the_hooks_are_gone_after_the_block():
    model = small_model("llama")
    seen = generate(model, [5], 2)
    model.generate(**ragged([5]), max_new_tokens=2, do_sample=False, eos_token_id=None, pad_token_id=0)

    assert len(seen.observations) == 2


def feed(model, tokens, cache, **more):
    """Send tokens through a model with a cache of one's own, whichever name this version has for it."""
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    return model(torch.tensor(tokens), **{name: cache}, **more)


def test_rows_that_go_on_past_the_models_own_end_are_alive_again():
    model = small_model("llama")
    ending = 5
    was = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = ending
    cache = transformers.DynamicCache(config=model.config)
    try:
        with observe(model) as seen, torch.no_grad():
            for tokens in ([[1, 2], [3, 4]], [[ending], [6]], [[7], [8]], [[9], [10]], [[11], [12]]):
                feed(model, tokens, cache)
    finally:
        model.generation_config.eos_token_id = was
    assert [o.running for o in seen.observations] == [2, 1, 1, 2, 2]


def test_the_next_turn_of_a_chat_has_every_row_alive():
    model = small_model("llama")
    was = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = 5
    cache = transformers.DynamicCache(config=model.config)
    try:
        with observe(model) as seen, torch.no_grad():
            for tokens in ([[1, 2], [3, 4]], [[5], [6]], [[0], [7]], [[8, 9], [8, 9]]):
                feed(model, tokens, cache)
    finally:
        model.generation_config.eos_token_id = was
    assert [o.running for o in seen.observations] == [2, 1, 1, 2]


def test_loops_that_take_turns_are_told_apart():
    """Which rows have ended, and since when, belongs to a cache: in two threads, or in one."""
    model = small_model("llama")
    was = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = 5
    first, second = (transformers.DynamicCache(config=model.config) for _ in range(2))
    try:
        with observe(model) as seen, torch.no_grad():
            feed(model, [[1, 2]], first)
            feed(model, [[1, 2, 3]], second)
            feed(model, [[5]], first)
            feed(model, [[6]], second)
            feed(model, [[0]], first)
    finally:
        model.generation_config.eos_token_id = was
    assert [o.running for o in seen.observations] == [1, 1, 0, 1, 0]
    assert [o.ledger.capacity for o in seen.observations] == [n * SLOT for n in (2, 3, 3, 4, 4)]
    assert seen.observations[2].seconds > seen.observations[1].seconds  # it waited while the other had its turn


def test_a_loop_in_each_of_several_threads_is_seen_whole():
    model = small_model("llama")

    def loop(length):
        model.generate(**ragged([length, 10]), max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)

    threads = [threading.Thread(target=loop, args=(length,)) for length in (3, 4, 5)]
    with observe(model) as seen:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert seen.unseen == {}
    assert sorted(o.ledger.used // SLOT for o in seen.observations) == sorted(
        length + 10 + 2 * k for length in (3, 4, 5) for k in range(4)
    )


def test_a_cache_that_cannot_be_read_does_not_disturb_the_loop():
    config = transformers.MambaConfig(vocab_size=97, hidden_size=32, num_hidden_layers=1, state_size=4)
    model = transformers.MambaForCausalLM(config).eval()
    with observe(model) as seen:
        answer = model.generate(torch.tensor([[5, 6]]), max_new_tokens=2, do_sample=False, eos_token_id=None)
    assert answer.shape == (1, 4)
    assert seen.unseen == {"layer 0 of the cache is a `LinearAttentionLayer`, whose memory is not observed": 2}


def test_a_fault_of_a_cache_does_not_disturb_the_loop():
    class Odd(transformers.DynamicCache):
        def get_seq_length(self, layer_idx=0):
            if len(seen.observations) == 1:
                raise KeyError("no such layer")
            return super().get_seq_length(layer_idx)

    model = small_model("llama")
    cache = Odd(config=model.config)
    with observe(model) as seen, torch.no_grad():
        feed(model, [[1, 2]], cache, position_ids=torch.tensor([[0, 1]]))
        masks = {"position_ids": torch.tensor([[2]]), "attention_mask": torch.zeros(1, 1, 1, 3)}
        feed(model, [[3]], cache, **masks)
    assert [message.split(":")[0] for message in seen.unseen] == ["whose `Odd` could not be read"]


def test_the_cache_of_a_forward_that_returns_a_tuple_is_seen():
    with observe(small_model("llama")) as seen, torch.no_grad():
        small_model("llama")(torch.tensor([[1, 2, 3]]), use_cache=True, return_dict=False)
    assert [o.ledger.used for o in seen.observations] == [3 * SLOT]


def test_a_cache_of_another_kind_is_named():
    sizes = {"vocab_size": 97, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0)).eval()
    with observe(model) as seen:
        model.generate(torch.tensor([[5, 6]]), max_new_tokens=2, do_sample=False, eos_token_id=None)
    assert seen.unseen == {"whose cache is a `EncoderDecoderCache`, which is not observed": 2}
