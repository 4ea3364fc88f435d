"""Attention over block tables gives what attention over whole sequences gives, in every manner a layer may ask for."""

from dataclasses import dataclass

import numpy as np
import pytest

from kvledger.errors import UsageError
from kvledger.runtime.attention import Manner
from kvledger.runtime.backends import choose_backend
from kvledger.runtime.batch import pack
from kvledger.runtime.layout import Layer, Shape, arrange_layers
from kvledger.runtime.options import Attention, Options
from kvledger.runtime.pages import Pages
from kvledger.runtime.scheduler import Scheduler
from kvledger.runtime.sequence import RequestId, Sequence

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

SIZE = 16
WAYS = (Attention.COMPILED, Attention.GATHER)


@dataclass
class Asker:
    layer_idx: int = 0


def attend_at_length(query, keys, values, manner):
    """Return float64 attention of the last row of one sequence: query (heads, size), keys (tokens, kv_heads, size)."""
    shared = query.shape[0] // keys.shape[1]
    begin = max(0, len(keys) - manner.window_tokens) if manner.window_tokens else 0
    out = np.empty(query.shape)
    for head in range(query.shape[0]):
        own_keys, own_values = keys[begin:, head // shared], values[begin:, head // shared]
        scores = own_keys @ query[head] * manner.scale
        if manner.softcap:
            scores = np.tanh(scores / manner.softcap) * manner.softcap
        sink = [] if manner.sinks is None else [float(manner.sinks[head])]
        weights = np.exp(np.concatenate([scores, sink]) - max(*scores, *sink, -1e30))
        out[head] = (weights / weights.sum())[: len(scores)] @ own_values
    return out


def run(way, manner, *, heads=4, kv_heads=2, block_size=4, dtype=torch.float32, budget=30, prompts=(37, 1, 20)):
    """Serve three sequences of random queries, keys and values; return the largest difference from what is due."""
    longest = max(prompts) + 59
    name = str(dtype).removeprefix("torch.")
    shape = Shape(kv_heads=kv_heads, head_size=SIZE, dtype=name, dtype_bytes=dtype.itemsize)
    layer = Layer(index=0, shape=shape, query_heads=heads, window_tokens=manner.window_tokens)
    layout = arrange_layers([layer], block_size=block_size)
    options = Options(max_num_batched_tokens=budget, prefix_caching=False)
    pages = Pages(layout, blocks=200, device="cpu")
    scheduler = Scheduler(layout.groups, options, blocks=200, max_model_len=longest, store=pages)
    backend = choose_backend(way, layout, pages, scheduler.tables)
    random = torch.Generator().manual_seed(3)
    known = {}
    for number, prompt in enumerate(prompts):
        tensors = [torch.randn(longest, count, SIZE, generator=random) for count in (heads, kv_heads, kv_heads)]
        known[number] = [tensor.to(dtype) for tensor in tensors]
        scheduler.add(
            Sequence(request=RequestId(number), tokens=[0] * prompt, prompt_tokens=prompt, most_tokens=longest)
        )
    worst, seen = 0.0, set()
    for _ in range(12):
        schedule = scheduler.schedule()
        batch = pack(schedule, scheduler.tables, layout, backend, "cpu")
        order = [*batch.decodes.slots, *(chunk.slot for chunk in batch.chunks)]
        rows, place = [], {s.slot: i for i, s in enumerate(schedule.sequences)}
        for slot in order:
            i = place[slot]
            start, count = int(schedule.starts[i]), int(schedule.counts[i])
            rows += [(schedule.sequences[i].request, at) for at in range(start, start + count)]
        assert batch.positions[0].tolist() == [at for _, at in rows]
        query, key, value = (
            torch.stack([known[request][part][at] for request, at in rows]).transpose(0, 1)[None] for part in range(3)
        )
        answer = batch.attend(Asker(), query, key, value, manner)
        assert answer.shape == (1, len(rows), heads, SIZE)
        assert answer.dtype == dtype
        for row, (request, at) in enumerate(rows):
            own = [tensor.double().numpy() for tensor in known[request]]
            due = attend_at_length(own[0][at], own[1][: at + 1], own[2][: at + 1], manner)
            worst = max(worst, float(np.abs(answer[0, row].double().numpy() - due).max()))
            seen.add((request, at))
        for sequence in schedule.sequences:
            if sequence.computed == len(sequence.tokens):
                sequence.tokens.append(0)
    backend.close()
    assert len(seen) > sum(prompts)
    return worst


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("budget", [7, 200])
def test_every_row_reads_all_tokens_before_it(way, block_size, budget):
    assert run(way, Manner(scale=0.25), block_size=block_size, budget=budget) < 1e-5


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("window", [2, 5, 64])
def test_every_row_reads_its_window(way, window):
    assert run(way, Manner(scale=0.25, window_tokens=window)) < 1e-5


@pytest.mark.parametrize("way", WAYS)
def test_scores_are_bent_by_a_soft_cap(way):
    assert run(way, Manner(scale=1.0, softcap=2.0)) < 1e-5
    assert run(way, Manner(scale=1.0, softcap=2.0, window_tokens=6)) < 1e-5


@pytest.mark.parametrize("way", WAYS)
def test_sinks_take_their_share_of_the_softmax(way):
    assert run(way, Manner(scale=0.25, sinks=torch.tensor([0.0, 3.0, -2.0, 9.0]))) < 1e-5


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (5, 1)])
def test_query_heads_share_the_heads_of_keys(way, heads, kv_heads):
    assert run(way, Manner(scale=0.25), heads=heads, kv_heads=kv_heads) < 1e-5


@pytest.mark.parametrize("way", WAYS)
def test_bfloat16_is_as_near_as_its_rounding(way):
    assert run(way, Manner(scale=0.25), dtype=torch.bfloat16) < 0.02


def test_scores_far_apart_do_not_overflow():
    assert run(Attention.COMPILED, Manner(scale=40.0)) < 1e-4


@pytest.mark.parametrize("budget", [100, 1000])
def test_prompts_longer_than_a_panel_are_put_together(budget):
    longer = {"prompts": (600, 129, 5), "budget": budget}
    assert run(Attention.COMPILED, Manner(scale=0.5), **longer) < 1e-5
    assert run(Attention.COMPILED, Manner(scale=0.5, window_tokens=140), **longer) < 1e-5
    sinks = torch.tensor([0.0, 3.0, -2.0, 9.0])
    assert run(Attention.COMPILED, Manner(scale=0.5, softcap=3.0, sinks=sinks), **longer) < 1e-5


def test_items_are_shared_out_among_threads(monkeypatch):
    monkeypatch.setattr("kvledger.runtime.team._WORTH_SHARING", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert run(Attention.COMPILED, Manner(scale=0.25)) < 1e-5


def test_the_compiled_kernel_refuses_what_it_cannot_read():
    with pytest.raises(UsageError, match="not float16 on cpu"):
        run(Attention.COMPILED, Manner(scale=0.25), dtype=torch.float16)
    assert run(Attention.AUTO, Manner(scale=0.25), dtype=torch.float16) < 0.005
