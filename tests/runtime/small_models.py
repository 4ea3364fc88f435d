"""Small random models of many families, and what Transformers itself generates with them."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Operations this small gain nothing from a second thread, and lose much to waiting for it on a busy machine.
torch.set_num_threads(1)

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}


def _config(family):
    match family:
        case "llama":
            return transformers.LlamaConfig(**GROUPED)
        case "qwen3":
            return transformers.Qwen3Config(**GROUPED, head_dim=8)
        case "mistral":
            return transformers.MistralConfig(**GROUPED, sliding_window=8)
        case "gpt2":
            return transformers.GPT2Config(
                vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=256, bos_token_id=0, eos_token_id=1
            )
        case "phi":
            return transformers.PhiConfig(**SIZES)
        case "gemma3":
            return transformers.Gemma3TextConfig(
                **{**GROUPED, "num_hidden_layers": 7}, head_dim=8, sliding_window=8, sliding_window_pattern=3
            )
        case "gemma2":
            return transformers.Gemma2Config(**GROUPED, head_dim=8, sliding_window=8)
        case "gpt_oss":
            return transformers.GptOssConfig(
                **GROUPED,
                head_dim=8,
                num_local_experts=4,
                sliding_window=8,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            )
        case "opt":
            return transformers.OPTConfig(**SIZES, ffn_dim=64, word_embed_proj_dim=32)
        case "gpt_neox":
            return transformers.GPTNeoXConfig(**SIZES)
        case "cohere2":
            return transformers.Cohere2Config(**GROUPED, sliding_window=8)
        case "exaone4":
            return transformers.Exaone4Config(**{**GROUPED, "num_hidden_layers": 4}, sliding_window=8)
        case "mixtral":
            return transformers.MixtralConfig(**GROUPED, num_local_experts=4)
        case "phi3":
            return transformers.Phi3Config(**GROUPED, pad_token_id=0, original_max_position_embeddings=256)
        case "starcoder2":
            return transformers.Starcoder2Config(**GROUPED, sliding_window=8)
        case "smollm3":
            return transformers.SmolLM3Config(**GROUPED, pad_token_id=0)
        case "qwen2_moe":
            experts = {"num_experts": 4, "num_experts_per_tok": 2}
            widths = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
            return transformers.Qwen2MoeConfig(**GROUPED, **experts, **widths)
        case "qwen2":  # the second layer has a window
            return transformers.Qwen2Config(**GROUPED, use_sliding_window=True, sliding_window=8, max_window_layers=1)
        case "olmo3":
            return transformers.Olmo3Config(**{**GROUPED, "num_hidden_layers": 4}, sliding_window=8)
        case "gptj":
            return transformers.GPTJConfig(
                vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=256, rotary_dim=4
            )
        case "granite":
            return transformers.GraniteConfig(**GROUPED)
    raise ValueError(family)


@functools.cache
def small_model(family):
    """Return a random model whose logits are far enough apart that rounding does not decide."""
    model = transformers.AutoModelForCausalLM.from_config(_config(family)).eval()
    random = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.3)
    return model


def draw_prompts(count, *, seed, longest=60):
    """Return prompts of 1 to ``longest`` tokens."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=random).tolist()
    return [torch.randint(2, VOCABULARY, (length,), generator=random).tolist() for length in lengths]


def generate_plainly(model, prompt, tokens):
    """Return what Transformers' own greedy ``generate`` answers to one prompt."""
    asked = torch.tensor([prompt])
    answer = model.generate(
        asked,
        attention_mask=torch.ones_like(asked),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return answer[0, len(prompt) :].tolist()


def find_difference(model, prompt, expected, given, *, tolerance):
    """Return where two greedy answers part for another reason than a tie; None when they do not.

    After the first differing token the two have other contexts, so nothing can be compared. There, the model's own
    logits of both tokens must be within ``tolerance``, or the difference counts.
    """
    assert len(expected) == len(given)
    for at, (theirs, ours) in enumerate(zip(expected, given, strict=True)):
        if theirs != ours:
            with torch.inference_mode():
                logits = model(torch.tensor([prompt + expected[:at]])).logits[0, -1]
            return None if abs(float(logits[theirs] - logits[ours])) <= tolerance else at
    return None
