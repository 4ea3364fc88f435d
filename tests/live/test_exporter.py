"""The exporter: what each scrape of it says about servers that come, go, restart and lie."""

import threading
import time
from itertools import chain, repeat

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kvledger.ledger import Account
from kvledger.live.exporter import Follower, LedgerCollector
from kvledger.measure.meter import Meter
from kvledger.measure.pricing import price_by_token
from kvledger.sources.http import Access, parse_address
from tests.cli.serving import serving
from tests.measure.recorded import rows, without_a_ledger
from tests.sources.servers import answering, reply

NOWHERE = "http://127.0.0.1:9"
SGLANG = """\
sglang:num_running_reqs{model_name="m",tp_rank="TP"} 2
sglang:num_queue_reqs{model_name="m",tp_rank="TP"} 1
sglang:kv_used_tokens{model_name="m",tp_rank="TP"} 256
sglang:kv_evictable_tokens{model_name="m",tp_rank="TP"} 128
sglang:kv_available_tokens{model_name="m",tp_rank="TP"} 640
sglang:max_total_num_tokens{model_name="m",tp_rank="TP"} 1024
sglang:page_size{model_name="m",tp_rank="TP"} 64
"""


def follower(url, *, name="server", timeout=2.0, complete=None):
    access = Access(timeout_seconds=timeout)
    return Follower(name, parse_address(url, default_path="/metrics"), access, meter=Meter(complete=complete))


def scrape(collector):
    """Return the values of one scrape of the exporter by (name, label values without whose they are)."""
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()


def samples(text):
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def values(text, name, **labels):
    return [s.value for s in samples(text) if s.name == name and labels.items() <= s.labels.items()]


def collector_of(*followers, **options):
    return LedgerCollector(followers, fresh_seconds=0, **options)


def test_the_accounts_of_a_pool_sum_to_the_pool():
    with serving("plain") as url:
        text = scrape(collector_of(follower(url)))
    accounts = {s.labels["account"]: s.value for s in samples(text) if s.name == "kvledger_pool_tokens"}
    assert list(accounts) == [account.value for account in Account]
    assert sum(accounts.values()) == 257 * 32


def test_a_priced_pool_is_told_in_bytes_and_its_figures_in_tokens_too():
    with serving("plain") as url:
        text = scrape(collector_of(follower(url, complete=lambda shape, _: price_by_token(shape, 1000))))
    assert sum(values(text, "kvledger_pool_bytes")) == 257 * 32 * 1000
    assert values(text, "kvledger_pool_tokens") == []
    (held_bytes,) = values(text, "kvledger_figure_low_bytes", figure="held")
    (held_tokens,) = values(text, "kvledger_figure_low_tokens", figure="held")
    assert held_bytes == 1000 * held_tokens > 0


def test_no_two_series_are_the_same():
    with serving("preempted") as url:
        text = scrape(collector_of(follower(url, name="a"), follower(url, name="b")))
    found = [(s.name, tuple(sorted(s.labels.items()))) for s in samples(text)]
    assert len(found) == len(set(found)) > 100


def test_a_server_that_is_down_has_no_series_but_its_own_state():
    with serving("plain") as url:
        text = scrape(collector_of(follower(url, name="a"), follower(NOWHERE, name="b")))
    assert values(text, "kvledger_source_up", source="a") == [1]
    assert values(text, "kvledger_source_up", source="b") == [0]
    assert {s.name for s in samples(text) if s.labels.get("source") == "b"} == {
        "kvledger_source_up",
        "kvledger_source_scrape_seconds",
        "kvledger_source_failures_total",
    }


def test_series_vanish_with_the_server_and_come_back_with_it():
    with serving("plain", failing=(1,)) as url:
        collector = collector_of(follower(url))
        texts = [scrape(collector) for _ in range(3)]
    assert [values(text, "kvledger_source_up") for text in texts] == [[1], [0], [1]]
    assert [len(values(text, "kvledger_pool_tokens")) for text in texts] == [7, 0, 7]
    assert [values(text, "kvledger_source_failures_total") for text in texts] == [[0], [1], [1]]


def test_a_server_that_hangs_delays_nothing_beyond_its_timeout():
    release = threading.Event()
    with answering(lambda connection, request: release.wait(10)) as slow, serving("plain") as url:
        began = time.monotonic()
        text = scrape(collector_of(follower(slow, name="slow", timeout=0.3), follower(url, name="fast")))
        took = time.monotonic() - began
        release.set()
    assert took < 3
    assert values(text, "kvledger_source_up", source="slow") == [0]
    assert values(text, "kvledger_source_up", source="fast") == [1]


def test_an_engine_without_a_ledger_says_so_and_keeps_its_load():
    with answering(reply(without_a_ledger())) as url:
        text = scrape(collector_of(follower(url)))
    assert values(text, "kvledger_ledger_drawn") == [0]
    assert values(text, "kvledger_running_requests") == [3]
    assert values(text, "kvledger_pool_tokens") == []


def test_engines_behind_one_server_are_told_apart():
    text = rows("async")[20]["text"]
    both = text + text.replace('engine="0"', 'engine="1"')
    with answering(reply(both)) as url:
        found = scrape(collector_of(follower(url)))
    assert len(values(found, "kvledger_pool_tokens", engine="0")) == 7
    assert len(values(found, "kvledger_pool_tokens", engine="1")) == 7


def test_another_engine_is_exported_as_it_tells_its_pool():
    with answering(reply(SGLANG.replace("TP", "0"))) as url:
        text = scrape(collector_of(follower(url)))
    assert values(text, "kvledger_engine_info", server="sglang", model="m") == [1]
    assert sum(values(text, "kvledger_pool_tokens", engine="0")) == 1024
    assert values(text, "kvledger_pool_tokens", account="cached") == [128]
    assert values(text, "kvledger_figure_high_tokens", figure="held") == [256]


def test_ranks_of_one_index_are_told_apart_by_their_labels():
    with answering(reply(SGLANG.replace("TP", "0") + SGLANG.replace("TP", "1"))) as url:
        text = scrape(collector_of(follower(url)))
    engines = {s.labels["engine"] for s in samples(text) if s.name == "kvledger_ledger_drawn"}
    assert engines == {"0/tp 0", "0/tp 1"}


def test_a_restart_of_a_server_is_counted():
    first, second = rows("async")[40]["text"], rows("sync")[3]["text"]
    left = chain([first], repeat(second))
    with answering(lambda connection, request: reply(next(left))(connection, request)) as url:
        collector = collector_of(follower(url))
        found = [values(scrape(collector), "kvledger_restarts_total") for _ in range(3)]
    assert found == [[0], [1], [1]]


def test_scrapes_close_together_share_one_look():
    with serving("plain") as url:
        looks = []
        collector = LedgerCollector([follower(url)], fresh_seconds=60, on_look=looks.append)
        assert scrape(collector) == scrape(collector)
    assert len(looks) == 1


@pytest.mark.parametrize("body", ["<html>hello</html>", "", "garbage 1\n", "vllm:", "\x00" * 100])
def test_an_answer_that_is_no_metrics_is_a_server_that_is_down(body):
    with answering(reply(body)) as url:
        looks = []
        text = scrape(collector_of(follower(url), on_look=looks.append))
    assert values(text, "kvledger_source_up") == [0]
    assert looks[0][0].error


def test_a_fault_of_ours_takes_only_its_own_server_down():
    def broken(shape, engine):
        raise ZeroDivisionError("oops")

    with serving("plain") as url:
        text = scrape(collector_of(follower(url, name="a", complete=broken), follower(url, name="b")))
    assert values(text, "kvledger_source_up", source="a") == [0]
    assert values(text, "kvledger_source_up", source="b") == [1]


def test_labels_from_outside_cannot_break_the_text():
    text = rows("async")[20]["text"].replace('model_name="mid"', r'model_name="a\"} 1\nkvledger_x{b=\"\\"')
    with answering(reply(text)) as url:
        found = scrape(collector_of(follower(url)))
    (info,) = [s for s in samples(found) if s.name == "kvledger_engine_info"]
    assert info.labels["model"] == 'a"} 1\nkvledger_x{b="\\'
    assert "\nkvledger_x" not in found


def test_names_from_outside_are_cut_and_never_make_two_series_of_one_name():
    long = "m" * 5000
    text = SGLANG.replace("TP", "0")
    both = text.replace('"m"', f'"{long}1"') + text.replace('"m"', f'"{long}2"')
    with answering(reply(both)) as url:
        found = scrape(collector_of(follower(url)))
    series = [(s.name, tuple(sorted(s.labels.items()))) for s in samples(found)]
    assert len(series) == len(set(series)) > 20
    assert values(found, "kvledger_ledger_drawn") == [1, 1]
    assert max(len(value) for s in samples(found) for value in s.labels.values()) <= 200
