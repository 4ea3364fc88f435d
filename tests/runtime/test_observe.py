"""The ledger of somebody's own `generate()` loop, counted by hand beside it."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

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
