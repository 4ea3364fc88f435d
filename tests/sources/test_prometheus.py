"""A Prometheus server as a source: its answers become the scrapes they came from."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest

from kvledger.errors import SourceError, UsageError
from kvledger.measure.meter import Meter
from kvledger.sources.http import Access
from kvledger.sources.prometheus import Range, fetch_instances, read_api_answer
from tests.measure.recorded import measure, rows
from tests.sources.servers import answering, reply

QUICK = Access(timeout_seconds=5)


def stored(instances, times):
    """Return the series a Prometheus would hold of recorded rows, one row a second from 1000."""
    series = {}
    for instance, chosen in instances.items():
        for second, row in zip(times, chosen, strict=True):
            for line in row["text"].splitlines():
                if not line or line.startswith(("#", "process", "python")) or "_bucket" in line:
                    continue
                head, _, value = line.rpartition(" ")
                name, _, labels = head.partition("{")
                metric = {"__name__": name, "instance": instance, "job": "vllm"}
                for pair in labels.rstrip("}").split('",') if labels else ():
                    key, _, text = pair.partition('="')
                    metric[key] = text.rstrip('"')
                series.setdefault(json.dumps(metric, sort_keys=True), []).append([float(second), value])
    return [{"metric": json.loads(key), "values": values} for key, values in series.items()]


def prometheus(series):
    def answer(connection, request):
        query = parse_qs(urlsplit(request.split(b" ")[1].decode()).query)
        start, end = float(query["start"][0]), float(query["end"][0])
        result = [
            {"metric": one["metric"], "values": [v for v in one["values"] if start <= v[0] <= end]} for one in series
        ]
        body = {"status": "success", "data": {"resultType": "matrix", "result": [r for r in result if r["values"]]}}
        reply(json.dumps(body))(connection, request)

    return answering(answer)


def test_a_range_gives_each_instance_the_ledger_of_a_direct_measurement():
    chosen = [row for row in rows("async") if row["phase"] in ("start", "plain")][:20]
    with prometheus(stored({"a:1": chosen, "b:1": chosen[::-1]}, range(1000, 1020))) as url:
        span = Range(start_seconds=1000, end_seconds=1019, step_seconds=1)
        found = [(list(names), sample) for names, sample in fetch_instances(url, QUICK, span)]
    assert found[-1][0] == ["a:1", "b:1"]
    assert len(found) == 40
    direct = [reading for row, reading in measure("async", settled=False) if row in chosen]
    meter = Meter()
    for (_, sample), expected in zip([f for f in found if f[1].source == 0], direct, strict=True):
        reading = meter.take(sample.scrape, seconds=sample.seconds)[0]
        assert reading.balance.held == expected.balance.held
        assert reading.balance.live == expected.balance.live
        assert reading.sheet.ledger.capacity == expected.sheet.ledger.capacity


def test_instances_of_other_engines_are_read_by_their_own_series():
    """SGLang beside TGI beside vLLM, each instance by itself."""
    from tests.measure.test_pool_meter import TGI, pool_of, sglang

    texts = {
        "a": [{"text": sglang(**pool_of(used))} for used in (100, 300)],
        "b": [{"text": TGI}] * 2,
        "c": [row for row in rows("async") if row["phase"] == "plain"][:2],
    }
    with prometheus(stored(texts, [1000, 1001])) as url:
        span = Range(start_seconds=1000, end_seconds=1001, step_seconds=1)
        found = [(list(names), sample) for names, sample in fetch_instances(url, QUICK, span)]
    names = found[-1][0]
    by_name = {(names[sample.source], sample.seconds): sample for _, sample in found}
    assert [by_name["a", second].snapshots[0].pools[0].used.value for second in (1000, 1001)] == [100, 300]
    assert by_name["b", 1000].snapshots[0].reserved_tokens.value == 7800
    assert by_name["c", 1001].scrape is not None


def test_buckets_are_not_asked_for():
    asked = []

    def answer(connection, request):
        asked.append(parse_qs(urlsplit(request.split(b" ")[1].decode()).query)["query"][0])
        reply('{"status":"success","data":{"resultType":"matrix","result":[]}}')(connection, request)

    with answering(answer) as url, pytest.raises(SourceError):
        list(fetch_instances(url, QUICK, Range(start_seconds=0, end_seconds=1, step_seconds=1)))
    assert '__name__!~".+_bucket"' in asked[0]
    assert "sglang:.+" in asked[0]


def test_a_long_range_is_asked_for_in_slices():
    chosen = [rows("async")[0]] * 3
    with prometheus(stored({"a": chosen}, [1000, 1600, 2990])) as url:
        span = Range(start_seconds=1000, end_seconds=3000, step_seconds=1)
        assert [s.seconds for _, s in fetch_instances(url, QUICK, span)] == [1000, 1600, 2990]


def test_no_series_of_an_engine_is_an_error():
    with prometheus([]) as url, pytest.raises(SourceError, match="no series of an engine"):
        list(fetch_instances(url, QUICK, Range(start_seconds=0, end_seconds=10, step_seconds=1)))


@pytest.mark.parametrize("selector", ["job=vllm", "{a={b}}", "{" + "x" * 3000 + "}"])
def test_a_selector_is_in_braces(selector):
    span = Range(start_seconds=0, end_seconds=1, step_seconds=1, selector=selector)
    with pytest.raises(UsageError, match="label selector"):
        list(fetch_instances("http://127.0.0.1:9", QUICK, span))


def test_an_empty_range_is_refused():
    with pytest.raises(UsageError, match="empty"):
        list(fetch_instances("http://127.0.0.1:9", QUICK, Range(start_seconds=5, end_seconds=1, step_seconds=1)))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("<html>", "none of the Prometheus API"),
        ('{"status":"error","errorType":"bad_data","error":"parse"}', "refuses: bad_data parse"),
        ('{"status":"success","data":{"resultType":"scalar","result":[]}}', "scalar"),
        ('{"status":"success","data":{"resultType":"matrix","result":5}}', "none of the Prometheus API"),
    ],
)
def test_other_answers_are_refused(body, message):
    with answering(reply(body)) as url, pytest.raises(SourceError, match=message):
        list(fetch_instances(url, QUICK, Range(start_seconds=0, end_seconds=10, step_seconds=1)))


def test_a_saved_instant_answer_is_read(shared):
    cases = (json.loads(line) for line in (shared / "cases" / "handed.jsonl").read_text("utf-8").splitlines())
    text = next(case for case in cases if case["id"] == "K2-020")["printed"][0]
    named = text.replace('"metric":{', '"metric":{"__name__":"vllm:gpu_cache_usage_perc",')
    _, samples = read_api_answer(named.encode())
    assert [sample.scrape.engines[0].usage_ratio for sample in samples] == [0.004531619501132209, 0.03318649546860225]
    with pytest.raises(SourceError, match="no series of an engine"):
        read_api_answer(text.encode())
