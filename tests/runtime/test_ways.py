"""Layers that go a faster way compute what they are, and only where they are what they seem."""

import copy

import numpy as np
import pytest

from kvledger.runtime import Engine, Generation, Linear, Options

pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvledger.runtime._rows import find_likeliest
from kvledger.runtime.attention import attach
from kvledger.runtime.joined import find_joined
from kvledger.runtime.linear import choose_products
from kvledger.runtime.norms import find_norms
from kvledger.runtime.team import Team
from kvledger.runtime.ways import choose_ways

from .small_models import draw_prompts, find_difference, generate_plainly, small_model, torch

TEAM = Team(1)


def joined_layers(model):
    detach = attach(model)
    try:
        products = choose_products(Linear.TORCH, model)
        return [way.layer for way in find_joined(model, set(products.layers), products)]
    finally:
        detach()


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_attention_of_llama_and_its_kin_is_joined(family):
    model = small_model(family)
    assert joined_layers(model) == [layer.self_attn for layer in model.model.layers]


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "phi", "gpt2"])
def test_attention_that_does_more_is_left_alone(family):
    assert joined_layers(small_model(family)) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda f: lambda self, hidden_states, **others: f(self, hidden_states * 2, **others),
        lambda f: (
            lambda self, hidden_states, position_embeddings, **others: f(
                self, hidden_states, tuple(reversed(position_embeddings)), **others
            )
        ),
        lambda f: lambda self, *given, **others: (f(self, *given, **others)[0] + 1, None),
        lambda f: lambda self, *given, **others: f(self, *given, **others)[0],
    ],
    ids=["rows", "turns", "answer", "kind of answer"],
)
def test_attention_that_only_looks_like_it_is_left_alone(change):
    model = copy.deepcopy(small_model("llama"))
    layer = model.model.layers[0].self_attn
    layer.__class__ = type("Strange", (type(layer),), {"forward": change(type(layer).forward)})
    assert joined_layers(model) == [other.self_attn for other in model.model.layers[1:]]


def test_heads_that_are_turned_in_part_go_their_own_way():
    model = copy.deepcopy(small_model("llama"))
    rotary, narrow = model.model.rotary_emb, 4
    turn = type(rotary).forward
    rotary.__class__ = type(
        "Narrow",
        (type(rotary),),
        {"forward": lambda *given, **others: tuple(x[..., :narrow] for x in turn(*given, **others))},
    )
    for layer in model.model.layers:
        attend = type(layer.self_attn).forward

        def forward(self, hidden_states, position_embeddings, attend=attend, **others):
            cosines, sines = position_embeddings
            rest = cosines.new_ones(*cosines.shape[:-1], self.head_dim - cosines.shape[-1])
            turns = torch.cat([cosines, rest], -1), torch.cat([sines, rest * 0], -1)
            return attend(self, hidden_states, position_embeddings=turns, **others)

        layer.self_attn.__class__ = type("Partly", (type(layer.self_attn),), {"forward": forward})
    assert len(joined_layers(model)) == len(model.model.layers)
    prompts = draw_prompts(3, seed=8)
    engine = Engine(model, "1MiB")
    results = engine.generate(prompts, Generation(max_tokens=8, ignore_eos=True))
    engine.close()
    for prompt, result in zip(prompts, results, strict=True):
        expected = generate_plainly(model, prompt, 8)
        assert find_difference(model, prompt, expected, list(result.token_ids), tolerance=1e-3) is None


@pytest.mark.parametrize("linear", [Linear.TORCH, Linear.ONEDNN, Linear.PACKED])
def test_tokens_are_the_same_with_biases(linear):
    config = copy.deepcopy(small_model("llama").config)
    config.attention_bias = True
    torch.manual_seed(5)
    model = type(small_model("llama"))(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("proj.bias"):
            torch.nn.init.normal_(parameter, std=0.5)
    assert len(joined_layers(model)) == len(model.model.layers)
    prompts = draw_prompts(3, seed=8)
    engine = Engine(model, "1MiB", options=Options(linear=linear, max_num_batched_tokens=16))
    results = engine.generate(prompts, Generation(max_tokens=8, ignore_eos=True))
    engine.close()
    for prompt, result in zip(prompts, results, strict=True):
        expected = generate_plainly(model, prompt, 8)
        assert find_difference(model, prompt, expected, list(result.token_ids), tolerance=1e-3) is None


def test_a_part_that_somebody_watches_is_not_gone_around():
    model, seen = copy.deepcopy(small_model("llama")), []
    engine = Engine(model, "1MiB")
    handle = model.model.layers[0].self_attn.k_proj.register_forward_hook(lambda *_: seen.append(1))
    prompt = draw_prompts(1, seed=4)[0]
    engine.generate([prompt], Generation(max_tokens=3, ignore_eos=True))
    assert len(seen) == 3
    handle.remove()
    engine.generate([prompt], Generation(max_tokens=3, ignore_eos=True))
    assert len(seen) == 3
    engine.close()


def test_attention_whose_part_was_replaced_is_the_models_own():
    model, prompt = copy.deepcopy(small_model("llama")), draw_prompts(1, seed=4)[0]
    engine = Engine(model, "1MiB", options=Options(linear=Linear.TORCH, prefix_caching=False))
    layer = model.model.layers[0].self_attn
    layer.v_proj = torch.nn.Linear(layer.v_proj.in_features, layer.v_proj.out_features)
    torch.nn.init.normal_(layer.v_proj.weight)
    result = engine.generate([prompt], Generation(max_tokens=8, ignore_eos=True))[0]
    engine.close()
    expected = generate_plainly(model, prompt, 8)
    assert find_difference(model, prompt, expected, list(result.token_ids), tolerance=1e-3) is None


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_norm_is_the_same_through_the_kernel(family):
    model = small_model(family)
    ways = find_norms(model, TEAM)
    assert {way.layer for way in ways} == {layer for layer in model.modules() if "RMSNorm" in type(layer).__name__}
    for way in ways:
        x = torch.randn(2, 7, len(way.layer.weight)) * 5
        with torch.inference_mode():
            assert torch.allclose(way.make()(x), way.layer(x), rtol=1e-5, atol=1e-6)
            assert torch.equal(way.make()(x.bfloat16()), way.layer(x.bfloat16()))
            assert torch.allclose(way.make()(x.transpose(0, 1)), way.layer(x.transpose(0, 1)), rtol=1e-5, atol=1e-6)


def test_a_norm_by_the_mean_is_left_alone():
    model = small_model("gpt2")
    strange = torch.nn.Module()
    strange.weight = torch.nn.Parameter(torch.ones(8))
    strange.eps = 1e-5
    strange.forward = lambda x: x
    assert find_norms(torch.nn.ModuleList([model, strange]), TEAM) == []


def test_a_norm_follows_its_weight():
    model = copy.deepcopy(small_model("llama"))
    layer, x = model.model.norm, torch.randn(1, 3, 32)
    ways = choose_ways(Linear.TORCH, model, TEAM)
    with torch.inference_mode(), ways:
        before = layer(x)
    layer.weight.data.mul_(3.0)
    with torch.inference_mode(), ways:
        assert torch.allclose(layer(x), before * 3, rtol=1e-5)


def test_a_norm_whose_weight_or_summand_is_not_what_it_was_is_the_models_own():
    model = copy.deepcopy(small_model("llama"))
    layer, x = model.model.norm, torch.randn(1, 3, 32)
    torch.nn.init.normal_(layer.weight)
    (forward,) = (way.make() for way in find_norms(model, TEAM) if way.layer is layer)
    with torch.inference_mode():
        layer.variance_epsilon = 2.0
        assert torch.allclose(forward(x), layer(x), rtol=1e-5)
        layer.to(torch.bfloat16)
        assert torch.equal(forward(x), layer(x))


def test_without_a_batch_attention_is_the_models_own():
    model, prompt = small_model("llama"), draw_prompts(1, seed=4)[0]
    expected = generate_plainly(model, prompt, 6)
    engine = Engine(model, "1MiB")
    with engine.runner._ways:
        assert generate_plainly(model, prompt, 6) == expected
    engine.close()


def test_every_item_of_a_job_is_done_once_whoever_takes_it(monkeypatch):
    from kvledger.runtime._rows import normalise

    rows, size = 1000, 96
    given, weight = np.random.default_rng(1).standard_normal((rows, size)).astype(np.float32), np.ones(size, np.float32)
    expected = given / np.sqrt((given.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5)
    manner = np.array([1e-5, 0.0], np.float32)
    for own in (False, True):
        if own:
            monkeypatch.setattr("kvledger.runtime.team._find_parallel", lambda: None)
        team, out = Team(4), np.zeros_like(given)
        lies = [array.__array_interface__["data"][0] for array in (given, weight, out, manner)]
        team.run(normalise, rows, size, 3, *lies, numbers=given.size)
        team.close()
        assert np.allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_likeliest_token_is_the_first_of_equals_and_no_number_is_told(threads):
    torch.manual_seed(1)
    logits = torch.randn(5, 300)
    logits[0, [7, 9]] = 50.0
    logits[1] = -float("inf")
    logits[2, 299] = 60.0
    logits[3, 100] = float("nan")
    logits[4, 4] = float("inf")
    best, values = torch.empty(5, dtype=torch.int64), torch.empty(5)
    lie = logits.data_ptr(), best.data_ptr(), values.data_ptr()
    Team(threads).run(find_likeliest, 5, 300, *lie, numbers=2**20)
    assert best.tolist()[:3] == [7, 0, 299]
    assert torch.isfinite(values).tolist() == [True, False, True, False, False]
