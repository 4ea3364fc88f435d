"""The reader's rules: nesting, class defaults, refusals, drafts, provenance."""

import pytest

from kvledger.errors import ModelError
from kvledger.ledger import Accuracy
from kvledger.model import AttentionCache, CrossAttentionCache, LatentCache, NoCache, Role, StateCache, StateKind
from kvledger.model.reader import read_config
from tests.model.test_reader_known_models import DELTA, MLA, llama


def refused(config, *expected):
    with pytest.raises(ModelError) as caught:
        read_config(config)
    for text in expected:
        assert text in caught.value.message
    assert "by hand" in (caught.value.hint or "")
    return caught.value


@pytest.mark.parametrize(
    "path", [("text_config",), ("llm_config",), ("language_config",), ("thinker_config", "text_config")]
)
def test_the_decoder_is_found_where_multimodal_configs_nest_it(path):
    config = llama(32, 4096, 32, 8)
    for step in reversed(path):
        config = {"model_type": "some_vl", step: config, "vision_config": {"window_size": 7, "num_hidden_layers": 3}}
    spec = read_config(config)
    assert (spec.model_type, spec.bytes_per_token()) == ("some_vl", 131_072)


def test_fields_missing_from_a_nested_config_come_from_its_class():
    """Gemma-3-4B's text_config omits heads and head size: 4 KV heads of 256 by class default."""
    spec = read_config(
        {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 2560,
                "num_hidden_layers": 34,
                "sliding_window": 1024,
            },
        }
    )
    assert spec.bytes_per_token() == 5 * 2 * 4 * 256 * 2
    assert "num_key_value_heads = 4 from class default of gemma3_text" in spec.origins()


@pytest.mark.parametrize(
    ("outer", "section", "expected"),
    [
        ("llava", {}, 2 * 32 * 32 * 128 * 2),  # a Llama of class defaults
        ("gemma3", {"num_hidden_layers": 12}, 2 * 2 * 4 * 256 * 2),
        ("llama4", {"num_hidden_layers": 8}, 2 * 2 * 8 * 128 * 2),
    ],
)
def test_a_nested_config_without_a_type_takes_that_of_its_family(outer, section, expected):
    assert read_config({"model_type": outer, "text_config": section}).bytes_per_token() == expected


def test_an_explicit_null_beats_the_class_default():
    assert read_config(llama(32, 4096, 32, 8, "mistral", sliding_window=None)).bytes_per_token() == 131_072


def test_mistral_without_a_window_field_has_the_window_of_its_class():
    spec = read_config(llama(32, 4096, 32, 8, "mistral"))
    assert {layer.cache.window_tokens for layer in spec.layers} == {4096}


def test_qwen_layers_slide_only_from_max_window_layers_on():
    config = llama(28, 3584, 28, 4, "qwen2", use_sliding_window=True, sliding_window=4096, max_window_layers=20)
    windows = [layer.cache.window_tokens for layer in read_config(config).layers]
    assert windows == [None] * 20 + [4096] * 8


def test_qwen_without_use_sliding_window_ignores_the_listed_layer_types():
    config = llama(
        2, 64, 2, 2, "qwen2", use_sliding_window=False, sliding_window=4, layer_types=["sliding_attention"] * 2
    )
    assert [layer.cache.window_tokens for layer in read_config(config).layers] == [None, None]


def test_listed_layer_types_beat_the_rule_of_the_family():
    config = llama(
        3,
        64,
        2,
        2,
        "gemma2",
        sliding_window=8,
        layer_types=["full_attention", "full_attention", "sliding_attention"],
        head_dim=32,
    )
    assert [layer.cache.window_tokens for layer in read_config(config).layers] == [None, None, 8]


def test_exaone_reads_its_pattern_as_letters_and_ends_full():
    config = llama(6, 64, 2, 2, "exaone4", sliding_window=8, sliding_window_pattern="LLLG")
    assert [layer.cache.window_tokens for layer in read_config(config).layers] == [8, 8, 8, None, 8, None]


def test_exaone_reads_its_pattern_as_a_period():
    config = llama(4, 64, 2, 2, "exaone4", sliding_window=8, sliding_window_pattern=2)
    assert [layer.cache.window_tokens for layer in read_config(config).layers] == [8, None, 8, None]


def test_exaone_without_a_window_is_full():
    config = llama(2, 64, 2, 2, "exaone4", sliding_window=None, sliding_window_pattern="LLLG")
    assert [layer.cache.window_tokens for layer in read_config(config).layers] == [None, None]


def test_exaone_with_other_letters_is_refused():
    refused(llama(2, 64, 2, 2, "exaone4", sliding_window=8, sliding_window_pattern="LX"), "is not made of L and G")


def test_step_gives_sliding_layers_their_own_heads():
    config = llama(
        2,
        4096,
        64,
        8,
        "step3p5",
        head_dim=128,
        sliding_window=512,
        layer_types=["full_attention", "sliding_attention"],
        attention_other_setting={
            "attention_type": "sliding_attention",
            "num_attention_heads": 96,
            "num_attention_groups": 4,
            "head_dim": 64,
        },
    )
    full, sliding = (layer.cache for layer in read_config(config).layers)
    assert (full.kv_heads, full.key_size) == (8, 128)
    assert (sliding.kv_heads, sliding.key_size, sliding.window_tokens) == (4, 64, 512)


def test_another_attention_setting_of_unknown_kind_is_refused():
    config = llama(1, 64, 2, 2, "step3p5", sliding_window=4, layer_types=["sliding_attention"])
    refused(config | {"attention_other_setting": {"attention_type": "odd"}}, "attention_other_setting.attention_type")


def test_per_layer_config_overrides_single_layers():
    config = llama(
        3,
        64,
        2,
        2,
        "gemma4_text",
        head_dim=32,
        sliding_window=8,
        per_layer_config={"2": {"head_dim": 64, "num_key_value_heads": 1}, "01": {"sliding_window": 4}, "0": None},
    )
    one, two, three = (layer.cache for layer in read_config(config).layers)
    assert (one.window_tokens, two.window_tokens) == (8, 4)
    assert three == AttentionCache(kv_heads=1, key_size=64, value_size=64, window_tokens=8)


def test_a_per_layer_override_that_is_not_known_is_refused():
    refused(llama(1, 64, 2, 2, per_layer_config={"0": {"compress": 2}}), "per_layer_config.0.compress")


def test_a_per_layer_override_of_no_layer_is_refused():
    refused(llama(1, 64, 2, 2, per_layer_config={"9": {"head_dim": 2}}), "is not the number of one of 1 layer")


def test_shared_layers_without_an_earlier_layer_of_their_kind_are_refused():
    config = llama(
        2,
        64,
        2,
        2,
        "gemma3n_text",
        sliding_window=8,
        num_kv_shared_layers=1,
        layer_types=["full_attention", "sliding_attention"],
    )
    refused(config, "leaves layer 1 no earlier sliding layer")


def test_llama_4_without_chunks_is_full():
    config = llama(4, 64, 2, 2, "llama4_text", attention_chunk_size=None, no_rope_layers=[1, 1, 1, 0])
    assert {layer.cache.chunk_tokens for layer in read_config(config).layers} == {None}


def test_llama_4_layers_without_positions_are_full():
    config = llama(3, 64, 2, 2, "llama4_text", attention_chunk_size=8, no_rope_layers=[1, 0, 1])
    assert [layer.cache.chunk_tokens for layer in read_config(config).layers] == [8, None, 8]


def test_llama_4_flags_of_another_length_are_refused():
    refused(llama(3, 64, 2, 2, "llama4_text", attention_chunk_size=8, no_rope_layers=[1]), "no_rope_layers")


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({"model_type": "falcon", "multi_query": False, "num_kv_heads": 3}, 8),
        ({"model_type": "gpt_bigcode", "multi_query": True}, 1),
        ({"model_type": "gpt_bigcode", "multi_query": False}, 8),
        ({"model_type": "chatglm", "multi_query_attention": True, "multi_query_group_num": 2}, 2),
        ({"model_type": "chatglm", "multi_query_attention": False, "multi_query_group_num": 2}, 8),
        ({"model_type": "dbrx", "attn_config": {"kv_n_heads": 4}}, 4),
        ({"model_type": "mpt", "attn_config": {"attn_type": "multiquery_attention"}}, 1),
        ({"model_type": "mpt"}, 8),
    ],
)
def test_kv_heads_follow_the_rule_of_each_family(config, heads):
    spec = read_config({"num_hidden_layers": 2, "hidden_size": 512, "num_attention_heads": 8, **config})
    assert [layer.cache.kv_heads for layer in spec.layers] == [heads, heads]


def test_a_window_of_mpt_is_refused():
    refused(llama(1, 64, 2, 2, "mpt", attn_config={"sliding_window_size": 8}), "attn_config.sliding_window_size")


def test_minimax_m3_adds_index_keys_to_its_sparse_layers():
    """4 x 256 x 2 + 128 x 2 bytes in the sparse layer."""
    config = llama(2, 6144, 64, 4, "minimax_m3", head_dim=128)
    config["sparse_attention_config"] = {"sparse_attention_freq": [0, 1], "sparse_index_dim": 128}
    assert read_config(config).layer_bytes(1) == (2048, 2304)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sparse_attention_config": {"use_sparse_attention": False}}, (2048, 2048)),
        ({"layer_types": ["full_attention", "minimax_m3_sparse"]}, (2048, 2304)),
    ],
)
def test_minimax_m3_may_list_or_switch_off_its_sparse_layers(changes, expected):
    assert read_config(llama(2, 6144, 64, 4, "minimax_m3", head_dim=128) | changes).layer_bytes(1) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "sparse_attention_freq"),
        ({"layer_types": ["full_attention", "odd"]}, "names a layer MiniMax-M3 does not have"),
        (
            {"sparse_attention_config": {"sparse_attention_freq": [0, 1], "sparse_disable_index_value": [0, 0]}},
            "asks for index values",
        ),
    ],
)
def test_a_minimax_m3_that_is_not_understood_is_refused(changes, message):
    refused(llama(2, 6144, 64, 4, "minimax_m3", head_dim=128) | changes, message)


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        ({"no_op": False, "n_heads_in_group": 3}, "does not divide 8 query heads"),
        ({"no_op": False, "n_heads_in_group": 2, "window_length": 8}, "is a kind of block"),
        ({"no_op": False}, "n_heads_in_group"),
    ],
)
def test_a_nas_block_that_is_not_understood_is_refused(attention, message):
    refused(llama(1, 512, 8, None, "nemotron-nas", block_configs=[{"attention": attention}]), message)


def test_a_nas_block_without_attention_is_refused():
    refused(llama(1, 512, 8, None, "nemotron-nas", block_configs=[{}]), "attention")


def test_a_nas_model_may_replace_attention_or_state_its_heads():
    blocks = [{"attention": {"replace_with_linear": True}}, {"attention": {"num_key_value_heads": 2}}]
    one, two = (
        layer.cache for layer in read_config(llama(2, 512, 8, None, "nemotron-nas", block_configs=blocks)).layers
    )
    assert one == NoCache(reason="replace_with_linear")
    assert two.kv_heads == 2


def test_a_nas_model_with_too_few_blocks_is_refused():
    refused(llama(3, 512, 8, None, "nemotron-nas", block_configs=[]), "does not describe 3 layers")


def test_an_indexer_pattern_may_be_letters():
    config = llama(4, 64, 2, 2, "glm_moe_dsa", index_head_dim=128, index_topk_pattern="FSSF", **MLA)
    shares = [layer.cache.indexer.shares_with for layer in read_config(config).layers]
    assert shares == [None, 0, 0, None]


@pytest.mark.parametrize("types", [["shared", "full"], ["full"], ["full", "odd"]])
def test_indexer_types_that_do_not_fit_are_refused(types):
    refused(llama(2, 64, 2, 2, "glm_moe_dsa", index_head_dim=128, indexer_types=types, **MLA), "indexer_types")


@pytest.mark.parametrize(
    ("kinds", "message"),
    [(["full_attention"], "is not a list of 2 MLA layers"), (["full_attention"] * 2, "without indexer beside")],
)
def test_layer_types_that_contradict_mla_are_refused(kinds, message):
    refused(llama(2, 64, 2, 2, "deepseek_v32", index_head_dim=128, layer_types=kinds, **MLA), message)


def test_longcat_has_two_mla_layers_in_a_block():
    spec = read_config(llama(3, 64, 2, 2, "longcat_flash", **MLA))
    assert (len(spec.layers), spec.block_count, spec.bytes_per_token()) == (6, 3, 6 * 1152)


def test_mla_without_full_head_sizes_cannot_be_expanded():
    spec = read_config(llama(1, 64, 2, 2, "kimi_k2", kv_lora_rank=512, qk_rope_head_dim=64))
    assert spec.layers[0].cache == LatentCache(latent_size=512, rope_size=64)


@pytest.mark.parametrize(
    ("model_type", "count"),
    [("deepseek_v3", {"num_nextn_predict_layers": 2, **MLA}), ("glm4_moe", {"num_nextn_predict_layers": 2})],
)
def test_next_token_layers_are_kept_apart_and_look_like_the_main_ones(model_type, count):
    spec = read_config(llama(4, 64, 2, 2, model_type, **count))
    assert [layer.index for layer in spec.draft_layers] == [4, 5]
    assert {layer.role for layer in spec.draft_layers} == {Role.DRAFT}
    assert spec.draft_bytes(10) * 2 == spec.sequence_bytes(10)


def test_nemotron_draft_blocks_follow_their_own_pattern():
    config = llama(2, 64, 2, 2, "nemotron_h", hybrid_override_pattern="*-", mtp_hybrid_override_pattern="*E")
    spec = read_config(config | {"num_nextn_predict_layers": 1, "head_dim": 32})
    assert [type(layer.cache) for layer in spec.draft_layers] == [AttentionCache, NoCache]
    assert [layer.index for layer in spec.draft_layers] == [2, 3]


def test_nemotron_takes_the_number_of_layers_from_its_pattern():
    config = {"model_type": "nemotron_h", "layers_block_type": ["mamba", "moe", "attention", "mlp"], "hidden_size": 64}
    assert read_config(config | {"num_attention_heads": 2, "head_dim": 32}).block_count == 4


def test_a_nemotron_pattern_of_other_letters_is_refused():
    refused(llama(2, 64, 2, 2, "nemotron_h", hybrid_override_pattern="MX"), "letters other than M * - E")


def test_nemotron_without_a_pattern_is_refused():
    refused(llama(2, 64, 2, 2, "nemotron_h"), "layers_block_type")


def test_nemotron_with_endless_blocks_is_refused():
    refused(llama(2, 64, 2, 2, "nemotron_h", hybrid_override_pattern="M" * 5000), "more than 4096")


def test_minimax_text_reads_its_attention_list():
    config = llama(3, 512, 4, 2, "minimax_text_01", head_dim=128, attn_type_list=[0, 0, 1])
    kinds = [type(layer.cache) for layer in read_config(config).layers]
    assert kinds == [StateCache, StateCache, AttentionCache]


def test_minimax_text_without_a_list_is_refused():
    refused(llama(3, 512, 4, 2, "minimax_text_01", attn_type_list=[0]), "attn_type_list")


def test_minimax_m2_with_linear_layers_is_refused():
    refused(llama(2, 512, 4, 2, "minimax_m2", head_dim=128, attn_type_list=[0, 1]), "attn_type_list")


@pytest.mark.parametrize("changes", [{"full_attn_idxs": [1]}, {"layer_types": ["conv", "full_attention"]}])
def test_lfm2_names_its_attention_layers(changes):
    spec = read_config(llama(2, 2048, 32, 8, "lfm2", conv_L_cache=3, **changes))
    assert spec.layer_bytes(1) == (8192, 2 * 8 * 64 * 2)


def test_lfm2_that_names_no_attention_layers_is_refused():
    refused(llama(2, 2048, 32, 8, "lfm2"), "full_attn_idxs")


def test_falcon_h1_keeps_attention_and_state_in_each_block():
    config = llama(2, 3072, 12, 2, "falcon_h1", head_dim=128, mamba_d_ssm=3072, mamba_n_heads=24, mamba_d_head=128)
    spec = read_config(config | {"mamba_d_state": 256, "mamba_n_groups": 1, "mamba_d_conv": 4})
    assert [layer.index for layer in spec.layers] == [0, 0, 1, 1]
    assert spec.fixed_bytes_per_sequence() == 2 * (3 * (3072 + 512) * 2 + 24 * 128 * 256 * 2)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {
                "model_type": "mamba",
                "hidden_size": 768,
                "num_hidden_layers": 1,
                "state_size": 16,
                "intermediate_size": 1536,
            },
            1536 * 3 * 2 + 1536 * 16 * 2,
        ),
        (
            {
                "model_type": "mamba2",
                "hidden_size": 512,
                "num_hidden_layers": 1,
                "num_heads": 16,
                "head_dim": 64,
                "n_groups": 1,
            },
            3 * (1024 + 256) * 2 + 16 * 64 * 128 * 2,
        ),
        (
            {
                "model_type": "falcon_mamba",
                "hidden_size": 64,
                "num_hidden_layers": 1,
                "state_size": 8,
                "conv_kernel": 4,
            },
            128 * 22,
        ),
    ],
)
def test_pure_state_models_keep_nothing_a_token(config, expected):
    spec = read_config(config)
    assert (spec.bytes_per_token(), spec.fixed_bytes_per_sequence()) == (0, expected)


def test_a_mamba_head_size_follows_from_the_inner_width():
    config = llama(
        1, 64, 2, 2, "bamba", layers_block_type=["mamba"], mamba_n_heads=4, mamba_d_head="auto", mamba_d_state=8
    )
    assert read_config(config).layers[0].cache.tensors[1].shape() == (4, 32, 8)


def test_mamba_heads_that_do_not_divide_the_inner_width_are_refused():
    config = llama(1, 64, 2, 2, "bamba", layers_block_type=["mamba"], mamba_n_heads=3, mamba_d_state=8)
    refused(config, "does not divide the inner width 128")


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [({"attn_layer_indices": [1]}, [StateCache, AttentionCache])],
)
def test_bamba_names_its_attention_layers(changes, kinds):
    config = llama(2, 64, 2, 2, "bamba", mamba_n_heads=4, mamba_d_state=8, **changes)
    assert [type(layer.cache) for layer in read_config(config).layers] == kinds


def test_bamba_that_names_no_attention_layers_is_refused():
    refused(llama(2, 64, 2, 2, "bamba", mamba_n_heads=4, mamba_d_state=8), "attn_layer_indices")


def test_jamba_may_list_its_layers():
    config = llama(2, 64, 2, 2, "jamba", layers_block_type=["attention", "mamba"])
    assert [type(layer.cache) for layer in read_config(config).layers] == [AttentionCache, StateCache]


def test_jamba_without_a_period_is_refused():
    refused(llama(2, 64, 2, 2, "jamba", attn_layer_period=None), "attn_layer_period")


def test_kimi_linear_layers_that_do_not_cover_the_model_are_refused():
    config = llama(
        3, 64, 2, 2, "kimi_linear", linear_attn_config={"full_attn_layers": [1], "kda_layers": [1, 2]}, **MLA
    )
    refused(config, "do not cover 3 layers once")


def test_kimi_linear_may_list_layer_types_and_flat_sizes():
    config = llama(2, 64, 4, 4, "kimi_linear", layer_types=["linear_attention", "full_attention"], **MLA)
    spec = read_config(config | {"linear_head_dim": 16, "linear_num_heads": 4, "linear_conv_kernel_dim": 4})
    assert spec.layer_bytes(1) == (3 * 3 * 64 * 2 + 4 * 16 * 16 * 4, 1152)


def test_kimi_linear_without_its_layers_is_refused():
    refused(llama(2, 64, 4, 4, "kimi_linear", **MLA), "linear_attn_config")


def test_ling_ends_each_group_with_full_attention():
    lightning = llama(4, 512, 4, 2, "bailing_moe_linear", head_dim=128, layer_group_size=2)
    spec = read_config(lightning)
    assert [type(layer.cache) for layer in spec.layers] == [StateCache, AttentionCache] * 2
    assert spec.layers[0].cache.kind is StateKind.LIGHTNING


def test_ling_3_uses_mla_and_delta_attention():
    config = llama(6, 512, 4, 4, "bailing_hybrid", head_dim=128, layer_group_size=6, short_conv_kernel_size=4, **MLA)
    spec = read_config(config)
    assert isinstance(spec.layers[5].cache, LatentCache)
    assert spec.layers[0].cache.kind is StateKind.KDA


def test_ling_without_a_group_size_is_refused():
    refused(llama(4, 512, 4, 2, "bailing_moe_linear", head_dim=128), "layer_group_size")


def test_a_delta_net_without_an_interval_uses_the_rule_of_its_class():
    config = llama(4, 64, 2, 2, "qwen3_next", linear_num_value_heads=32, **DELTA)
    del config["full_attention_interval"]
    assert [type(layer.cache) for layer in read_config(config).layers] == [StateCache] * 3 + [AttentionCache]


def test_a_hybrid_layer_of_unknown_kind_is_refused():
    config = llama(1, 64, 2, 2, "qwen3_next", layer_types=["odd"], linear_num_value_heads=2, **DELTA)
    refused(config, "`odd` is not a layer of `qwen3_next`")


def test_hybrid_layer_types_of_another_length_are_refused():
    refused(llama(2, 64, 2, 2, "qwen3_next", layer_types=["full_attention"]), "lists 1 layer, the model has 2")


@pytest.mark.parametrize(("dtype", "message"), [("float7", "is not a dtype kvledger knows"), (7, "is not a text")])
def test_a_state_dtype_that_is_not_known_is_refused(dtype, message):
    config = llama(1, 64, 2, 2, "qwen3_next", layer_types=["linear_attention"], linear_num_value_heads=2, **DELTA)
    refused(config | {"mamba_ssm_dtype": dtype}, message)


def test_bart_attends_to_its_encoder():
    config = {"model_type": "bart", "d_model": 1024, "decoder_layers": 12, "decoder_attention_heads": 16}
    spec = read_config(config | {"max_position_embeddings": 1024, "encoder_layers": 12})
    assert [layer.role for layer in spec.layers[:2]] == [Role.MAIN, Role.CROSS]
    assert (spec.bytes_per_token(), spec.fixed_bytes_per_sequence()) == (49_152, 49_152 * 1024)


def test_an_encoder_decoder_width_that_its_heads_do_not_divide_is_refused():
    refused({"model_type": "bart", "d_model": 10, "decoder_layers": 1, "decoder_attention_heads": 3}, "d_model 10")


def test_t5_says_that_its_encoder_length_is_only_what_it_was_trained_on():
    spec = read_config({"model_type": "t5", "num_layers": 6, "num_heads": 8, "d_kv": 64, "d_model": 512})
    assert spec.fixed_bytes_per_sequence() == 512 * spec.bytes_per_token() == 512 * 2 * 6 * 8 * 64 * 2
    assert "512 tokens" in spec.notes[0]


def test_llama_3_2_vision_attends_to_image_tokens():
    """4 tiles of (560 / 14)**2 + 1 tokens."""
    text = llama(4, 4096, 32, 8, "mllama_text_model", cross_attention_layers=[1])
    vision = {"image_size": 560, "patch_size": 14, "max_num_tiles": 4}
    spec = read_config({"model_type": "mllama", "text_config": text, "vision_config": vision})
    assert isinstance(spec.layers[1].cache, CrossAttentionCache)
    assert spec.fixed_bytes_per_sequence() == 4 * 1601 * 4096


@pytest.mark.parametrize("changes", [{}, {"cross_attention_layers": [0]}])
def test_llama_3_2_vision_without_layers_or_vision_is_refused(changes):
    text = llama(4, 4096, 32, 8, "mllama_text_model", **changes)
    refused({"model_type": "mllama", "text_config": text}, "the config has no")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compress_ratios": None}, "compress_ratios"),
        ({"compress_ratios": [4]}, "is not 0, 4 or 128"),
        ({"compress_ratios": [0, 7]}, "is not 0, 4 or 128"),
        ({"layer_types": ["odd", "odd"]}, "is not a layer of DeepSeek-V4"),
        ({"compress_ratios": [0, 4], "num_key_value_heads": 2}, "is not 1"),
    ],
)
def test_a_deepseek_v4_that_is_not_understood_is_refused(changes, message):
    config = llama(2, 64, 2, 1, "deepseek_v4", num_nextn_predict_layers=0, qk_rope_head_dim=64)
    refused(config | changes, message)


def test_deepseek_v4_may_list_layer_types():
    kinds = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
    spec = read_config(
        llama(3, 64, 2, 1, "deepseek_v4", layer_types=kinds, num_nextn_predict_layers=1, qk_rope_head_dim=64)
    )
    assert [layer.cache.ratio for layer in (*spec.layers, *spec.draft_layers)] == [0, 4, 128, 0]


def test_an_unknown_type_with_plain_attention_is_answered_with_a_note():
    spec = read_config(llama(2, 64, 2, 1, "brand_new", rope_theta=1e4, attention_bias=False, vocab_size=100))
    assert spec.bytes_per_token() == 2 * 2 * 1 * 32 * 2
    assert "`brand_new` is not known" in spec.notes[0]


@pytest.mark.parametrize(
    "field",
    [
        {"sliding_window": 4096},
        {"attention_chunk_size": 8192},
        {"mamba_d_state": 16},
        {"ssm_cfg": {"d_state": 16}},
        {"linear_attn_config": {"heads": 2}},
        {"kv_lora_rank": 512},
        {"index_head_dim": 128},
        {"compress_ratios": [4, 128]},
        {"layer_types_v2": ["full", "state"], "state_layers": [1]},
        {"num_kv_shared_layers": 3, "share_kv": True},
        {"conv_kernel_size": 4},
        {"decoder_block": {"recurrent_kind": "rwkv"}},
        {"cross_attention_layers": [1]},
        {"global_attn_every_n_layers": 4},
    ],
)
@pytest.mark.parametrize("model_type", ["brand_new", "llama"])
def test_a_field_that_could_change_the_cache_is_never_overlooked(model_type, field):
    caught = None
    try:
        read_config(llama(4, 64, 2, 2, model_type, vocab_size=100, **field))
    except ModelError as error:
        caught = error
    assert caught is not None
    assert any(name in caught.message for name in field) or "decoder_block.recurrent_kind" in caught.message


@pytest.mark.parametrize("value", [None, False, 0, [], {}, "", [0, 0]])
def test_a_field_that_is_switched_off_is_not_refused(value):
    assert read_config(llama(2, 64, 2, 1, "brand_new", vocab_size=100, special_window=value)).block_count == 2


def test_an_unknown_type_without_heads_is_refused_with_the_nearest_name():
    refused({"model_type": "lama", "hidden_size": 3}, "the model_type `lama` is not known", "did you mean `llama`")


def test_a_config_without_a_type_is_refused():
    refused({"hidden_size": 3}, "no model_type is given")


def test_a_well_known_architecture_is_read_under_another_type():
    config = llama(2, 64, 2, 2, "deepseek_ref", architectures=["DeepseekV3ForCausalLM"], **MLA)
    assert read_config(config).bytes_per_token() == 2 * 1152


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (llama(None, 64, 2, 2), "layer_types"),
        ({"model_type": "internlm2", "num_hidden_layers": 2, "hidden_size": 64}, "num_attention_heads"),
        ({"model_type": "internlm2", "num_hidden_layers": 2, "num_attention_heads": 2}, "hidden_size"),
    ],
)
def test_a_missing_field_is_named(config, message):
    with pytest.raises(ModelError, match="the config has no"):
        read_config(config)


def test_a_hidden_size_that_heads_do_not_divide_is_refused():
    refused(llama(2, 65, 2, 2), "hidden_size 65 is no multiple of 2")


def test_layer_types_of_another_length_are_refused():
    refused(llama(2, 64, 2, 2, "gemma2", layer_types=["full_attention"]), "lists 1 layer, the model has 2")


def test_an_unknown_layer_type_is_refused():
    refused(llama(1, 64, 2, 2, layer_types=["wavelet"]), "`wavelet` is not an attention layer")


def test_a_sliding_layer_without_a_window_is_refused():
    refused(llama(1, 64, 2, 2, layer_types=["sliding_attention"]), "sliding_window")


@pytest.mark.parametrize("pattern", [None, [0]])
def test_a_hybrid_pattern_that_does_not_fit_is_refused(pattern):
    refused(llama(2, 64, 2, 2, "mimo_v2_flash", hybrid_layer_pattern=pattern, sliding_window=8), "does not describe 2")


def test_a_chunk_beside_another_window_is_refused():
    config = llama(2, 64, 2, 2, "mimo_v2_flash", hybrid_layer_pattern=[0, 1], sliding_window=8, attention_chunk_size=9)
    refused(config, "is not the sliding window")


def test_heads_of_the_swa_part_default_to_those_of_the_model():
    config = llama(2, 64, 2, 2, "mimo_v2_flash", hybrid_layer_pattern=[0, 1], sliding_window=8, head_dim=32)
    full, sliding = (layer.cache for layer in read_config(config | {"v_head_dim": 16}).layers)
    assert (sliding.kv_heads, sliding.key_size, sliding.value_size) == (full.kv_heads, 32, 16)


def test_values_of_the_swa_part_follow_its_own_keys():
    config = llama(2, 64, 2, 2, "mimo_v2_flash", hybrid_layer_pattern=[0, 1], sliding_window=8, head_dim=32)
    assert read_config(config | {"swa_head_dim": 8}).layers[1].cache.value_size == 8


def test_every_derived_value_says_where_it_came_from():
    origins = list(read_config(llama(32, 4096, 32, 8)).origins())
    assert "num_hidden_layers = 32 from num_hidden_layers" in origins
    assert "head_size = 128 from hidden_size / num_attention_heads = 4096 / 32" in origins
    assert "dtype = `bfloat16` from torch_dtype = bfloat16" in origins


def test_kv_heads_that_no_field_names_are_one_for_each_query_head():
    origins = list(
        read_config(
            {"model_type": "gpt_neox", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2}
        ).origins()
    )
    assert "kv_heads = 2 from one for each query head: the config names no KV heads" in origins


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (llama(1, 64, 2, 2, _name_or_path="org/my-model/"), "my-model"),
        (llama(1, 64, 2, 2), "llama"),
        ({"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2, "vocab_size": 9}, "model"),
    ],
)
def test_a_model_is_called_by_its_own_name_or_type(config, name):
    assert read_config(config).name == name


def test_an_unusable_side_fact_is_left_out():
    spec = read_config(llama(1, 64, 2, 2, vocab_size="many"))
    assert spec.vocabulary_size is None


@pytest.mark.parametrize(
    ("changes", "count", "active"),
    [
        ({"intermediate_size": 14336, "vocab_size": 128256}, 8.03e9, 8.03e9),
        (
            {"intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2},
            46.7e9,
            12.9e9,
        ),
    ],
)
def test_parameters_are_estimated_within_one_percent(changes, count, active):
    """Llama-3-8B has 8.03 B, Mixtral-8x7B 46.7 B of which 12.9 B work on a token."""
    found = read_config(llama(32, 4096, 32, 8, **changes)).parameters
    assert found.accuracy is Accuracy.MODELLED
    assert found.count == pytest.approx(count, rel=0.01)
    assert found.active == pytest.approx(active, rel=0.01)


def test_parameters_of_deepseek_v3_are_estimated_within_one_percent():
    """671 B, of which 37 B work on a token."""
    config = llama(
        61, 7168, 128, 128, "deepseek_v3", q_lora_rank=1536, vocab_size=129280, intermediate_size=18432, **MLA
    )
    config |= {"moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1}
    found = read_config(config | {"num_experts_per_tok": 8, "first_k_dense_replace": 3}).parameters
    assert found.count == pytest.approx(671e9, rel=0.01)
    assert found.active == pytest.approx(37.5e9, rel=0.02)


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab_size": None},
        {"intermediate_size": None},
        {"num_experts": 8, "intermediate_size": 10},
        {"num_experts": 8, "first_k_dense_replace": 1, "intermediate_size": None},
        {"hidden_size_per_layer_input": 256},
        {"vocab_size": "many"},
    ],
)
def test_parameters_are_absent_where_a_part_is_not_known(changes):
    config = {"model_type": "internlm2", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2}
    assert read_config(config | {"vocab_size": 100, "intermediate_size": 10} | changes).parameters is None


def test_parameters_of_state_models_are_absent():
    config = {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1}
    assert read_config(config).parameters is None


def test_a_window_that_is_switched_off_does_not_matter_beside_draft_layers():
    """MiMo-7B: `use_sliding_window` false, whatever `sliding_window` says."""
    config = llama(36, 4096, 32, 8, "mimo", use_sliding_window=False, sliding_window=32768, max_window_layers=32)
    spec = read_config(config | {"num_nextn_predict_layers": 1})
    assert (spec.bytes_per_token(), len(spec.draft_layers)) == (147_456, 1)


def test_listed_expert_layers_decide_where_experts_are():
    """A dense layer of 3 x 64 x 10, and one of 4 experts of 3 x 64 x 10, of which 1 works."""
    config = llama(2, 64, 2, 2, "brand_new", vocab_size=1, intermediate_size=10, num_experts=4, num_experts_per_tok=1)
    found = read_config(config | {"mlp_layer_types": ["dense", "sparse"]}).parameters
    assert found.count - found.active == 3 * 3 * 64 * 10


def test_minimax_text_may_list_layer_types():
    config = llama(2, 512, 4, 2, "minimax", head_dim=128, layer_types=["linear_attention", "full_attention"])
    assert [type(layer.cache) for layer in read_config(config).layers] == [StateCache, AttentionCache]


def test_ling_may_list_layer_types():
    config = llama(2, 512, 4, 2, "bailing_moe_linear", head_dim=128)
    spec = read_config(config | {"layer_types": ["full_attention", "linear_attention"]})
    assert [type(layer.cache) for layer in spec.layers] == [AttentionCache, StateCache]


def test_an_unknown_type_without_a_vocabulary_is_no_language_model():
    refused(llama(2, 64, 2, 1, "brand_new_vision"), "vocab_size")


@pytest.mark.parametrize("model_type", ["bert", "modernbert", "xlm-roberta"])
def test_an_encoder_keeps_nothing(model_type):
    config = llama(12, 768, 12, 12, model_type, local_attention=128, global_attn_every_n_layers=3)
    assert read_config(config).sequence_bytes(512) == 0


def test_dots_slides_from_max_window_layers_on_without_a_switch():
    config = llama(3, 64, 2, 2, "dots1", sliding_window=8, max_window_layers=2)
    assert [layer.cache.window_tokens for layer in read_config(config).layers] == [None, None, 8]


@pytest.mark.parametrize("changes", [{"sliding_window": None, "max_window_layers": 2}, {"sliding_window": 8}])
def test_dots_without_a_window_or_a_first_layer_is_full(changes):
    assert (
        read_config(llama(3, 64, 2, 2, "dots1") | {"max_window_layers": None} | changes).fixed_bytes_per_sequence() == 0
    )


@pytest.mark.parametrize("name", ["sliding_window_pattern", "_sliding_window_pattern"])
def test_gemma_3_may_state_its_pattern(name):
    config = llama(4, 64, 2, 2, "gemma3_text", sliding_window=8, **{name: 2})
    assert [layer.cache.window_tokens for layer in read_config(config).layers] == [8, None, 8, None]


def test_a_saved_config_repeats_its_rule_beside_the_layer_types():
    kinds = ["sliding_attention", "full_attention"]
    config = llama(2, 64, 2, 2, "gemma3_text", sliding_window=8, layer_types=kinds, _sliding_window_pattern=6)
    assert [layer.cache.window_tokens for layer in read_config(config).layers] == [8, None]


def test_a_window_that_no_listed_layer_uses_does_not_matter():
    config = llama(2, 64, 2, 2, sliding_window=8, layer_types=["full_attention"] * 2)
    assert read_config(config).fixed_bytes_per_sequence() == 0


STEP = {
    "head_dim": 128,
    "sliding_window": 512,
    "num_nextn_predict_layers": 2,
    "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_groups": 8, "head_dim": 128},
}


@pytest.mark.parametrize(
    "types",
    [
        {"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]},
        {
            "layer_types": ["full_attention", "sliding_attention"],
            "mtp_layer_types": ["sliding_attention", "full_attention"],
        },
    ],
)
def test_step_lists_its_next_token_layers_after_the_main_ones(types):
    spec = read_config(llama(2, 4096, 64, 8, "step3p5", **STEP, **types))
    assert [layer.cache.window_tokens for layer in spec.layers] == [None, 512]
    assert [(layer.index, layer.cache.window_tokens) for layer in spec.draft_layers] == [(2, 512), (3, None)]


def test_next_token_layers_of_unknown_kind_are_left_out():
    config = llama(2, 64, 2, 2, "step3p5", **STEP, layer_types=["full_attention", "sliding_attention"])
    assert read_config(config).draft_layers == ()


def test_sharing_across_layers_is_refused_unless_it_is_off():
    refused(llama(2, 64, 2, 2, "hunyuan_v1_dense", use_cla=True, cla_share_factor=2), "use_cla", "cla_share_factor")
    assert read_config(llama(2, 64, 2, 2, "hunyuan_v1_dense", use_cla=False, cla_share_factor=2)).block_count == 2


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("bailing_moe_v2", {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}),
        ("ernie4_5", {"compression_ratio": 1.0}),
        ("phi3", {"full_attn_mod": 1, "sliding_window": 262144, "interpolate_factor": 1}),
        ("cohere2", {"order_of_interleaved_layers": "local_attn_first", "layer_switch": 4, "sliding_window": 8}),
        (
            "chatglm",
            {"add_qkv_bias": True, "attention_softmax_in_fp32": True, "kv_channels": 32, "interleaved_qkv": False},
        ),
        ("gpt_bigcode", {"pre_allocate_kv_cache": True, "attention_softmax_in_fp32": True, "pad_key_length": True}),
        ("llama4_text", {"cache_implementation": "hybrid", "no_rope_layers": [], "for_llm_compressor": False}),
        ("qwen", {"use_cache_kernel": True, "use_cache_quantization": False, "use_logn_attn": True, "kv_channels": 32}),
        ("gemma3n_text", {"activation_sparsity_pattern": [0.95, 0.0], "sliding_window": 8, "num_kv_shared_layers": 0}),
        ("starcoder2", {"attention_dropout": 0.1, "residual_dropout": 0.1, "sliding_window": 8}),
        ("smollm3", {"no_rope_layers": [1, 0], "no_rope_layer_interval": 4, "use_sliding_window": False}),
        ("llama", {"draft_vocab_size": 32000, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}),
    ],
)
def test_fields_of_published_configs_that_change_nothing_are_not_refused(model_type, fields):
    assert read_config(llama(2, 64, 2, 2, model_type, **fields)).block_count == 2


def test_bloom_names_its_width_in_its_own_way():
    """2 x 2 layers x 4 heads x 16 x 2 bytes."""
    spec = read_config({"model_type": "bloom", "n_layer": 2, "n_embed": 64, "num_attention_heads": 4})
    assert spec.bytes_per_token() == 2 * 2 * 64 * 2
