"""Models that cannot be paged are refused by name, and are then as they were."""

import pytest

from kvledger.errors import ModelError, UsageError
from kvledger.runtime import Engine, Options

pytest.importorskip("torch")
pytest.importorskip("transformers")

from .small_models import GROUPED, SIZES, small_model, torch, transformers


def refuse(config, message, **settings):
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    before = model.config._attn_implementation
    with pytest.raises(ModelError, match=message):
        Engine(model, "1MiB", options=Options(**settings))
    assert model.config._attn_implementation == before


def test_latent_attention_is_refused():
    config = transformers.DeepseekV3Config(
        **SIZES, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=2
    )
    refuse(config, r"layer 0 \(`DeepseekV3Attention`\) has keys of \(4, 192\) and values of \(4, 128\)")


def test_layers_with_a_state_are_refused():
    config = transformers.Qwen3NextConfig(**GROUPED, head_dim=8, layer_types=["linear_attention", "full_attention"])
    refuse(config, "1 of the 2 layers of `Qwen3NextForCausalLM`, from layer 0 on, are `linear_attention`")


@pytest.mark.parametrize("config", [transformers.StableLmConfig(**GROUPED), transformers.NemotronConfig(**GROUPED)])
def test_layers_with_an_attention_of_their_own_are_refused(config):
    refuse(config, "2 of the 2 layers .* they have an attention of their own")


def test_a_bias_in_the_scores_is_refused():
    config = transformers.BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4)
    refuse(config, "does not go through Transformers' attention interface|do not attend through|does not give")


def test_an_encoder_is_refused():
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    ).eval()
    with pytest.raises(ModelError, match="has an encoder"):
        Engine(model, "1MiB")


def test_a_rotary_embedding_that_depends_on_the_batch_is_refused_beyond_its_first_length():
    config = transformers.LlamaConfig(
        **GROUPED, rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    )
    refuse(config, "the rotary embedding `dynamic` depends on the longest sequence of a batch beyond")


def test_a_window_that_attention_is_not_told_of_is_refused_unless_no_sequence_is_longer():
    config = transformers.LlamaConfig(**GROUPED)
    config.sliding_window = 32
    refuse(config, "layer 0 of `LlamaForCausalLM` asks its attention for every token, and the cache of Transformers")
    model = transformers.LlamaForCausalLM(config).eval()
    Engine(model, "1MiB", options=Options(max_model_len=32)).close()


def test_attention_to_later_tokens_is_refused():
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)).eval()
    model.config.is_causal = False
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    with pytest.raises(ModelError, match="attends to tokens that come later"):
        Engine(model, "1MiB")


def test_attention_that_means_more_than_it_says_is_found_out():
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    plain = model.model.forward

    def shift(*arguments, **settings):
        if settings.get("position_ids") is not None and "kvledger_batch" in settings:
            settings["position_ids"] = settings["position_ids"] * 2
        return plain(*arguments, **settings)

    model.model.forward = shift
    with pytest.raises(ModelError, match="does not give what the attention of `LlamaForCausalLM` gives"):
        Engine(model, "1MiB")


def test_a_model_that_keeps_its_keyword_arguments_to_itself_is_found_out():
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)).eval()
    layer = model.model.layers[1]
    plain = layer.forward

    def forget(*arguments, **settings):
        settings.pop("kvledger_batch", None)
        return plain(*arguments, **settings)

    layer.forward = forget
    with pytest.raises(ModelError, match="1 of the 2 layers of `LlamaForCausalLM`"):
        Engine(model, "1MiB")


def test_a_model_that_fails_on_its_first_tokens_is_refused_with_what_it_said(monkeypatch):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)).eval()
    monkeypatch.setattr(model.model, "forward", lambda **settings: [][0])
    with pytest.raises(ModelError, match="could not be tried with a few tokens: IndexError: list index out of range"):
        Engine(model, "1MiB")


def test_a_model_in_training_is_refused():
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)).train()
    with pytest.raises(UsageError, match="training mode"):
        Engine(model, "1MiB")


def test_block_sizes_out_of_range_are_refused():
    with pytest.raises(UsageError, match="block_size is 0"):
        Engine(small_model("llama"), "1MiB", block_size=0)
