"""``mem_fraction_static`` against SGLang's own choice, for six releases."""

import json
from pathlib import Path

import pytest

from kvledger.engines.plan import Deployment
from kvledger.engines.sglang.fraction import find_chunk_tokens, find_fraction
from kvledger.engines.sglang.rules import find_rules
from kvledger.engines.sglang.settings import Settings
from kvledger.units import MIB

RUNS = json.loads((Path(__file__).parents[2] / "data" / "sglang-sizing" / "fraction.json").read_text())["runs"]


@pytest.mark.parametrize("version", sorted({run["version"] for run in RUNS}))
def test_the_default_fraction_is_that_of_the_release(version):
    for run in (run for run in RUNS if run["version"] == version):
        rules = find_rules(version)
        settings = Settings(
            chunked_prefill_size=run["chunked_prefill_size"], cuda_graph_max_bs=run["cuda_graph_max_bs"]
        )
        deployment = Deployment(
            engine="sglang",
            version=version,
            tp=run["tp"],
            pp=run["pp"],
            speculative_tokens=int(run["speculative"]),
        )
        fraction, _ = find_fraction(
            run["total_mib"] * MIB, rules=rules, settings=settings, deployment=deployment, latent=run["latent"]
        )
        assert fraction == run["fraction"], run
        if run["chunk"] is not None:
            assert find_chunk_tokens(run["total_mib"], rules, settings, deployment) == run["chunk"], run


def test_a_given_fraction_is_taken_as_it_is():
    settings = Settings(mem_fraction_static=0.5)
    deployment = Deployment(engine="sglang", version="0.5.23")
    rules = find_rules("0.5.23")
    assert find_fraction(80 * 2**30, rules=rules, settings=settings, deployment=deployment, latent=False) == (
        0.5,
        "given",
    )


@pytest.mark.parametrize(("tp", "fraction"), [(1, 0.777), (8, 0.742)])
def test_newest_releases_capture_larger_graphs_on_small_devices(tp, fraction):
    """32,607 MiB: 512 + 4,096 x 1.5 + 48 (160) x 2 + tp / 8 x 1,024 + 50 graphs x 8 = 7,280 (8,400 at TP 8)."""
    settings, rules = Settings(), find_rules("0.5.23")
    deployment = Deployment(engine="sglang", version="0.5.23", tp=tp)
    found, _ = find_fraction(32607 * MIB, rules=rules, settings=settings, deployment=deployment, latent=False)
    assert found == fraction
