"""Settings that cannot be used are refused with what they may be."""

from dataclasses import fields
from pathlib import Path

import pytest

from kvledger.errors import UsageError
from kvledger.runtime import Attention, Generation, Linear, Options, Preemption


def test_every_setting_and_choice_is_documented():
    page = (Path(__file__).resolve().parents[2] / "docs" / "runtime.md").read_text("utf-8")
    names = [field.name for record in (Options, Generation) for field in fields(record)]
    names += [choice.value for choices in (Attention, Linear, Preemption) for choice in choices]
    assert [name for name in names if f"`{name}`" not in page and f"={name}`" not in page] == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_model_len": 1}, "max_model_len is 1, not from 2"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0, not from 1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens is 0, not from 1"),
        ({"watermark_ratio": 1.0}, "watermark_ratio is 1.0, not from 0 to below 1"),
        ({"swap_bytes": 5}, "swap_bytes is 5 and preemption is `recompute`"),
        ({"preemption": Preemption.SWAP}, "swap_bytes is 0 and preemption is `swap`"),
        ({"swap_bytes": -1, "preemption": Preemption.SWAP}, "swap_bytes is -1"),
        ({"swap_bytes": "1MiB", "preemption": "swap"}, "swap_bytes is '1MiB', not a whole number of bytes"),
        ({"max_num_seqs": 1.5}, "max_num_seqs is 1.5, not a whole number"),
        ({"max_model_len": "5"}, "max_model_len is '5', not a whole number"),
        ({"max_num_batched_tokens": None}, "max_num_batched_tokens is None"),
        ({"watermark_ratio": "x"}, "watermark_ratio is 'x', not a number"),
        ({"prefix_caching": "no"}, "prefix_caching is 'no', not True or False"),
        ({"attention": "fast"}, "attention is 'fast', not one of auto, compiled, gather, flashinfer"),
        ({"preemption": None}, "preemption is None, not one of recompute, swap"),
    ],
)
def test_options_out_of_range_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        Options(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0, not from 1"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0}, "top_p is 0, not above 0"),
        ({"top_k": -1}, "top_k is -1"),
        ({"samples": 0}, "samples is 0, not from 1"),
        ({"seed": -1}, "seed is -1"),
        ({"stop": ("",)}, "the 1 stop strings"),
        ({"max_tokens": True}, "max_tokens is True, not a whole number"),
        ({"temperature": "hot"}, "temperature is 'hot', not a number"),
        ({"samples": 1.5}, "samples is 1.5, not a whole number"),
        ({"seed": 1.5}, "seed is 1.5, not a whole number"),
        ({"stop": None}, "stop is None, not text or a tuple of texts"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5, not a tuple of whole numbers"),
        ({"stop_token_ids": ("a",)}, "stop_token_ids is"),
        ({"ignore_eos": "yes"}, "ignore_eos is 'yes', not True or False"),
        ({"stop": tuple("abc" * 30)}, "the 90 stop strings"),
    ],
)
def test_what_cannot_be_sampled_is_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        Generation(**settings)


def test_a_choice_is_given_by_its_name_and_one_stop_string_as_itself():
    assert Options(preemption="swap", swap_bytes=1).preemption is Preemption.SWAP
    assert Generation(stop="END").stop == ("END",)
    assert Generation(stop=["a", "b"], stop_token_ids=[1]).stop_token_ids == (1,)
