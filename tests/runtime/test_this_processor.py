"""The kernels as they are compiled for this very processor: the other tests compile for any, as replays do."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

PRODUCTS = """
import torch
from kvledger.runtime.packed import Packed
from kvledger.runtime._products import LANES, WIDE

torch.set_num_threads(2)
for inputs, outputs in ((64, 2 * WIDE), (33, WIDE + 3)):
    gate, content = (torch.nn.Linear(inputs, outputs, bias=False) for _ in range(2))
    packed = Packed(torch.nn.ModuleList([gate, content]))
    for rows in (1, 2, 7, 8, 15, 40):
        x = torch.randn(rows, inputs)
        with torch.inference_mode():
            assert torch.allclose(packed.multiply(gate)(x), gate(x), atol=1e-4)
            due = torch.nn.functional.silu(gate(x)) * content(x)
            assert torch.allclose(packed.gate(gate, content, "silu")(x), due, atol=1e-4)
print("alike", LANES)
"""
TOKENS = """
from tests.runtime.small_models import draw_prompts, find_difference, generate_plainly, small_model, torch
from kvledger.runtime import Engine, Generation, Linear, Options

torch.set_num_threads(2)
prompts = draw_prompts(4, seed=20)
for family in ("llama", "gemma3"):
    model = small_model(family)
    engine = Engine(model, "1MiB", options=Options(linear=Linear.PACKED, max_num_batched_tokens=20))
    results = engine.generate(prompts, Generation(max_tokens=6, ignore_eos=True))
    for prompt, result in zip(prompts, results, strict=True):
        expected = generate_plainly(model, prompt, 6)
        assert find_difference(model, prompt, expected, list(result.token_ids), tolerance=1e-3) is None
print("alike")
"""


@pytest.mark.parametrize("code", [PRODUCTS, pytest.param(TOKENS, marks=pytest.mark.slow)], ids=["products", "tokens"])
def test_kernels_for_this_processor_compute_the_same(code, tmp_path):
    chosen = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**chosen, "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout.startswith("alike"), done.stderr
