"""No phrase is dead: the pages together use all of them."""

from kvledger.report.html import words
from kvledger.report.html.phrases import phrases

from .pages import write_pages

SELDOM = {  # only for results that are unlike those of the tests
    "balance.busy", "balance.mixed", "time.reduced", "reason.larger_than_pool", "reason.cannot_grow",
    "comparison.short", "comparison.nothing", "comparison.same", "provenance.clock.sentence", "provenance.adjusted",
    "question.sample", "whatif.title", "whatif.note", "whatif.capacity", "nav.whatif", "findings.safe",
    "findings.nothing", "findings.more", "paper.kept", "engine.tokens.between", "engine.least",
    "traffic.cached_prompt_tokens", "traffic.evicted_tokens", "traffic.reserved_used_ratio",
    "pool.moment.most-holes", "meaning.cached", "meaning.unattributed", "ways.partly", "ways.fault", "ways.alone",
    "sweep.cut", "sweep.demands", "sweep.nothing", "sweep.best.first_token_p99_seconds", "log.untold",
    "sweep.best.output_tokens_per_second", "pool.note.blocks", "size.none",
    "size.follows", "size.not.follows", "groups.kind.chunk", "groups.kind.cross", "cost.units", "load.beyond",
    "load.beyond.why", "load.reserved", "load.unattributed", "memory.given", "check.none.broken", "check.kept",
    "check.kept.one", "cache.all", "trace.prefix.unknown",
}  # fmt: skip


class Counting(dict):
    def __init__(self, entries):
        super().__init__(entries)
        self.used = set()

    def __getitem__(self, key):
        self.used.add(key)
        return super().__getitem__(key)


def test_the_pages_use_every_phrase(tmp_path, monkeypatch):
    counted = Counting(phrases())
    monkeypatch.setattr(words, "phrases", lambda: counted)
    write_pages(tmp_path)
    said_by_python = {key for key in counted if not key.startswith("script.")}
    assert said_by_python - counted.used - SELDOM == set()
