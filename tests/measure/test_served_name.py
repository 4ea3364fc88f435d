"""Names that surely are of different models, and names that may be of one."""

from dataclasses import replace

import pytest

from kvledger.errors import UsageError
from kvledger.measure.served_name import explain_difference
from kvledger.model.catalogue import catalogue, find_model


def difference(served, given):
    try:
        known = find_model(served)
    except UsageError:
        known = None
    return explain_difference(served, find_model(given), known, families=catalogue())


@pytest.mark.parametrize(
    ("served", "given", "why"),
    [
        ("Llama-3.1-8B", "llama-3.1-70b", "`8b` is served, but `70b` was given"),
        ("/models/Meta_Llama 3.1 8B-Instruct/", "llama-3.1-70b", "`8b` is served"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-235b-a22b", "`30b` is served"),
        ("Mixtral-8x22B", "mixtral-8x7b", "`8x22b` is served"),
        ("Qwen2.5-7B-Instruct", "mistral-7b-v0.1", "`qwen` is served, but `mistral` was given"),
        ("llama-2-7b", "falcon-7b", "`llama` is served"),
        ("Phi-3-mini-4k", "phi-4", "a token of the served model costs"),
    ],
)
def test_models_that_surely_differ_are_told_apart(served, given, why):
    assert why in difference(served, given)


@pytest.mark.parametrize(
    ("served", "given"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8", "llama-3.1-70b"),
        ("meta-llama/Llama-3-8B", "llama-3.1-8b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama-3.1-8b"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "llama-3.1-8b"),
        ("Hermes-3-8B", "llama-3.1-8b"),
        ("prod-chat", "llama-3.1-70b"),
        ("gpt-4", "llama-3.1-70b"),
        ("CodeLlama-7b-hf", "llama-2-7b"),
        ("mid", "llama-3-8b"),
        ("", "llama-3-8b"),
        ("/", "llama-3-8b"),
        ("Qwen3-30B-A3B", "qwen3-30b-a3b"),
    ],
)
def test_names_that_may_be_of_one_model_say_nothing(served, given):
    assert difference(served, given) is None


def test_a_model_read_from_a_file_is_known_by_its_price_alone():
    model = replace(find_model("llama-3.1-70b"), name="config.json")
    assert "costs 131,072 bytes, but 327,680" in explain_difference("Llama-3.1-8B", model, find_model("llama-3.1-8b"))


def test_every_model_of_the_catalogue_is_itself():
    assert [name for name in catalogue() if difference(name, name) is not None] == []
