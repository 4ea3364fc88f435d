"""The groups of a model as the replay takes them."""

import pytest

from kvledger.engines.plan import Deployment
from kvledger.engines.vllm.block_groups import group_blocks
from kvledger.errors import ModelError
from kvledger.model.catalogue import catalogue, find_model
from kvledger.model.layers import CompressedCache, CrossAttentionCache
from kvledger.model.reader import read_config
from kvledger.model.storage import Windows
from kvledger.pool.groups import GroupKind

GEMMA = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "num_hidden_layers": 6,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "torch_dtype": "float16",
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
}


def groups_of(model, block=32):
    return group_blocks(
        model, Deployment(engine="vllm", version="0.32.0", block_tokens=block, max_model_len=2048, prefix_caching=True)
    )


def test_four_sliding_and_two_full_layers_are_three_groups_of_two():
    """Two layers, keys and values, 1 head of 32 in 2 bytes: 256 bytes a token, 8,192 a block of 32."""
    groups = groups_of(read_config(GEMMA, name="gemma"))
    kinds = [(group.kind, group.span_tokens, group.block_tokens, group.payload_bytes) for group in groups.groups]
    assert kinds == [(GroupKind.WINDOW, 128, 32, 8192)] * 2 + [(GroupKind.FULL, 0, 32, 8192)]
    assert (groups.block_bytes, groups.token_bytes) == (8192, 768)


def test_a_padded_group_holds_less_than_its_block():
    """Five sliding layers in groups of 3 (2 full layers: 5 >= 1.5 x 2, so groups of 2, the last with one layer)."""
    config = {**GEMMA, "num_hidden_layers": 7, "layer_types": ["sliding_attention"] * 5 + ["full_attention"] * 2}
    groups = groups_of(read_config(config, name="gemma"))
    assert [group.payload_bytes for group in groups.groups] == [8192, 8192, 4096, 8192]
    assert groups.block_bytes == 8192


def replayable(name):
    caches = [layer.cache for layer in find_model(name).layers]
    return not any(isinstance(cache, CompressedCache | CrossAttentionCache) for cache in caches)


@pytest.mark.parametrize("name", [name for name in catalogue() if replayable(name)])
def test_the_groups_of_every_model_keep_all_of_its_bytes(name):
    model = find_model(name)
    groups = groups_of(model, block=16)
    assert groups.token_bytes == model.bytes_per_token(windows=Windows.FULL)
    groups.check_prefix_caching()


def test_states_stay_in_one_block_without_a_prefix_cache():
    groups = groups_of(find_model("lfm2-1.2b"), block=16)
    states = [group for group in groups.uncached().groups if group.kind is GroupKind.STATE]
    assert len(states) == 2
    assert all(group.most_blocks(10**6, in_flight_tokens=1, max_model_len=10**6) == 1 for group in states)


def test_a_model_with_an_encoder_is_refused():
    with pytest.raises(ModelError, match="layers of kind `cross` are not replayed"):
        groups_of(find_model("whisper-large-v3"))
