"""`kvledger export`: which sources it takes, how it starts, and how it ends."""

import re
import shutil
import signal
import socket
import subprocess
import urllib.request
from contextlib import contextmanager

import pytest

from kvledger.cli.exporting import name_sources
from kvledger.errors import UsageError
from tests.cli.calling import call, command, environment
from tests.cli.serving import serving


@contextmanager
def exporter(*arguments):
    """Start an exporter on a free port; yield the process and the address it says it serves."""
    process = subprocess.Popen(
        command("export", *arguments, "--port", 0), stderr=subprocess.PIPE, text=True, env=environment()
    )
    try:
        yield process, re.search(r"http://\S+", process.stderr.readline())[0]
    finally:
        process.kill()
        process.wait(30)
        process.stderr.close()


def fetch(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def test_sources_are_numbered_unless_they_are_named():
    assert name_sources(["http://a:1"]) == [("server", "http://a:1")]
    assert name_sources(["http://a:1", "b=https://b"]) == [("server 1", "http://a:1"), ("b", "https://b")]
    assert name_sources(["x=unix:/run/a.sock"]) == [("x", "unix:/run/a.sock")]


def test_an_address_with_an_equals_sign_is_no_name():
    assert name_sources(["http://a:1/metrics?x=http://b"]) == [("server", "http://a:1/metrics?x=http://b")]


@pytest.mark.parametrize("source", ["metrics.txt", "-", "prometheus:http://p:9090", "x=metrics.txt", "demo"])
def test_only_running_servers_can_be_exported(source):
    with pytest.raises(UsageError, match="no running server"):
        name_sources([source])


def test_two_sources_of_one_name_are_refused():
    with pytest.raises(UsageError, match="two sources are named `a`"):
        name_sources(["a=http://a", "a=http://b"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_serves_until_it_is_told_to_stop(number, code):
    with serving("plain") as url, exporter(f"a={url}") as (process, address):
        text = fetch(address)
        assert 'kvledger_source_up{source="a"} 1.0' in text
        assert url.partition("//")[2] not in text
        process.send_signal(number)
        assert process.wait(20) == code


def test_it_listens_on_loopback_and_starts_before_its_servers_do():
    with exporter("http://127.0.0.1:9") as (process, address):
        assert address.startswith("http://127.0.0.1:")
        assert 'kvledger_source_up{source="server"} 0.0' in fetch(address)
        assert process.stderr.readline().startswith("server is down: the server cannot be reached")


def test_a_port_that_is_taken_is_an_error_with_a_way_out(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        called = call(capsys, "export", "http://127.0.0.1:9", "--port", taken.getsockname()[1])
    assert called.code == 2
    assert "cannot be listened on" in called.err
    assert "--port" in called.err


def test_an_address_that_is_not_ours_is_an_error(capsys):
    called = call(capsys, "export", "http://127.0.0.1:9", "--host", "192.0.2.1")
    assert called.code == 2
    assert "cannot be listened on" in called.err


@pytest.mark.parametrize(
    "flags",
    ["--rules vllm", "--rules sglang", "--alerts exporter", "--alerts rules", "--rules vllm --assume-one-table"],
)
def test_rules_are_written_to_a_file_that_prometheus_takes(capsys, tmp_path, flags):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool: install the package `prometheus`")
    path = tmp_path / "rules.yml"
    assert call(capsys, "export", *flags.split(), "-o", path).code == 0
    done = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_prefix_is_the_beginning_of_names(capsys):
    assert "sum by" in call(capsys, "export", "--rules", "vllm", "--prefix", "ray_vllm_").out
    called = call(capsys, "export", "--rules", "vllm", "--prefix", "vllm{}")
    assert called.code == 2
    assert "no beginning of metric names" in called.err


def test_sources_and_files_are_not_asked_for_together(capsys):
    called = call(capsys, "export", "http://a", "--rules", "vllm")
    assert called.code == 2
    assert "--rules and SOURCE were given together" in called.err
    assert "no SOURCE was given" in call(capsys, "export").err


@pytest.mark.parametrize(("host", "target"), [("127.0.0.1", "127.0.0.1:9999"), ("::1", "[::1]:9999")])
def test_the_scrape_configuration_names_where_the_exporter_listens(capsys, host, target):
    called = call(capsys, "export", "--scrape-config", "--host", host, "--port", 9999)
    assert f'targets: ["{target}"]' in called.out
    assert (called.code, called.err) == (0, "")


@pytest.mark.parametrize("kind", ["exporter", "rules"])
def test_a_dashboard_is_one_object(capsys, kind):
    assert call(capsys, "export", "--dashboard", kind).json()["uid"] == f"kvledger-{kind}"


def test_what_an_exporter_serves_is_known_by_measure_and_by_files_of_it(capsys, tmp_path):
    with exporter("chat=http://127.0.0.1:9", "code=http://127.0.0.1:9") as (_, url):
        text = fetch(url)
        called = call(capsys, "measure", url)
    path = tmp_path / "saved.txt"
    path.write_text(text)
    for told in (called, call(capsys, "measure", path), call(capsys, "check", path, "--max-held", "9%")):
        assert told.code == 2
        assert "this is `kvledger export`, which serves the ledgers of `chat`, `code`" in told.err
        assert "127.0.0.1:9" not in told.err
