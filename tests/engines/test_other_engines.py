"""What holds for every planner beside vLLM's: the books balance, and more memory never holds less."""

import json
from pathlib import Path

import pytest

from kvledger.engines import llamacpp, lmdeploy, mlx, ollama, sglang, tensorrt_llm, tgi, transformers
from kvledger.engines.plan import Deployment, KvMemory
from kvledger.engines.structure import Moment, draw_up
from kvledger.errors import UsageError
from kvledger.model.by_hand import read_layers
from kvledger.units import GIB

PLAIN = "32x(kv=8,head=128)"
WINDOWED = "4x(kv=8,head=64)+20x(kv=8,head=64,window=512)"
LATENT = "27x(latent=512,rope=64)"
HYBRID = "4x(kv=4,head=256)+12x(state=1000000)"
PLANS = {
    "sglang": (sglang, "0.5.23", {}, (PLAIN, WINDOWED, LATENT, HYBRID)),
    "sglang two pools": (sglang, "0.5.23", {"hybrid_swa": "on"}, (WINDOWED,)),
    "llama.cpp": (llamacpp, "b11434", {"ctx_size": "16384"}, (PLAIN, WINDOWED, LATENT, HYBRID)),
    "llama.cpp split": (llamacpp, "b11434", {"ctx_size": "16384", "parallel": "4"}, (PLAIN, WINDOWED, HYBRID)),
    "llama.cpp full windows": (llamacpp, "b11434", {"ctx_size": "16384", "swa_full": "on"}, (WINDOWED,)),
    "ollama": (ollama, "2026-08", {"num_ctx": "8192", "num_parallel": "2"}, (PLAIN, WINDOWED)),
    "tensorrt-llm": (tensorrt_llm, "1.0.0", {}, (PLAIN, LATENT)),
    "tensorrt-llm windows": (tensorrt_llm, "1.0.0", {"variable_windows": "on"}, (WINDOWED,)),
    "tgi": (tgi, "3.3.4", {"attention": "paged"}, (PLAIN,)),
    "lmdeploy": (lmdeploy, "0.18.0", {}, (PLAIN, LATENT, HYBRID)),
    "lmdeploy contiguous": (lmdeploy, "0.0.10", {"cache_max_entry_count": "4"}, (PLAIN,)),
    "transformers": (transformers, "5.24.0", {}, (PLAIN, WINDOWED, HYBRID)),
    "transformers static": (transformers, "5.24.0", {"cache": "static"}, (PLAIN, WINDOWED, HYBRID)),
    "transformers quantised": (transformers, "5.24.0", {"cache": "quantised"}, (PLAIN,)),
    "transformers paged": (transformers, "5.24.0", {"cache": "continuous", "num_blocks": "64"}, (PLAIN, WINDOWED)),
    "mlx": (mlx, "0.32.2", {}, (PLAIN, WINDOWED, LATENT, HYBRID)),
}
CASES = [(name, layers) for name, (_, _, _, models) in PLANS.items() for layers in models]


def make(name, layers, memory_bytes=8 * GIB):
    planner, version, options, _ = PLANS[name]
    slots = 4 if name.startswith(("transformers", "mlx", "lmdeploy")) else None
    deployment = Deployment(
        engine=name.split()[0], version=version, options=options, max_num_seqs=slots, max_model_len=None
    )
    return planner.make_plan(read_layers(layers, max_model_len=8192), deployment, KvMemory.given(memory_bytes))


@pytest.mark.parametrize(("name", "layers"), CASES)
@pytest.mark.parametrize("moment", list(Moment))
def test_the_books_of_every_engine_balance(name, layers, moment):
    plan = make(name, layers)
    for length in (1, 700, 4096):
        sheets = draw_up(plan, length_tokens=length, moment=moment)
        assert sheets.requests >= 1
        assert sheets.deployment.ledger.used > 0
        draw_up(plan, length_tokens=length, requests=1, moment=moment)


@pytest.mark.parametrize(("name", "layers"), CASES)
def test_more_memory_never_holds_fewer_requests(name, layers):
    counts = [make(name, layers, size * GIB).count_requests(2000) for size in (4, 8, 16)]
    assert counts == sorted(counts)


@pytest.mark.parametrize(("name", "layers"), CASES)
def test_the_longest_request_fits_and_a_longer_one_does_not(name, layers):
    plan = make(name, layers)
    longest = plan.find_longest_tokens()
    assert plan.count_requests(longest) >= 1
    if longest < 2**40:
        assert plan.count_requests(longest + 1) == 0


@pytest.mark.parametrize("name", list(PLANS))
def test_every_line_says_what_it_means(name):
    plan = make(name, PLANS[name][3][0])
    assert all(line.text and line.meaning for line in plan.lines)
    assert all(len(text) < 200 for text in plan.notes)


@pytest.mark.parametrize("name", list(PLANS))
def test_unknown_settings_are_refused_by_name(name):
    planner, version, options, models = PLANS[name]
    deployment = Deployment(engine="engine", version=version, options={**options, "bogus": "1"}, max_num_seqs=4)
    with pytest.raises(UsageError, match="has no setting `bogus`"):
        planner.make_plan(read_layers(models[0], max_model_len=8192), deployment, KvMemory.given(GIB))


def test_every_setting_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "engines-other.md").read_text()
    readers = (
        llamacpp.settings._READERS, lmdeploy.settings._READERS, mlx.plan._READERS, ollama.plan._READERS,
        sglang.settings._READERS, tensorrt_llm.settings._READERS, tgi.plan._READERS, transformers.settings._READERS,
    )  # fmt: skip
    assert not [name for table in readers for name in table if f"`{name}`" not in page]


def test_every_handed_case_of_these_engines_is_in_a_test(shared):
    """Kind K1 of the handed cases: start-up numbers of users."""
    engines = {"sglang", "llama.cpp", "tensorrt-llm", "lmdeploy"}
    cases = (json.loads(line) for line in (shared / "cases" / "handed.jsonl").read_text().splitlines())
    wanted = {case["id"] for case in cases if case["kind"] == "K1" and case["engine"] in engines}
    tests = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    assert wanted
    assert not {case for case in wanted if case not in tests}
