"""Matrix products through oneDNN are those of PyTorch, and are used where they were asked for."""

import copy
import gc
import weakref

import pytest

from kvledger.errors import UsageError
from kvledger.runtime import Engine, Generation, Linear, Options

pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.nn.utils import prune
from torch.nn.utils.parametrize import register_parametrization

from kvledger.runtime import linear as linear_module
from kvledger.runtime.linear import OneDnn, choose_products
from kvledger.runtime.packed import Packed
from kvledger.runtime.team import Team
from kvledger.runtime.ways import choose_ways

from .small_models import draw_prompts, find_difference, generate_plainly, small_model, torch

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN")


@needs_onednn
@pytest.mark.parametrize("linear", [Linear.ONEDNN, Linear.PACKED])
@pytest.mark.parametrize("family", ["llama", "phi"])
def test_the_tokens_are_the_same(family, linear):
    model, prompts = small_model(family), draw_prompts(3, seed=20)
    engine = Engine(model, "1MiB", options=Options(linear=linear))
    results = engine.generate(prompts, Generation(max_tokens=8, ignore_eos=True))
    engine.close()
    for prompt, result in zip(prompts, results, strict=True):
        expected = generate_plainly(model, prompt, 8)
        assert find_difference(model, prompt, expected, list(result.token_ids), tolerance=1e-3) is None


@needs_onednn
@pytest.mark.parametrize("linear", [Linear.ONEDNN, Linear.PACKED])
def test_every_product_goes_through_it_and_only_in_the_engine(linear):
    model, x = copy.deepcopy(small_model("phi")), torch.randn(1, 5, 32)
    layer = model.model.layers[0].self_attn.q_proj
    with torch.inference_mode():
        plain = layer(x)
        with choose_ways(linear, model), torch.profiler.profile() as profile:
            other = layer(x)
        with torch.profiler.profile() as after:
            layer(x)
    assert torch.allclose(plain, other, atol=1e-4)
    assert "aten::linear" not in _names(profile)
    assert ("mkldnn::_linear_pointwise" in _names(profile)) == (linear is Linear.ONEDNN)
    assert "aten::linear" in _names(after)


@needs_onednn
@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.weight.add_(1.0),
        lambda layer: layer.weight.data.add_(1.0),
        lambda layer: setattr(layer, "weight", torch.nn.Parameter(layer.weight + 1.0)),
        lambda layer: setattr(layer.weight, "data", layer.weight.data + 1.0),
        lambda layer: layer.bias.data.add_(1.0),
        lambda layer: setattr(layer, "bias", torch.nn.Parameter(layer.bias + 1.0)),
    ],
    ids=["in place", "behind its back", "another weight", "other numbers", "bias", "another bias"],
)
def test_a_weight_that_changes_is_packed_anew(change):
    model = copy.deepcopy(small_model("phi"))
    layer, x = model.model.layers[0].self_attn.q_proj, torch.randn(1, 5, 32)
    context = choose_ways(Linear.PACKED, model)
    with torch.no_grad():
        with context:
            before = layer(x)
        change(layer)
        with context:
            after = layer(x)
        assert torch.allclose(after, layer(x), atol=1e-4)
    assert not torch.allclose(before, after, atol=1e-2)


@needs_onednn
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_gate_and_content_are_multiplied_on_the_way(family):
    model, x = copy.deepcopy(small_model(family)), torch.randn(1, 5, 32)
    layer = model.model.layers[0].mlp
    with torch.inference_mode():
        plain = layer(x)
        with choose_ways(Linear.PACKED, model), torch.profiler.profile() as profile:
            other = layer(x)
    assert torch.allclose(plain, other, atol=1e-4 * plain.abs().max())
    assert not any(event.key in ("aten::silu", "aten::gelu", "aten::mul") for event in profile.key_averages())


@needs_onednn
def test_a_part_that_somebody_watches_is_not_gone_around():
    model, x, seen = copy.deepcopy(small_model("llama")), torch.randn(1, 5, 32), []
    context = choose_ways(Linear.PACKED, model)
    layer = model.model.layers[0].mlp
    layer.up_proj.register_forward_hook(lambda *_: seen.append(1))
    with context, torch.inference_mode():
        layer(x)
    assert seen == [1]


@needs_onednn
def test_parts_that_are_used_otherwise_than_their_names_say_are_left_alone():
    model, x = copy.deepcopy(small_model("llama")), torch.randn(1, 5, 32)
    layer = model.model.layers[0].mlp
    kind = type(
        "Crossed", (type(layer),), {"forward": lambda self, x: self.down_proj(self.gate_proj(x) * self.up_proj(x))}
    )
    layer.__class__ = kind
    with torch.inference_mode():
        plain = layer(x)
        with choose_ways(Linear.PACKED, model):
            assert torch.allclose(layer(x), plain, atol=1e-4 * plain.abs().max())


@needs_onednn
def test_a_layer_that_was_given_another_way_keeps_it():
    model, x = copy.deepcopy(small_model("phi")), torch.randn(1, 5, 32)
    layer = model.model.layers[0].self_attn.q_proj
    context = choose_ways(Linear.PACKED, model)
    layer.forward = lambda x: "mine"
    with context:
        assert layer(x) == "mine"
    assert layer(x) == "mine"


@needs_onednn
def test_engines_of_one_model_share_a_copy_which_goes_with_the_last():
    model = copy.deepcopy(small_model("phi"))
    first, second = choose_products(Linear.PACKED, model), choose_products(Linear.PACKED, model)
    copies = [weakref.ref(products) for products in (first, second)]
    assert copies[0]() is copies[1]()
    del first
    assert copies[0]() is not None
    del second
    gc.collect()
    assert copies[0]() is None


def test_what_takes_much_of_the_memory_is_not_copied_without_being_asked_for(monkeypatch):
    model = copy.deepcopy(small_model("phi"))
    monkeypatch.setattr(linear_module, "_is_by_amd", lambda: True)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert isinstance(choose_products(Linear.AUTO, model), Packed)
    monkeypatch.setattr(linear_module, "_memory_bytes", lambda: 1 << 15)
    assert isinstance(choose_products(Linear.AUTO, model), OneDnn)


@pytest.mark.parametrize("linear", [Linear.ONEDNN, Linear.PACKED])
def test_it_is_refused_where_it_cannot_serve(linear):
    model = copy.deepcopy(small_model("llama"))
    half = type(model)(model.config).bfloat16().eval()
    with pytest.raises(UsageError, match=r"the model is torch.bfloat16 on cpu"):
        Engine(half, "1MiB", options=Options(linear=linear))
    assert half.config._attn_implementation != "kvledger"


def _names(profile):
    return {event.key for event in profile.key_averages()}


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 13, 700])
@pytest.mark.parametrize(("inputs", "outputs"), [(8, 4), (33, 70), (64, 97)])
def test_the_kernel_multiplies_rows_of_any_number_with_matrices_of_any_size(rows, inputs, outputs):
    torch.manual_seed(rows + inputs)
    model = torch.nn.ModuleList([torch.nn.Linear(inputs, outputs, bias=bias) for bias in (False, True, True)])
    packed, x = Packed(model), torch.randn(2, rows, inputs)
    with torch.inference_mode():
        for layer in model:
            assert torch.allclose(packed.multiply(layer)(x), layer(x), atol=1e-4)
        together = packed.multiply(model[1], model[2])(x)
        assert torch.allclose(together, torch.cat([model[1](x), model[2](x)], -1), atol=1e-4)
        turned = torch.randn(inputs, rows).t()
        assert torch.allclose(packed.multiply(model[0])(turned), model[0](turned), atol=1e-4)


@pytest.mark.parametrize(
    ("activation", "function"),
    [("silu", torch.nn.functional.silu), ("gelu", lambda x: torch.nn.functional.gelu(x, approximate="tanh"))],
)
@pytest.mark.parametrize("outputs", [5, 16, 50])
def test_the_kernel_gates_one_product_by_another(activation, function, outputs):
    gate, content = (torch.nn.Linear(24, outputs, bias=False) for _ in range(2))
    x = torch.randn(11, 24) * 4
    x[0] *= 100
    with torch.inference_mode():
        answer = Packed(torch.nn.ModuleList([gate, content])).gate(gate, content, activation)(x)
        assert torch.allclose(answer, function(gate(x)) * content(x), rtol=1e-4, atol=1e-4)


def test_a_pair_of_gates_that_changes_is_packed_anew():
    model = torch.nn.ModuleList([torch.nn.Linear(24, 20, bias=False) for _ in range(2)])
    packed, x = Packed(model), torch.randn(3, 24)
    with torch.no_grad():
        before = packed.gate(*model, "silu")(x)
        model[1].weight.mul_(2.0)
        assert packed.refresh() == 1
        assert torch.allclose(packed.gate(*model, "silu")(x), before * 2, rtol=1e-5)


class Doubled(torch.nn.Module):
    def forward(self, weight):
        return weight * 2


def _replace_a_product(model):
    old = model.model.layers[0].self_attn.q_proj
    model.model.layers[0].self_attn.q_proj = torch.nn.Linear(old.in_features, old.out_features, bias=False)


def _replace_the_class(model):
    layer = model.model.layers[0].mlp
    kind = type(layer)
    layer.__class__ = type("Shifted", (kind,), {"forward": lambda self, x: kind.forward(self, x) + 1})


@needs_onednn
@pytest.mark.parametrize("linear", list(Linear))
@pytest.mark.parametrize(
    "change",
    [
        _replace_a_product,
        _replace_the_class,
        lambda model: setattr(model.model.layers[0].mlp, "act_fn", torch.nn.ReLU()),
        lambda model: prune.l1_unstructured(model.model.layers[0].mlp.up_proj, "weight", 0.5),
        lambda model: register_parametrization(model.model.layers[0].self_attn.k_proj, "weight", Doubled()),
    ],
    ids=["another layer", "another class", "another activation", "pruned", "parametrised"],
)
def test_a_model_that_is_rebuilt_after_the_engine_was_made_is_followed(linear, change):
    model, tokens = copy.deepcopy(small_model("llama")), torch.tensor([[5, 6, 7, 8, 9]])
    context = choose_ways(linear, model)
    with torch.inference_mode(), context:
        before = model(tokens).logits
    change(model)
    with torch.inference_mode():
        expected = model(tokens).logits
        with context:
            assert torch.allclose(model(tokens).logits, expected, atol=1e-5)
    assert not torch.allclose(before, expected, atol=1e-4)


def test_a_weight_goes_the_faster_way_again_once_it_is_plain_again():
    model, x = copy.deepcopy(small_model("phi")), torch.randn(1, 5, 32)
    layer = model.model.layers[0].self_attn.q_proj
    context = choose_ways(Linear.PACKED, model)
    with context:
        assert "forward" in layer.__dict__
    prune.random_unstructured(layer, "weight", 0.5)
    with torch.no_grad(), context:
        assert "forward" not in layer.__dict__
    prune.remove(layer, "weight")
    with torch.no_grad():
        expected = layer(x)
        with context:
            assert "forward" in layer.__dict__
            assert torch.allclose(layer(x), expected, atol=1e-4)


def test_a_way_that_is_given_during_a_step_is_kept():
    model = copy.deepcopy(small_model("phi"))
    layer = model.model.layers[0].self_attn.q_proj
    with choose_ways(Linear.PACKED, model):
        layer.forward = lambda x: "mine"
    assert layer(torch.zeros(1, 32)) == "mine"


def test_gradients_asked_for_while_a_step_is_computed_flow():
    model, x = copy.deepcopy(small_model("llama")), torch.randn(1, 5, 32, requires_grad=True)
    with choose_ways(Linear.PACKED, model, Team(1)):
        answer = model.model.layers[0].mlp(model.model.norm(x)) + model.model.layers[0].self_attn.q_proj(x)
    answer.sum().backward()
    assert x.grad is not None
    assert model.model.norm.weight.grad is not None


@needs_onednn
@pytest.mark.parametrize("linear", [Linear.ONEDNN, Linear.PACKED])
def test_numbers_and_device_that_are_the_default_elsewhere_change_nothing(linear):
    # Loading another model in bfloat16 makes it the default of all threads for a while.
    model, prompts = small_model("llama"), draw_prompts(3, seed=20)
    results = []
    for dtype, device in [
        (torch.float32, None),
        (torch.bfloat16, None),
        (torch.float64, None),
        (torch.float32, "meta"),
    ]:
        try:
            torch.set_default_dtype(dtype)
            torch.set_default_device(device)
            engine = Engine(copy.deepcopy(model), "1MiB", options=Options(linear=linear))
            results.append([r.token_ids for r in engine.generate(prompts, Generation(max_tokens=8, ignore_eos=True))])
            engine.close()
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_default_device(None)
    assert results[1:] == results[:1] * 3
