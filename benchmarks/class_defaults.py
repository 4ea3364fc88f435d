"""Write the table of class defaults from an installed Transformers: `python -m benchmarks.class_defaults OUTPUT`.

A config.json may leave out what its config class supplies. The table keeps the fields that decide the cache, for every
`model_type` that has a reader. Lists are left out: their length depends on the number of layers.
"""

import dataclasses
import json
import sys
from pathlib import Path

from kvledger.model.families.registry import known_types

FIELDS = frozenset(
    """
    num_hidden_layers n_layer num_layers n_layers hidden_size n_embd d_model hidden_dim num_attention_heads n_head
    n_heads num_key_value_heads num_kv_heads n_head_kv multi_query_group_num head_dim kv_channels attention_head_dim
    v_head_dim vocab_size intermediate_size ffn_dim n_inner d_ff max_position_embeddings n_positions max_seq_len
    model_max_length seq_length max_sequence_length max_target_positions max_source_positions sliding_window
    use_sliding_window max_window_layers sliding_window_pattern attention_chunk_size no_rope_layer_interval
    num_kv_shared_layers attention_k_eq_v global_attn_every_n_layers kv_lora_rank q_lora_rank qk_rope_head_dim
    qk_nope_head_dim index_head_dim index_n_heads index_topk mamba_d_state mamba_d_conv mamba_expand mamba_n_heads
    mamba_d_head mamba_n_groups mamba_d_ssm mamba_num_heads mamba_head_dim mamba_ngroups n_mamba_heads
    ssm_state_size state_size conv_kernel expand n_groups mamba_ssm_cache_dtype mamba_ssm_dtype num_heads
    linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim
    linear_head_dim linear_num_heads short_conv_kernel_size layer_group_size conv_L_cache attn_layer_period
    attn_layer_offset multi_query new_decoder_architecture tie_word_embeddings encoder_layers decoder_layers
    encoder_attention_heads decoder_attention_heads d_kv num_decoder_layers num_experts num_local_experts
    n_routed_experts num_experts_per_tok moe_intermediate_size n_shared_experts first_k_dense_replace
    shared_expert_intermediate_size num_nextn_predict_layers mtp_num_hidden_layers swa_num_key_value_heads
    swa_head_dim
    """.split()  # noqa: SIM905
)


def class_defaults(config_class):
    """Return the plain defaults of one config class."""
    found = {}
    for name, field in getattr(config_class, "__dataclass_fields__", {}).items():
        value = field.default
        if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if name in FIELDS and isinstance(value, int | float | str | bool):
            found[name] = value
    return found


def main():
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    known = sorted(set(known_types()) & set(CONFIG_MAPPING.keys()))
    source = f"configuration classes of Hugging Face Transformers {transformers.__version__}"
    table = {"source": source, "classes": {name: class_defaults(CONFIG_MAPPING[name]) for name in known}}
    Path(sys.argv[1]).write_text(json.dumps(table, separators=(",", ":")).replace('},"', '},\n"') + "\n")
    print(f"Wrote {sys.argv[1]}: {len(known)} classes")


if __name__ == "__main__":
    main()
