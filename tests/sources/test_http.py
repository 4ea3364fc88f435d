"""Whatever a server does, a fetch ends in time with the body or with one clear error."""

import gzip
import shutil
import ssl
import subprocess
import time

import pytest

from kvledger.errors import SourceError, UsageError
from kvledger.sources.http import Access, fetch, fetch_with_retries, parse_address, read_token
from tests.sources.servers import answering, reply

QUICK = Access(timeout_seconds=0.4, max_bytes=100_000)


def get(url, access=QUICK):
    return fetch(parse_address(url, default_path="/metrics"), access)


def test_a_body_is_fetched():
    with answering(reply("vllm:x 1\n", headers="Content-Type: text/plain\r\n")) as url:
        body = get(url)
    assert (body.content, body.content_type) == (b"vllm:x 1\n", "text/plain")


def test_a_unix_socket_is_asked(tmp_path):
    with answering(reply("a 1\n"), path=str(tmp_path / "s")) as url:
        assert get(url).content == b"a 1\n"


def test_a_compressed_body_is_unpacked():
    packed = gzip.compress(b"x" * 5000)
    with answering(reply(packed, headers="Content-Encoding: gzip\r\n")) as url:
        assert get(url).content == b"x" * 5000


def test_a_compressed_bomb_stops_at_the_size_limit():
    packed = gzip.compress(b"x" * 50_000_000)
    with (
        answering(reply(packed, headers="Content-Encoding: gzip\r\n")) as url,
        pytest.raises(SourceError, match="more than"),
    ):
        get(url)


def test_an_endless_body_stops_at_the_size_limit():
    def endless(connection, request):
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)

    with answering(endless) as url, pytest.raises(SourceError, match="more than 100,000 bytes"):
        get(url)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_server_that_drips_ends_at_the_deadline(head):
    def drip(connection, request):
        connection.sendall(head)
        while True:
            connection.sendall(b"x")
            time.sleep(0.05)

    with answering(drip) as url:
        began = time.monotonic()
        with pytest.raises(SourceError, match=r"within 0.4 s"):
            get(url)
        assert time.monotonic() - began < 2


def test_a_silent_server_ends_at_the_deadline():
    with answering(lambda connection, request: time.sleep(1)) as url, pytest.raises(SourceError, match="within"):
        get(url)


def test_a_body_that_is_cut_off_is_told():
    def cut(connection, request):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")

    with answering(cut) as url, pytest.raises(SourceError, match="cut off: 4 of 1,000 bytes"):
        get(url, Access(timeout_seconds=20))


def test_a_redirect_is_not_followed():
    moved = reply("", status="302 Found", headers="Location: http://127.0.0.1:1/\r\n")
    with answering(moved) as url, pytest.raises(SourceError, match="redirect"):
        get(url)


@pytest.mark.parametrize(("status", "hint"), [("401 No", "token"), ("404 No", "path"), ("500 No", "server")])
def test_other_statuses_are_told_with_what_to_do(status, hint):
    with answering(reply("secret", status=status)) as url, pytest.raises(SourceError) as caught:
        get(url)
    assert status[:3] in caught.value.message
    assert hint in caught.value.hint
    assert "secret" not in str(caught.value.as_record())


def test_garbage_is_no_http():
    with (
        answering(lambda connection, request: connection.sendall(b"\x00\xff" * 400)) as url,
        pytest.raises(SourceError),
    ):
        get(url)


def test_nobody_at_the_address_is_told():
    with pytest.raises(SourceError, match="refused"):
        get("http://127.0.0.1:9")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Make a key and its own certificate for loopback, or skip where there is no openssl."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the command openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=tests.invalid"]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return certificate, key


def test_a_certificate_is_checked_unless_told_otherwise(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    with answering(reply("fine"), context=context) as url:
        url = url.replace("http://", "https://")
        with pytest.raises(SourceError, match="not trusted"):
            get(url, Access(timeout_seconds=2))
        assert get(url, Access(timeout_seconds=2, ca_file=str(certificate[0]))).content == b"fine"
        assert get(url, Access(timeout_seconds=2, verify_tls=False)).content == b"fine"


def test_certificates_that_cannot_be_read_are_told(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            get("https://127.0.0.1:9", Access(ca_file=str(path)))
    empty = tmp_path / "empty"
    empty.write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="cannot be read"):
        get("https://127.0.0.1:9", Access(ca_file=str(empty)))


def test_the_token_is_sent_and_never_told(tmp_path):
    seen = []

    def watch(connection, request):
        seen.append(request)
        reply("no", status="403 No")(connection, request)

    path = tmp_path / "token"
    path.write_text("s3cret\n")
    access = Access(timeout_seconds=1, token=read_token(str(path)))
    with answering(watch) as url, pytest.raises(SourceError) as caught:
        get(url, access)
    assert b"Authorization: Bearer s3cret" in seen[0]
    assert "s3cret" not in str(caught.value.as_record()) + repr(access)


def test_a_token_comes_from_the_environment_too(monkeypatch):
    monkeypatch.setenv("KVLEDGER_TOKEN", "abc")
    assert read_token(None) == "abc"
    monkeypatch.setenv("KVLEDGER_TOKEN", "a\nb")
    with pytest.raises(SourceError, match="no header"):
        read_token(None)


def test_a_passing_failure_is_tried_again():
    answers = iter(["503 Busy", "200 OK"])
    with answering(lambda c, r: reply("fine", status=next(answers))(c, r)) as url:
        body = fetch_with_retries(parse_address(url, default_path="/"), QUICK, backoff_seconds=0.01)
    assert body.content == b"fine"


def test_a_refusal_is_not_tried_again():
    asked = []
    with answering(lambda c, r: (asked.append(1), reply("", status="404 No")(c, r))) as url, pytest.raises(SourceError):
        fetch_with_retries(parse_address(url, default_path="/"), QUICK, backoff_seconds=0.01)
    assert len(asked) == 1


@pytest.mark.parametrize(
    "url",
    ["ftp://x", "http://", "http://user:secret@host", "http://h:99999", "unix:relative", "http://h/a b", "http://[::1"],
)
def test_addresses_that_cannot_be_used_are_refused_without_secrets(url):
    with pytest.raises(UsageError) as caught:
        parse_address(url, default_path="/metrics")
    assert "secret" not in str(caught.value.as_record())


def test_an_address_without_path_asks_for_metrics():
    assert parse_address("http://h:1", default_path="/metrics").path == "/metrics"
    assert parse_address("https://h/x?y=1", default_path="/metrics").path == "/x?y=1"
    assert parse_address("https://h", default_path="/metrics").port == 443


def test_a_handshake_that_fails_says_what_to_change(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    trusting = Access(timeout_seconds=2, ca_file=str(certificate[0]))
    with answering(reply("fine"), context=context) as url:
        with pytest.raises(SourceError) as plain:
            get(url, Access(timeout_seconds=2))
        with pytest.raises(SourceError) as other_name:
            get(url.replace("http://127.0.0.1", "https://localhost"), trusting)
    assert "`https://`" in plain.value.hint
    assert other_name.value.hint == "ask it under a name that its certificate is for, or add --insecure"
    with (
        answering(lambda connection, request: connection.sendall(b"HTTP/1.1 400 no\r\n\r\n")) as url,
        pytest.raises(SourceError, match="it does not speak TLS") as found,
    ):
        get(url.replace("http://", "https://"), trusting)
    assert found.value.hint == "write `http://` instead of `https://`, or check the port"


def test_a_handshake_that_is_never_answered_may_be_plain_http():
    with answering(lambda connection, request: time.sleep(0.4)) as url, pytest.raises(SourceError) as found:
        get(url.replace("http://", "https://"), Access(timeout_seconds=0.2))
    assert found.value.hint == "give it more time with --timeout, or write `http://` if it does not speak TLS"


def test_a_token_file_that_cannot_be_read_says_why(tmp_path):
    with pytest.raises(SourceError, match="cannot be read: No such file or directory"):
        read_token(str(tmp_path / "none"))


def test_a_server_that_loads_its_model_is_told_from_one_that_is_gone():
    with answering(reply("", status="503 Busy")) as url, pytest.raises(SourceError) as found:
        get(url)
    assert found.value.message == "the server answers with status 503 (it is loading its model, or overloaded)"
