"""The catalogue of models."""

import pytest

from kvledger.errors import UsageError
from kvledger.model.catalogue import catalogue, find_model


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("opt-13b", 819_200),  # 2 x 40 x 5120 x 2: the 800 KB of the PagedAttention paper
        ("opt-66b", 2 * 64 * 9216 * 2),
        ("opt-175b", 2 * 96 * 12288 * 2),
        ("llama-2-7b", 524_288),
        ("llama-2-13b", 819_200),
        ("llama-3-8b", 131_072),
        ("llama-3.1-8b", 131_072),
        ("llama-3.1-70b", 327_680),
        ("yi-6b", 65_536),
        ("yi-34b", 245_760),
        ("deepseek-v3", 70_272),
        ("qwen2.5-7b", 57_344),
        ("qwen2.5-vl-3b", 36_864),  # 269,568 tokens took 9.26 GiB
        ("qwen3-coder-480b-a35b", 253_952),
        ("qwen3-vl-8b", 147_456),  # 252,288 tokens took 34.65 GiB
        ("qwen3.5-122b-a10b", 24_576),
        ("qwen3.5-397b-a17b", 30_720),
        ("kimi-k3", 27_648),
        ("glm-4.7-flash", 54_144),
        ("minimax-m3", 137_472),
        ("nemotron-3-super-120b-a12b", 8192),
        ("phi-4-mini", 131_072),  # 13,618 blocks took 26.60 GiB
        ("granite-3.3-8b", 163_840),  # 32,768 tokens would take 5.00 GiB
        ("deepseek-r1-distill-qwen-14b", 196_608),
        ("gemma-4-12b", 16_384),  # 8 layers of one shared key and value head
        ("qwen3.5-4b", 32_768),
        ("qwen3.5-0.8b", 12_288),
        ("gemma-4-e4b", 16_384),  # 32,768 cells took 512.00 MiB
    ],
)
def test_well_known_models_cost_what_is_published(name, expected):
    assert find_model(name).bytes_per_token() == expected


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Llama 3 8B", "llama-3-8b"),
        ("OPT_13B", "opt-13b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("  qwen2.5-7b-instruct ", "qwen2.5-7b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "qwen3-30b-a3b-2507"),
        ("cyankiwi/gemma-4-31B-it-AWQ-4bit", "gemma-4-31b"),
        ("Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct-AWQ", "qwen2.5-32b"),
        ("RedHatAI/Qwen3.6-35B-A3B-NVFP4", "qwen3.5-35b-a3b"),
        ("llama-3.2-3b-q4_k_m", "llama-3.2-3b"),
    ],
)
def test_names_are_matched_without_organisation_case_and_punctuation(asked, found):
    assert find_model(asked).name == found


def test_what_a_name_says_of_its_weights_is_left_out_and_told():
    (note,) = find_model("Qwen/Qwen3-32B-AWQ").notes
    assert note.startswith("`Qwen/Qwen3-32B-AWQ` is read as the catalogue's `qwen3-32b`")
    assert find_model("Qwen/Qwen3-32B").notes == ()
    for name in ("awq", "-awq", "fp8-awq", "qwen3-32b-awq-large"):
        with pytest.raises(UsageError, match="the catalogue has no model"):
            find_model(name)


def test_an_unknown_model_gets_the_nearest_names_and_the_command_that_lists_all():
    with pytest.raises(UsageError, match="did you mean `llama-3-8b`") as caught:
        find_model("lama-3-8b")
    assert "`kvledger size --list models`" in (caught.value.hint or "")
    assert len(caught.value.message) + len(caught.value.hint or "") < 300


def test_names_that_begin_as_asked_come_first():
    with pytest.raises(UsageError, match="did you mean `gemma-2-9b`, `gemma-2-27b`, "):
        find_model("gemma-2")


def test_a_name_far_from_all_gets_no_suggestion():
    with pytest.raises(UsageError) as caught:
        find_model("§" * 10_000)
    assert "did you mean" not in caught.value.message
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_every_entry_is_read_and_names_its_source(name):
    spec = find_model(name)
    assert spec.layers
    assert spec.sequence_bytes(1000) > 0
    assert spec.max_model_len is not None
    assert spec.provenance[0].source == catalogue()[name].source
    assert not spec.notes


def test_no_name_means_two_models():
    names = [name for entry in catalogue().values() for name in (entry.name, *entry.aliases)]
    assert len(names) == len({name.lower().replace("-", "").replace(".", "") for name in names})
    assert len(catalogue()) >= 60


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("opt-13b", 12.85, 12.85),
        ("llama-2-7b", 6.74, 6.74),
        ("llama-3-8b", 8.03, 8.03),
        ("llama-3.1-405b", 405.9, 405.9),
        ("llama-3.2-1b", 1.24, 1.24),
        ("mixtral-8x7b", 46.7, 12.9),
        ("qwen2.5-7b", 7.62, 7.62),
        ("qwen3-30b-a3b", 30.5, 3.3),
        ("qwen3-235b-a22b", 235.1, 22.2),
        ("deepseek-v2-lite", 15.7, 2.7),
        ("deepseek-v3", 671.0, 37.5),
        ("gemma-3-27b", 27.0, 27.0),
        ("gpt-oss-120b", 116.8, 5.7),
        ("gemma-4-26b-a4b", 25.2, 3.8),
        ("mimo-v2-flash", 309.0, 15.4),
        ("llama-4-maverick-17b-128e", 400.7, 17.2),
    ],
)
def test_parameters_are_within_two_percent_of_what_is_published(name, billions, active):
    found = find_model(name).parameters
    assert found.count == pytest.approx(billions * 1e9, rel=0.02)
    assert found.active == pytest.approx(active * 1e9, rel=0.02)
