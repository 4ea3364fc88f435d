"""The registry: which reader understands which ``model_type``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from kvledger.model.decoder import Decoder, LayerPlan
from kvledger.model.families import attention as rules
from kvledger.model.families import cross, hybrid, variants
from kvledger.model.families.attention import read_attention
from kvledger.model.families.compressed import read_compressed
from kvledger.model.families.latent import read_double_latent, read_latent

__all__ = ["Family", "find_family", "known_types"]

Family = Callable[[Decoder], LayerPlan]
"""From the decoder section of a config to its layers."""

_FULL = """
llama mistral3 ministral3 gemma granite granitemoe granitemoeshared olmo olmo2 olmoe flex_olmo glm glm4
glm4v_text nemotron phi phi-msft persimmon stablelm stablelm_epoch internlm internlm2
internlm3 baichuan exaone gpt2 gpt_neox gptj codegen opt bloom deepseek seed_oss arcee apertus
hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl_text ernie4_5 ernie4_5_moe ernie4_5_vl_moe_text helium bitnet minicpm
cohere aria_text orion solar xverse aquila yi skywork teleflm solar_open jais2 nanochat
bailing_moe bailing_moe_v2 hyperclovax iquestcoder sarvam_moe smollm got_ocr2 emu3_text_model
paddleocr_vl_text grok-1 jais arctic qwen
""".split()  # noqa: SIM905
_QWEN = """
qwen2 qwen2_moe qwen3 qwen3_moe qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen3_vl_text qwen3_vl_moe_text
qwen2_5_omni_text qwen3_omni_moe_text qwen2_audio_text smollm3 mimo_vl
""".split()  # noqa: SIM905
_WINDOWED = """
mistral ministral mixtral starcoder2 phi3 phimoe phi4mm phi4_multimodal voxtral_realtime_text
""".split()  # noqa: SIM905

_DRAFTED = """
glm4_moe glm4v_moe_text glm_ocr_text mimo minimax_m2 hy_v3
""".split()  # noqa: SIM905
_LATENT = """
deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 glm_moe_dsa glm4_moe_lite minicpm3 mistral4 axk1 youtu sarvam_mla
deepseek_vl_v2 pangu_ultra_moe
""".split()  # noqa: SIM905
_ENCODERS = """
bert roberta xlm-roberta xlm-roberta-xl distilbert electra camembert albert mpnet deberta deberta-v2 modernbert
nomic_bert new gte eurobert jina_embeddings_v3 ernie
""".split()  # noqa: SIM905

_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        **dict.fromkeys(_FULL, read_attention),
        **dict.fromkeys(_QWEN, partial(read_attention, rule=rules.none_first)),
        **dict.fromkeys(_WINDOWED, partial(read_attention, rule=rules.windowed)),
        **dict.fromkeys(_DRAFTED, variants.read_with_drafts),
        **dict.fromkeys(_LATENT, read_latent),
        "longcat_flash": read_double_latent,
        "deepseek_v4": read_compressed,
        **dict.fromkeys(("gemma2", "vaultgemma", "gpt_oss"), partial(read_attention, rule=rules.every(2))),
        **dict.fromkeys(
            ("gemma3_text", "gemma3"),
            partial(read_attention, rule=rules.every(6, "sliding_window_pattern", "_sliding_window_pattern")),
        ),
        "gemma3n_text": partial(read_attention, rule=rules.every(5)),
        **dict.fromkeys(rules.GEMMA_4, partial(read_attention, rule=rules.every(6))),
        "cohere2": partial(read_attention, rule=rules.every(4, "sliding_window_pattern")),
        "dots1": partial(read_attention, rule=rules.after_first),
        "olmo3": partial(read_attention, rule=rules.every(4)),
        "afmoe": partial(read_attention, rule=rules.every(4, "global_attn_every_n_layers")),
        **dict.fromkeys(("exaone4", "exaone_moe"), partial(read_attention, rule=rules.letters)),
        **dict.fromkeys(("mimo_v2_flash", "mimo_v2"), partial(read_attention, rule=rules.hybrid_pattern)),
        **dict.fromkeys(("step3p5", "step3p7", "step3p7_text"), read_attention),
        **dict.fromkeys(("llama4_text", "llama4"), variants.read_llama4),
        **dict.fromkeys(("falcon", "RefinedWeb", "RefinedWebModel"), variants.read_falcon),
        "gpt_bigcode": variants.read_bigcode,
        "chatglm": variants.read_chatglm,
        **dict.fromkeys(("dbrx", "mpt"), variants.read_nested_attention),
        **dict.fromkeys(("minimax_m3", "minimax_m3_vl", "minimax_m3_vl_text"), variants.read_minimax_m3),
        **dict.fromkeys(("nemotron-nas", "deci"), variants.read_nas),
        "jamba": hybrid.read_jamba,
        **dict.fromkeys(("bamba", "granitemoehybrid"), hybrid.read_mamba_hybrid),
        "nemotron_h": hybrid.read_nemotron_h,
        **dict.fromkeys(
            ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe", "olmo_hybrid"),
            hybrid.read_delta_net,
        ),
        "kimi_linear": hybrid.read_kimi_linear,
        **dict.fromkeys(("bailing_hybrid", "bailing_moe_linear", "bailing_moe_v2_5"), hybrid.read_bailing_linear),
        **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1"), hybrid.read_minimax_text),
        **dict.fromkeys(("lfm2", "lfm2_moe"), hybrid.read_lfm2),
        "falcon_h1": hybrid.read_falcon_h1,
        **dict.fromkeys(("mamba", "falcon_mamba"), hybrid.read_mamba1),
        "mamba2": hybrid.read_mamba2,
        "whisper": cross.read_whisper,
        **dict.fromkeys(("bart", "mbart", "m2m_100", "marian", "pegasus", "blenderbot"), cross.read_bart),
        **dict.fromkeys(("t5", "mt5", "umt5"), cross.read_t5),
        **dict.fromkeys(_ENCODERS, cross.read_encoder),
        "mllama_text_model": cross.read_mllama,
    }
)

_ARCHITECTURES: Mapping[str, str] = MappingProxyType(
    {
        "LlamaForCausalLM": "llama",
        "MistralForCausalLM": "mistral",
        "Qwen2ForCausalLM": "qwen2",
        "Qwen3ForCausalLM": "qwen3",
        "Qwen3MoeForCausalLM": "qwen3_moe",
        "DeepseekV2ForCausalLM": "deepseek_v2",
        "DeepseekV3ForCausalLM": "deepseek_v3",
        "DeepseekV32ForCausalLM": "deepseek_v32",
        "DeepseekV4ForCausalLM": "deepseek_v4",
        "GlmMoeDsaForCausalLM": "glm_moe_dsa",
    }
)
"""Architectures whose weights also ship under other ``model_type`` names."""


def find_family(model_type: str, architectures: Sequence[str] = ()) -> Family | None:
    """Return the reader of a ``model_type``, else of a well-known architecture, else None."""
    for architecture in (None, *architectures):
        key = model_type if architecture is None else _ARCHITECTURES.get(architecture, "")
        if key in _FAMILIES:
            return _FAMILIES[key]
    return None


def known_types() -> tuple[str, ...]:
    """Return every ``model_type`` that has a reader."""
    return tuple(_FAMILIES)
