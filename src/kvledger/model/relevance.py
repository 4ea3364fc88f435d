"""Relevance: which config fields could change the cache, so that none is overlooked.

A reader marks what it read. Every other field whose name matches a pattern below, and whose value is not switched off,
is refused: an unknown window or state would make the answer wrong without a sign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from kvledger.errors import ModelError
from kvledger.model.fields import STATE_BY_HAND, Fields

__all__ = ["find_overlooked"]

_RELEVANT = re.compile(
    r"window|sliding|swa_|chunk|mamba|ssm|linear|lora_rank|latent|(^|_)index|sparse|compress|layer_types?$|layer_kinds?$"
    r"|block_types?$|block_config|layers?_config|hybrid|share|state|conv|recurr|retention|delta|cross_att|cross_layer"
    r"|encoder|kv_|_kv|key_value|cache|attn_|attention|local|global|full_att|pattern|interval|period|rwkv|ngram"
    r"|memory|mla|(^|_)cla(_|$)|gqa|mqa|multi_query|head_dim|head_size|heads?$|no_op|num_loops|loop",
    re.IGNORECASE,
)

_HARMLESS = frozenset(
    """
    add_cross_attention attention_bias attention_dropout attention_dropout_prob attention_probs_dropout_prob attn_bias
    attn_dropout attn_dropout_prob attn_pdrop attn_implementation _attn_implementation attn_output_gate attn_qkv_bias
    attention_out_bias attention_softmax_in_fp32 scale_attention_softmax_in_fp32 attn_logit_softcapping
    attention_logit_softcapping attention_multiplier attention_scale attention_scaling attention_value_scale
    attention_in_multiplier attention_out_multiplier attn_temperature_tuning attn_scale attn_mscale attention_k_eq_v
    attention_output_gate attention_qkv_bias attention_head_scale attn_res_block_size use_attention_bias
    parallel_attn num_ln_in_parallel_attn scale_attn_weights
    scale_attn_by_inverse_layer_idx
    reorder_and_upcast_attn add_swa_attention_sink_bias add_full_attention_sink_bias attention_sink_bias
    query_pre_attn_scalar use_bidirectional_attention deterministic_flash_attn use_flash_attn use_flash_attention
    cross_attention_hidden_size is_encoder_decoder is_decoder tie_encoder_decoder encoder_no_repeat_ngram_size
    no_repeat_ngram_size chunk_size_feed_forward use_cache cache_implementation output_hidden_states
    num_hidden_states_types residual_in_fp32 hidden_state_size linear_bias add_bias_linear attn_layernorm
    initializer_range rope_interleave indexer_rope_interleave index_share_for_mtp_iteration ignore_index
    image_token_index video_token_index audio_token_index boi_token_index eoi_token_index eoa_token_index
    q_lora_rank o_lora_rank index_n_heads index_topk mlp_layer_types moe_layer_freq moe_layers interleave_moe_layer_step
    moe_layer_interval moe_layer_start_index moe_layer_end_index decoder_sparse_step expert_layer_period
    expert_layer_offset shared_expert_intermediate_size n_shared_experts num_shared_experts num_shared_expert
    moe_num_shared_experts shared_intermediate_size moe_shared_expert_intermediate_size moe_shared_expert_overlap
    share_expert_dim moe_shared_intermediate_size use_double_wide_mlp qk_nope_head_dim qk_head_dim num_local_experts
    use_qk_norm qk_norm_type share_embedding share_embeddings tie_word_embeddings num_global_tokens
    global_head_dim num_global_key_value_heads latent_moe_use_norm moe_latent_size moe_permute_fusion
    mamba_hidden_act mamba_proj_bias mamba_conv_bias use_mamba_kernels use_conv_bias conv_bias mamba_dt_rank
    mamba_chunk_size chunk_size mamba_norm_before_gate mamba_rms_norm mamba_dt_min mamba_dt_max mamba_dt_limit
    mamba_dt_init_floor ssm_multipliers ssm_in_multiplier ssm_out_multiplier lm_head_multiplier head_dtype
    rope_local_base_freq rotary_emb_base swa_rope_theta swa_num_attention_heads local_rope_theta global_rope_theta
    rope_scaling_factor compress_rope_theta num_hash_layers key_multiplier attn_type_rope linear_head_bias
    hidden_size_per_layer_input vocab_size_per_layer_input layerdrop encoder_layerdrop decoder_layerdrop
    activation_situ_linear_beta use_rope_in_attention mlp_only_layers sparse_intermediate_size summary_use_head
    lm_head_bias quantize_lm_head use_pre_attention_norm attn_norm_type attention_type_for_prefill
    attn_impl attn_uses_sequence_id alibi_bias_max bidirectional_prefix use_logn_attn logn_list use_dynamic_ntk
    flash_attn_version attn_window_pad pad_head_dim_to_multiple_of head_bias per_layer_sliding_pattern_source
    mla_use_nope mla_use_output_gate
    mtp_use_dedicated_embeddings index_topk_pattern index_topk_freq index_skip_topk_offset use_mtp
    mamba_expand_ratio attention_layer_norm sparse_attention_backend attn_config_class sliding_window_rope_scaling
    use_head_wise_attn_gate share_expert_dims swiglu_limits_shared full_attn_mod add_qkv_bias use_cache_kernel
    mamba_inner_layernorms mamba_use_mlp shared_moe_mode order_of_interleaved_layers pre_allocate_kv_cache
    attn_rotary_emb qkv_bias qkv_proj_bias use_qkv_bias activation_sparsity_pattern num_sliding_attention_heads
    share_encoder_decoder_embeddings num_attention_heads num_heads_per_token use_gemma_norm ffn_share_layers n_head
    """.split()  # noqa: SIM905
)
"""Fields that match a pattern and still change no byte of the cache."""

_ASIDE = re.compile(
    r"vision|visual|image|audio|video|speech|quant|rope|auto_map|id2label|label2id|task_specific|generation|talker"
    r"|token2wav|code2wav|projector|adapter|img_|tokenizer|preprocess|sampl|freeze|embd_layer|pretrain|perceiver"
    r"|resampler|_id$|_ids$|_token$|qformer|dropout|init_method|torch|pruned_heads|bigvgan|dit_config",
    re.IGNORECASE,
)
"""Fields and sections about something else than the decoder's cache."""

_ONE = frozenset(("compression_ratio", "cla_share_factor"))
"""Fields that change nothing at the value 1."""
_MAX_DEPTH = 8
MAX_FIELDS = 10_000
"""Fields of one section that are looked at; the largest real decoder section has about 120."""


def find_overlooked(fields: Fields) -> list[str]:
    """Return the fields that could change the cache and were not read, by their full names.

    Raises:
        ModelError: A section has more than 10,000 fields.
    """
    return _search(fields.raw, fields.path, fields.used, _MAX_DEPTH)


def _search(raw: Mapping[str, object], path: str, used: set[str] | frozenset[str], depth: int) -> list[str]:
    found: list[str] = []
    if len(raw) > MAX_FIELDS:
        where = f"section `{path[:80]}` of the config" if path else "config"
        raise ModelError(f"the {where} has {len(raw)} fields, more than {MAX_FIELDS}", hint=STATE_BY_HAND)
    for name, value in raw.items():
        if name in used or name in _HARMLESS or not isinstance(name, str) or _ASIDE.search(name) or _is_off(value):
            continue
        if name in _ONE and value == 1:
            continue
        full = f"{path}.{name[:80]}" if path else name[:80]
        if _RELEVANT.search(name):
            found.append(full)
        elif isinstance(value, Mapping) and depth:
            found.extend(_search(value, full, frozenset(), depth - 1))
    return found


def _is_off(value: object) -> bool:
    """Return whether a value switches its field off: null, false, zero, empty, or a list of such."""
    if isinstance(value, list | tuple):
        return all(not isinstance(item, list | tuple) and _is_off(item) for item in value[:4096]) and len(value) <= 4096
    return not value
