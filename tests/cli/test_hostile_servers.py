"""A server that does everything wrong, one answer after another: each is told, and a recording goes on to its end."""

import gzip
import json
import time
from itertools import count, islice

import pytest
from click.testing import CliRunner

from kvledger.cli import measure as measuring
from kvledger.errors import SourceError
from kvledger.sources.http import Access
from kvledger.sources.recordings import Recorder, read_recording
from kvledger.sources.servers import Pace, Window, open_feed
from tests.measure.recorded import rows
from tests.sources.servers import answering, reply

GOOD = next(row["text"] for row in rows("async") if row["phase"] == "plain")


def drip(connection, request):
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(100):
        connection.sendall(b"v")
        time.sleep(0.05)


def endless(connection, request):
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
    while True:
        connection.sendall(b"vllm:num_requests_running 1\n" * 4096)


def send(content):
    return lambda connection, request: connection.sendall(content)


HOSTILE = {
    "cut off": (
        send(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + GOOD[:900].encode()),
        "cut off: 900 of 5,000",
    ),
    "a gigabyte": (endless, "more than 200,000 bytes"),
    "drip by drip": (drip, "did not finish its answer within"),
    "silence": (lambda connection, request: time.sleep(3), "did not finish its answer within"),
    "redirect": (send(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"), "redirect"),
    "a web page": (reply("<!DOCTYPE html><p>login", headers="Content-Type: text/html\r\n"), "web page"),
    "a picture": (reply(b"\x89PNG\r\n\x1a\n\x00\x00\x00"), "binary"),
    "no HTTP": (send(b"\xff\xfe garbage \x00"), "no HTTP server"),
    "a refusal": (reply("", status="500 Internal"), "status 500"),
    "hung up": (lambda connection, request: None, "broke off"),
    "nothing": (reply(""), "no metric of vLLM"),
    "JSON": (reply('{"error": "' + "x" * 9000 + '"}'), "no metric of vLLM"),
    "another exporter": (reply("node_cpu_seconds_total 5\n"), "no metric of vLLM"),
    "broken gzip": (reply(b"not gzip", headers="Content-Encoding: gzip\r\n"), "cannot be reached"),
    "a bomb": (
        reply(gzip.compress(b"\0" * 50_000_000), headers="Content-Encoding: gzip\r\n"),
        "more than 200,000 bytes",
    ),
    "endless header": (send(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000), "cannot be reached"),
    "numbers beyond belief": (reply('vllm:num_requests_running{engine="0"} 1e999\n'), "neither running requests"),
}


@pytest.fixture
def turns():
    """A server that is good, then hostile in every way, then good for ever."""
    number = count()

    def answer(connection, request):
        if b"/metrics" not in request:
            return reply("", status="404 Not Found")(connection, request)
        at = next(number) - 1
        chosen = list(HOSTILE.values())[at][0] if 0 <= at < len(HOSTILE) else reply(GOOD)
        return chosen(connection, request)

    with answering(answer) as url:
        yield url


def test_a_recording_goes_on_whatever_the_server_does(turns, tmp_path):
    access = Access(timeout_seconds=1, max_bytes=200_000)
    feed = open_feed([turns], access=access, pace=Pace(every_seconds=0.01, for_seconds=None), window=Window())
    with Recorder(str(tmp_path / "r")) as recorder:
        for sample in islice(feed.samples, len(HOSTILE) + 3):
            recorder.write(sample)
    samples = list(read_recording(tmp_path / "r"))
    failed = [sample.error for sample in samples if sample.scrape is None]
    for told, (name, (_, expected)) in zip(failed, HOSTILE.items(), strict=True):
        assert expected in told, name
        assert "passwd" not in told
    assert [sample.scrape is not None for sample in (samples[0], *samples[-2:])] == [True] * 3
    result = CliRunner().invoke(measuring.command, [str(tmp_path / "r"), "--json"], standalone_mode=False)
    (source,) = json.loads(result.stdout)["sources"]
    assert (source["missed"], source["engines"][0]["samples"]) == (len(HOSTILE), 3)


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in ("JSON", "another exporter", "nothing")])
def test_a_server_that_is_hostile_at_once_is_one_clear_error(name):
    answer, expected = HOSTILE[name]
    with answering(answer) as url:
        patience = "0.3s" if name in ("silence", "drip by drip") else "20s"
        arguments = [url, "--timeout", patience, "--max-size", "200000"]
        result = CliRunner().invoke(measuring.command, arguments, standalone_mode=False)
    assert isinstance(result.exception, SourceError)
    assert expected in result.exception.message
    assert result.exception.hint
