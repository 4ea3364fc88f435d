"""Scrapes that are torn, a part of them a step older than the rest: noticed, and never mixed into a ledger."""

from dataclasses import replace

import pytest

from kvledger.engines.vllm.metrics import VllmScrape, read_vllm_metrics
from kvledger.measure.balance import Unsure
from kvledger.measure.meter import Meter
from kvledger.measure.tear import TearDetector
from kvledger.sources.endpoints import Endpoint
from kvledger.sources.http import Access, parse_address
from tests.measure.recorded import rows, scrapes
from tests.sources.servers import answering, reply

PLAIN = [row["text"] for row in rows("async") if row["phase"] in ("start", "plain")]
AT = next(n for n in range(4, 20) if "_count" in PLAIN[n] and PLAIN[n] != PLAIN[n + 1])


def torn(before, after, *, first_of_after):
    """Return a scrape whose lines from the first of a series on are of a later step."""
    cut = [
        next(n for n, line in enumerate(text.splitlines()) if line.startswith(first_of_after))
        for text in (before, after)
    ]
    return "\n".join(before.splitlines()[: cut[0]] + after.splitlines()[cut[1] :]) + "\n"


def take(meter, texts):
    return [meter.take(read_vllm_metrics(text), seconds=float(n))[0] for n, text in enumerate(texts)]


@pytest.mark.parametrize("first", ["vllm:request_prompt_tokens_count", "vllm:iteration_tokens_total_count"])
def test_a_torn_scrape_is_measured_by_its_gauge_alone_and_the_next_one_in_full(first):
    text = torn(PLAIN[AT], PLAIN[AT + 1], first_of_after=first)
    *_, before, middle, after = take(Meter(), [*PLAIN[: AT + 1], text, PLAIN[AT + 1]])
    assert before.balance.live.is_exact
    assert middle.balance.live is None
    assert middle.balance.causes == (Unsure.TORN,)
    assert middle.balance.held == before.balance.held
    assert middle.balance.used.low <= before.balance.used.low <= middle.balance.used.high
    assert middle.sheet.ledger.check()
    assert after.balance.live.is_exact


def test_a_torn_scrape_teaches_nothing_to_the_samples_around_it():
    text = torn(PLAIN[AT], PLAIN[AT + 1], first_of_after="vllm:request_prompt_tokens_count")
    whole, mixed = Meter(), Meter()
    take(whole, PLAIN)
    take(mixed, [*PLAIN[: AT + 1], text, *PLAIN[AT + 1 :]])
    settled = mixed.settle()[0]
    del settled[AT + 1]
    assert [r.balance.live for r in settled] == [r.balance.live for r in whole.settle()[0]]


@pytest.mark.parametrize(("name", "torn"), [("async", [34, 38, 39]), ("sync", []), ("groups", [])])
def test_the_torn_scrapes_of_a_recording_are_found_and_no_other(name, torn):
    """In three a request has ended for one half of the series and not for the other."""
    detector = TearDetector()
    assert [n for n, scrape in enumerate(scrapes(name)) if detector.is_torn(scrape.engines[0])] == torn


def with_outputs(engine, more):
    """Return an engine that has counted ``more`` outputs than tokens: requests that ended in errors."""
    later = engine.histograms["time_to_first_token_seconds"]
    outputs = replace(later, name="i", count=engine.generation_tokens - later.count + more)
    return replace(engine, histograms={**engine.histograms, "inter_token_latency_seconds": outputs})


def test_outputs_without_a_token_shift_the_sum_once_and_are_got_used_to():
    engines = [scrape.engines[0] for scrape in scrapes("async")[5:16]]
    detector = TearDetector()
    found = [detector.is_torn(with_outputs(engine, 0 if n < 3 else 2)) for n, engine in enumerate(engines)]
    assert found == [False] * 3 + [True] * 4 + [False] * 4


def test_a_number_that_never_agrees_says_nothing_about_this_engine():
    engines = [scrape.engines[0] for scrape in scrapes("async")[5:20]]
    detector = TearDetector()
    found = [detector.is_torn(with_outputs(engine, n * n)) for n, engine in enumerate(engines)]
    assert found == [False] + [True] * 7 + [False] * 7


def test_proposed_tokens_are_several_an_output_and_not_compared():
    detector = TearDetector()
    for n, scrape in enumerate(scrapes("async")[5:9]):
        engine = replace(with_outputs(scrape.engines[0], -100 * n), draft_tokens=9)
        assert not detector.is_torn(engine)


def test_a_restart_begins_anew():
    meter, (engine,) = Meter(), scrapes("async")[10].engines
    for start, more in ((1.0, 0), (500.0, 7)):
        scrape = VllmScrape(engines=(with_outputs(engine, more),), start_seconds=start)
        (reading,) = meter.take(scrape, seconds=0.0)
        assert reading.balance.causes != (Unsure.TORN,)


def test_of_a_release_whose_sums_are_known_every_torn_scrape_is_noticed_however_many_follow_each_other():
    first, second = PLAIN[AT], PLAIN[AT + 1]
    text = torn(first, second, first_of_after="vllm:iteration_tokens_total_count")
    readings = take(Meter(), [*PLAIN[: AT + 1], *[text] * 20])
    assert [reading.balance.live is None for reading in readings[AT + 1 :]] == [True] * 20


def test_a_server_is_asked_again_when_its_answer_is_torn():
    text = torn(PLAIN[AT], PLAIN[AT + 1], first_of_after="vllm:iteration_tokens_total_count")
    answers = iter([PLAIN[AT], text, text, PLAIN[AT + 1], text, text, text])
    with answering(lambda connection, request: reply(next(answers))(connection, request)) as url:
        endpoint = Endpoint(address=parse_address(url, default_path="/metrics"), access=Access())
        found = [endpoint.take().scrape.engines for _ in range(3)]
    assert found == [read_vllm_metrics(one).engines for one in (PLAIN[AT], PLAIN[AT + 1], text)]
