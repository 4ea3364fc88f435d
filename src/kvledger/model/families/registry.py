"""The registry: which reader understands which ``model_type``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from kvledger.model.decoder import Decoder, LayerPlan
from kvledger.model.families import attention as rules
from kvledger.model.families.attention import read_attention

__all__ = ["Family", "find_family", "known_types"]

Family = Callable[[Decoder], LayerPlan]
"""From the decoder section of a config to its layers."""

_FULL = """
llama mistral3 ministral3 gemma granite granitemoe granitemoeshared olmo olmo2 olmoe flex_olmo glm glm4 glm4_moe
glm4v_text glm4v_moe_text glm_ocr_text nemotron phi phi-msft persimmon stablelm stablelm_epoch internlm internlm2
internlm3 baichuan exaone gpt2 gpt_neox gptj codegen opt bloom mimo deepseek minimax_m2 seed_oss arcee apertus
hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl_text ernie4_5 ernie4_5_moe ernie4_5_vl_moe_text helium bitnet minicpm
cohere aria_text orion solar xverse aquila yi skywork teleflm solar_open jais2 nanochat
bailing_moe bailing_moe_v2 mellum hyperclovax iquestcoder sarvam_moe smollm hy_v3 csm got_ocr2 emu3_text_model
paddleocr_vl_text grok-1 jais arctic qwen
""".split()  # noqa: SIM905
_QWEN = """
qwen2 qwen2_moe qwen3 qwen3_moe qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen3_vl_text qwen3_vl_moe_text
qwen2_5_omni_text qwen3_omni_moe_text qwen2_audio_text dots1 smollm3 mimo_vl
""".split()  # noqa: SIM905
_WINDOWED = """
mistral ministral mixtral starcoder2 phi3 phimoe phi4mm phi4_multimodal voxtral_realtime_text
""".split()  # noqa: SIM905

_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        **dict.fromkeys(_FULL, read_attention),
        **dict.fromkeys(_QWEN, partial(read_attention, rule=rules.none_first)),
        **dict.fromkeys(_WINDOWED, partial(read_attention, rule=rules.windowed)),
    }
)


def find_family(model_type: str) -> Family | None:
    """Return the reader of a ``model_type``, or None when it is not known."""
    return _FAMILIES.get(model_type)


def known_types() -> tuple[str, ...]:
    """Return every ``model_type`` that has a reader."""
    return tuple(_FAMILIES)
