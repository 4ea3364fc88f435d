"""What `measure` reads from the server's metrics, against the ledger of the block tables at the same instant."""

import random

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from prometheus_client import CollectorRegistry, generate_latest

from kvledger.engines.vllm.metrics import read_vllm_metrics
from kvledger.measure.meter import Meter
from kvledger.measure.pool import Structure
from kvledger.runtime import Engine, Options, Preemption
from kvledger.runtime.serve import Tallies
from kvledger.runtime.serve.exposition import Exposition, take_instant

from .small_models import small_model
from .test_soak import Soak


class Watched(Soak):
    """The traffic of the soak, counted by a server and read by a meter after each step."""

    def __init__(self, engine, source):
        super().__init__(engine, source)
        self.tallies, self.meter, self.seconds, self.readings = Tallies(), Meter(), 0.0, []

    def collect(self, tokens):
        for token in tokens:
            self.tallies.take(token, now=self.seconds, since=self.seconds, max_tokens=40)
        super().collect(tokens)
        self.seconds += 0.5
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Exposition(take_instant(self.engine, self.tallies, model_name="small")))
        scrape = read_vllm_metrics(generate_latest(registry).decode())
        (reading,) = self.meter.take(scrape, seconds=self.seconds)
        self.readings.append((reading, self.engine.ledger()))


def watch(family, memory, preemption, *, requests):
    options = Options(
        max_model_len=110,
        max_num_seqs=12,
        max_num_batched_tokens=48,
        preemption=preemption,
        swap_bytes=40_000 if preemption is Preemption.SWAP else 0,
    )
    engine = Engine(small_model(family), memory, block_size=4, options=options)
    watched = Watched(engine, random.Random(5))
    watched.run(requests, check_every=50)
    engine.close()
    return watched


@pytest.mark.parametrize(
    ("family", "memory", "preemption"),
    [
        ("llama", 90_000, Preemption.RECOMPUTE),
        ("llama", 90_000, Preemption.SWAP),
        ("llama", 1_000_000, Preemption.RECOMPUTE),
        ("gemma3", 300_000, Preemption.RECOMPUTE),
    ],
)
def test_every_account_that_is_measured_holds_what_the_tables_hold(family, memory, preemption):
    """Shared prefixes, samples, requests given up and refused, a model that fails, and preemptions."""
    watched = watch(family, memory, preemption, requests=60)
    assert len(watched.readings) > 60
    for reading, ledger in watched.readings:
        sheet = reading.sheet
        assert sheet.unit == "bytes"
        assert sheet.figure("held").span.low == sheet.figure("held").span.high == ledger.held
        for account in ("used", "internal", "cached", "free"):
            span = sheet.figure(account).span
            assert span.low <= getattr(ledger, account) <= span.high, (reading.seconds, account)


@pytest.mark.parametrize(("family", "structure"), [("llama", Structure.ONE_GROUP), ("gemma3", Structure.GROUPS)])
def test_the_metrics_tell_whether_all_layers_share_one_block_table(family, structure):
    watched = watch(family, 300_000, Preemption.RECOMPUTE, requests=1)
    shape = watched.readings[-1][0].shape
    assert shape.structure is structure
    assert shape.max_model_len == 110
