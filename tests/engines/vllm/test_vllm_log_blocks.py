"""What a log says beyond its bytes: the release that words it, and the blocks that its figures stand for."""

import pytest

from kvledger.engines.plan import Deployment
from kvledger.engines.vllm.log_blocks import derive_start_up
from kvledger.engines.vllm.logcheck import check_start_up, deployment_of
from kvledger.engines.vllm.startup import read_start_up
from kvledger.errors import SourceError
from kvledger.ledger import Accuracy
from kvledger.model.by_hand import read_layers
from kvledger.model.catalogue import find_model

GIB = 2**30


def model(name):
    return read_layers(name, max_model_len=131_072) if "(" in name else find_model(name)


def settle(log, **asked):
    version = asked.pop("version", None) or log.version or log.newest_version or "0.33"
    return deployment_of(log, Deployment(engine="vllm", version=version, **asked))


def derive(name, text, **asked):
    log = read_start_up(text)
    return derive_start_up(model(name), settle(log, **asked), log)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("# GPU blocks: 6487, # CPU blocks: 4096", "0.6"),
        ("# CUDA blocks: 14984, # CPU blocks: 4681", "0.7"),
        ("# rocm blocks: 6495, # CPU blocks: 2340", "0.10"),
        ("# GPU blocks: 1381", "0.7"),
        ("GPU blocks: 1381, # CPU blocks: 512", "0.6"),
        ("Maximum concurrency for 40960 tokens per request: 2.54x", "0.10"),
        ("Maximum concurrency for 40,960 tokens per request: 2.54x", "0.27"),
        ("GPU KV cache size: 1,024 tokens, Maximum concurrency for 4,096 tokens per request: 0.25x", None),
        ("Available KV cache memory: 13.10 GiB", "0.13"),
        ("Available KV cache memory: 13.1 GiB", None),
        (
            "To serve at least one request with the models's max seq len (8192), (16.00 GiB KV cache is needed, which "
            "is larger than the available KV cache memory (0.71 GiB).",
            "0.21",
        ),
        (
            "The model's max seq len (8192) is larger than the maximum number of tokens that can be stored in KV "
            "cache (4096).",
            "0.10",
        ),
    ],
)
def test_the_wording_of_a_line_bounds_the_version(line, version):
    assert read_start_up(line).newest_version == version


def test_the_oldest_wording_of_a_start_decides_and_an_earlier_start_does_not():
    new = "GPU KV cache size: 1,024 tokens\nMaximum concurrency for 4,096 tokens per request: 0.25x\n"
    old = "# GPU blocks: 5691, # CPU blocks: 2048\n"
    assert read_start_up("Available KV cache memory: 13.10 GiB\n" + new).newest_version == "0.13"
    assert read_start_up(old + "Available KV cache memory: 1.15 GiB\n" + new).newest_version == "0.27"


@pytest.mark.parametrize(
    ("layers", "text", "asked", "blocks", "unit"),
    [
        ("32x(kv=8,head=128)", "# GPU blocks: 6487, # CPU blocks: 4096\n", {"tp": 2}, 6487, 2**20),
        ("32x(kv=32,head=128)", "# GPU blocks: 7449, # CPU blocks: 512\n", {}, 7449, 2**23),
        ("80x(kv=8,head=128)", "# GPU blocks: 1381\n", {}, 1381, 5 * 2**20),
        ("48x(kv=8,head=128)", "GPU KV cache size: 81,536 tokens\n", {"tp": 2}, 5096, 3 * 2**19),
    ],
)
def test_printed_blocks_and_tokens_give_the_bytes_they_take(layers, text, asked, blocks, unit):
    check, memory = derive(layers, text, max_model_len=2048, **asked)
    assert (check.follows, check.blocks) == (True, blocks)
    assert (memory.low_bytes, memory.high_bytes) == (blocks * unit, (blocks + 1) * unit - 1)
    assert memory.accuracy is Accuracy.DERIVED


def test_groups_share_the_blocks_in_older_releases_and_the_concurrency_fixes_them():
    """Four groups of 784 tokens: 371 x 4 to 371 x 4 + 3 blocks print the same tokens, the concurrency one of them."""
    text = "GPU KV cache size: 290,864 tokens\nMaximum concurrency for 32,768 tokens per request: 33.04x\n"
    check, memory = derive("qwen3.5-27b", text, version="0.19", max_num_seqs=16)
    assert check.blocks == 1487
    assert memory.high_bytes // (memory.high_bytes - memory.low_bytes + 1) == 1487
    several, wider = derive("qwen3.5-27b", "GPU KV cache size: 290,864 tokens\n", version="0.19", max_model_len=32_768)
    assert "1484 to 1487 blocks" in several.explanation
    assert wider.low_bytes < memory.low_bytes
    assert wider.high_bytes == memory.high_bytes


def test_a_rounded_concurrency_alone_leaves_an_interval_of_blocks():
    check, memory = derive("llama-3.1-8b", "Maximum concurrency for 131,072 tokens per request: 1.08x\n")
    assert check.predicted_tokens == (140_912, 142_208)
    assert memory.low_bytes == 140_912 * 2**17


def test_figures_that_no_block_count_gives_name_the_setting_that_would():
    text = "GPU KV cache size: 159,448 tokens\nMaximum concurrency for 131,072 tokens per request: 1.22x\n"
    with pytest.raises(SourceError, match="no number of blocks gives 159,448 printed tokens") as caught:
        derive("qwen3.5-27b", text, version="0.24", kv_dtype="fp8", prefix_caching=True)
    assert "the model's own draft proposes 3 tokens" in str(caught.value)


def test_the_longest_length_of_an_error_is_compared_too():
    """5,632 is 22 blocks of 256 tokens; blocks of 16 would give 5,760 tokens and more."""
    text = (
        "To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (0.71 GiB). Based on the available memory, the estimated maximum "
        "model length is 5632."
    )
    log = read_start_up(text)
    found = check_start_up(find_model("llama-3.1-8b"), settle(log), log)
    assert not found.follows
    assert "5,760 to 5,856 tokens fit at most" in found.explanation
    assert found.explanation.endswith("it follows if a block has 256 tokens")
    assert check_start_up(find_model("llama-3.1-8b"), settle(log, block_tokens=256), log).follows


def test_an_error_of_a_pipeline_names_the_releases_that_refuse_what_fits():
    text = (
        "To serve at least one request with the models's max seq len (202752), (71.16 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (28.57 GiB). Based on the available memory, the estimated maximum "
        "model length is 81392."
    )
    log = read_start_up(text)
    found = check_start_up(model("92x(kv=8,head=128)"), settle(log, pp=8), log)
    assert found.explanation.endswith("it follows if the version is 0.14 to 0.16")
    assert check_start_up(model("92x(kv=8,head=128)"), settle(log, pp=8, version="0.14"), log).follows
