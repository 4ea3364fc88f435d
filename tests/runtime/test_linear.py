"""Matrix products through oneDNN are those of PyTorch, and are used where they were asked for."""

import pytest

from kvledger.errors import UsageError
from kvledger.runtime import Engine, Generation, Linear, Options

pytest.importorskip("torch")
pytest.importorskip("transformers")

from .small_models import draw_prompts, find_difference, generate_plainly, small_model, torch

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN")


@needs_onednn
@pytest.mark.parametrize("family", ["llama", "phi"])
def test_the_tokens_are_the_same(family):
    model, prompts = small_model(family), draw_prompts(3, seed=20)
    engine = Engine(model, "1MiB", options=Options(linear=Linear.ONEDNN))
    results = engine.generate(prompts, Generation(max_tokens=8, ignore_eos=True))
    engine.close()
    for prompt, result in zip(prompts, results, strict=True):
        expected = generate_plainly(model, prompt, 8)
        assert find_difference(model, prompt, expected, list(result.token_ids), tolerance=1e-3) is None


@needs_onednn
def test_every_product_goes_through_it_and_only_in_the_engine():
    from kvledger.runtime.linear import choose_linear

    model, x = small_model("phi"), torch.randn(1, 5, 32)
    layer = model.model.layers[0].self_attn.q_proj
    with torch.inference_mode():
        plain = layer(x)
        with choose_linear(Linear.ONEDNN, model), torch.profiler.profile() as profile:
            other = layer(x)
    assert torch.allclose(plain, other, atol=1e-4)
    assert any("mkldnn::_linear_pointwise" in event.key for event in profile.key_averages())


def test_it_is_refused_where_it_cannot_serve():
    model = small_model("llama")
    half = type(model)(model.config).bfloat16().eval()
    with pytest.raises(UsageError, match=r"the model is torch.bfloat16 on cpu"):
        Engine(half, "1MiB", options=Options(linear=Linear.ONEDNN))
    assert half.config._attn_implementation != "kvledger"
