"""The ledger over real tensors is, step by step, that of the replay of the same requests."""

import pytest

from kvledger.runtime import Engine, Options

pytest.importorskip("torch")
pytest.importorskip("transformers")

from .driving import replay_rows, run_engine
from .small_models import draw_prompts, small_model


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("caching", [True, False])
def test_every_step_of_a_model_has_the_ledger_of_the_replay(family, caching):
    options = Options(max_model_len=80, max_num_seqs=5, max_num_batched_tokens=40, prefix_caching=caching)
    probe = Engine(small_model(family), "1MiB", block_size=4, options=options)
    groups = probe.layout.groups
    probe.close()
    blocks = 1
    while groups.most_tokens(blocks, in_flight_tokens=40, max_model_len=80) < 79:
        blocks += 1
    blocks += blocks // 2
    engine = Engine(small_model(family), blocks * groups.block_bytes, block_size=4, options=options)
    prompts = [prompt + more for prompt in draw_prompts(6, seed=30) for more in ([], [5])]
    arrivals = [0, 0, 0, 2, 2, 9, 15, 15, 16, 40, 41, 41]
    lengths = [3 + 5 * number % 17 for number in range(len(prompts))]
    rows, asked = run_engine(engine, prompts, lengths, arrivals)
    engine.close()
    replayed, outcome = replay_rows(asked, groups, options, blocks=blocks, max_model_len=80)
    assert rows == replayed
    assert engine.tally.preemptions == outcome.preemptions
    if caching:
        assert outcome.prefix.hit_tokens == engine.tally.hit_tokens
    assert (engine.tally.hit_tokens > 0) == caching
