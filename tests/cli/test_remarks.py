"""What a replay remarks about what was asked."""

import pytest

from .calling import call

CHAT = "synthetic:fixed,prompt=20,output=30,requests=9,rate=inf"


def notes(capsys, *options, trace=CHAT):
    called = call(capsys, "replay", trace, *options, "--findings", "off", "--json", "-q")
    return called.json()["notes"]


def test_weights_larger_than_the_gpu_of_the_clock_are_told(capsys):
    """70e9 parameters x 2 bytes = 130.39 GiB."""
    found = notes(
        capsys, "--model", "llama-3-70b", "--memory", "20GiB", "--max-model-len", 90, "--clock", "h100-sxm:70b"
    )
    assert any(
        note.startswith("130.39 GiB of weights (70B parameters in 16 bits) are more than the 79.65 GiB of one h100-sxm")
        for note in found
    )


@pytest.mark.parametrize(("memory", "told"), [("60GiB", False), ("70GiB", True)])
def test_weights_and_a_pool_that_do_not_fit_one_gpu_are_told(capsys, memory, told):
    """8e9 parameters x 2 bytes = 14.90 GiB beside the pool, of 80 GiB."""
    options = ("--model", "llama-3-8b", "--memory", memory, "--max-model-len", 90)
    found = notes(capsys, *options, "--clock", "a100-80gb:8b")
    assert any("14.90 GiB of weights" in note and "a pool of 70.00 GiB" in note for note in found) is told
    assert not any("of weights" in note for note in notes(capsys, *options, "--clock", "steps"))


def test_a_longest_sequence_far_from_the_traffic_is_told_where_it_is_reserved(capsys):
    options = ("--model", "llama-3.1-8b", "--memory", "50GiB")
    found = notes(capsys, *options, "--policy", "max,paged")
    assert any(
        "reserves the 131,072 tokens of the model's config" in n and "2621 times the longest" in n for n in found
    )
    assert not any("of the model's config" in n for n in notes(capsys, *options, "--policy", "paged"))
    assert not any(
        "of the model's config" in n for n in notes(capsys, *options, "--policy", "max", "--max-model-len", 131072)
    )
    long = "synthetic:fixed,prompt=90000,output=30,requests=9,rate=inf"
    assert not any("of the model's config" in n for n in notes(capsys, *options, "--policy", "max", trace=long))


def test_what_a_prefix_cache_keeps_is_apart_from_the_categories_of_the_paper(capsys):
    options = ("--bytes-per-token", 1, "--capacity-tokens", 4000, "--max-model-len", 90, "--prefix-caching", "on")
    called = call(capsys, "replay", CHAT, *options, "--policy", "paged", "--max-num-seqs", 1, "--json", "-q")
    (policy,) = called.json()["policies"]
    view = policy["paper_ratio"]
    assert view["kept_for_reuse"] == policy["saturated_ratio"]["cached"] > 0
    assert sum(view.values()) == pytest.approx(1.0)
    text = call(capsys, "replay", CHAT, *options, "--policy", "paged,max", "--max-num-seqs", 1, "-q").out
    assert "kept for reuse" in text
    text = call(capsys, "replay", CHAT, *options[:-1], "off", "--policy", "paged", "-q").out
    assert "kept for reuse" not in text
