"""One server, or one engine of those behind it, out of samples of many."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvledger.engines.vllm.metrics import VllmEngine, VllmScrape
from kvledger.measure.recording import RecordedSample

__all__ = ["Selection"]


@dataclass(slots=True, kw_only=True)
class Selection:
    """Chooses by number; :meth:`choose` keeps in mind what there was, for messages."""

    source: int | None = None
    """Of the server, from 1, as it is named in reports; None: all."""
    engine: int | None = None
    """Index of the engine; None: all."""
    sources: set[int] = field(default_factory=set)
    engines: set[int] = field(default_factory=set)

    def choose(self, sample: RecordedSample) -> RecordedSample | None:
        """Return what is chosen of a sample, None when nothing is; a failed sample is one of its server."""
        self.sources.add(sample.source + 1)
        if self.source is not None and sample.source + 1 != self.source:
            return None
        if self.engine is None or sample.has_failed:
            return sample
        scrape = None if sample.scrape is None else self._choose_engine(sample.scrape)
        self.engines |= {snapshot.engine_index for snapshot in sample.snapshots}
        snapshots = tuple(snapshot for snapshot in sample.snapshots if snapshot.engine_index == self.engine)
        return replace(sample, scrape=scrape, snapshots=snapshots) if scrape or snapshots else None

    def explain(self) -> str:
        """Say what there was to choose from."""
        if self.source is not None and self.source not in self.sources:
            return f"there is no server {self.source}, {_list(self.sources, 'server')}"
        return f"there is no engine {self.engine}, {_list(self.engines, 'engine')}"

    def _choose_engine(self, scrape: VllmScrape) -> VllmScrape | None:
        self.engines |= {engine.index for engine in scrape.engines}
        chosen = [engine for engine in scrape.engines if engine.index == self.engine]
        if not chosen:
            return None
        return replace(scrape, engines=(_own_blocks(chosen[0], engines=len(scrape.engines)),))


def _own_blocks(engine: VllmEngine, *, engines: int) -> VllmEngine:
    """Give an engine its share of the number of blocks, which vLLM sums over the engines of one front end."""
    blocks = engine.count_config("num_gpu_blocks")
    if blocks is None or engines < 2 or blocks % engines:
        return engine
    return replace(engine, cache_config={**engine.cache_config, "num_gpu_blocks": str(blocks // engines)})


def _list(numbers: set[int], noun: str) -> str:
    """Say which there are, so that a list of one is not taken for a count."""
    told = ", ".join(str(number) for number in sorted(numbers)[:20])
    return f"only {noun}{'s' * (len(numbers) > 1)} {told}" if numbers else f"nor another {noun}"
