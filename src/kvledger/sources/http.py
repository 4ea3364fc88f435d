"""HTTP for scrapes: one GET at a time, bounded in time and size, over TCP, TLS or a Unix socket.

A server can be slow, endless, wrong or hostile: whatever it sends, :func:`fetch` ends by the deadline with the body or
with one :class:`SourceError` that says what happened. Redirects are not followed and credentials never leave the
request: they are in no message.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3
from urllib3 import HTTPResponse
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, IncompleteRead

import kvledger
from kvledger.errors import SourceError, UsageError

__all__ = ["Access", "Address", "Body", "fetch", "fetch_with_retries", "parse_address", "read_token"]

TOKEN_VARIABLE = "KVLEDGER_TOKEN"
_CHUNK = 65536
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
"""What OpenSSL makes of a server that answers a handshake in plain HTTP."""
_EXPIRED, _OTHER_NAMES = 10, (62, 64)
"""X.509 verification codes of OpenSSL: out of date; of another host, of another IP address."""
_MAX_TOKEN = 16384
_HINTS = {
    401: "give a bearer token with --token-file, or in KVLEDGER_TOKEN",
    503: "ask again when it has loaded; --for goes on asking a server that answered once",
    403: "the token may not read metrics",
    404: "check the path; vLLM, SGLang, llama.cpp, TGI, TensorRT-LLM, LMDeploy and Transformers are read, and serve "
    "/metrics beside /v1 (SGLang and LMDeploy with --enable-metrics)",
}

_MEANINGS = {503: " (it is loading its model, or overloaded)"}
"""Of llama-server, which listens before its model is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a server may be asked."""

    timeout_seconds: float = 5.0
    """Connecting, waiting and reading together."""
    max_bytes: int = 32 * 2**20
    ca_file: str | None = None
    verify_tls: bool = True
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to ask: a host and port, or a Unix socket."""

    host: str
    port: int
    path: str
    is_tls: bool = False
    socket_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What came back."""

    content: bytes
    content_type: str


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._socket_path = path

    def _new_conn(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(self.timeout if isinstance(self.timeout, int | float) else None)
        try:
            sock.connect(self._socket_path)
        except OSError:
            sock.close()
            raise
        return sock


def parse_address(url: str, *, default_path: str) -> Address:
    """Read ``http://host:port/path``, ``https://...`` or ``unix:/path/to.sock[:/path]``.

    Raises:
        UsageError: It is none of them, or holds a password.
    """
    if url.startswith("unix:"):
        path, _, rest = url.removeprefix("unix:").removeprefix("//").partition(":")
        if not path.startswith("/"):
            raise UsageError("a Unix socket needs an absolute path", hint="write `unix:/run/vllm.sock`")
        return Address(host="localhost", port=0, path=rest or default_path, socket_path=path)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"the address cannot be read: {error}", hint="write `http://host:8000`") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError("the address is no http or https URL", hint="write `http://host:8000`")
    if parts.username is not None or parts.password is not None:
        raise UsageError("the address holds a user name or password", hint=_HINTS[401])
    if any(not c.isprintable() or c.isspace() for c in url):
        raise UsageError("the address holds blanks or control characters", hint="write `http://host:8000`")
    path = parts.path if parts.path not in ("", "/") else default_path
    query = f"?{parts.query}" if parts.query else ""
    secure = parts.scheme == "https"
    return Address(host=parts.hostname, port=port or (443 if secure else 80), path=path + query, is_tls=secure)


def read_token(token_file: str | None) -> str | None:
    """Read a bearer token from a file, else from the environment; None when there is none.

    Raises:
        SourceError: The file cannot be read, or holds no token.
    """
    if token_file is None:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
    else:
        try:
            with Path(token_file).open("rb") as stream:
                token = stream.read(_MAX_TOKEN).decode("ascii", errors="replace").strip()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "its name holds zero bytes"
            raise SourceError(f"the token file cannot be read: {why}", hint="check --token-file") from None
        if not token:
            raise SourceError("the token file is empty")
    if not token:
        return None
    if not token.isascii() or not token.isprintable() or " " in token:
        raise SourceError("the bearer token holds blanks or characters no header can carry")
    return token


def fetch_with_retries(address: Address, access: Access, *, retries: int = 2, backoff_seconds: float = 0.2) -> Body:
    """Fetch, and try again after a pause when the server could not be reached or was overloaded.

    Raises:
        SourceError: All attempts failed; the last failure is told.
    """
    for attempt in range(retries + 1):
        try:
            return fetch(address, access)
        except SourceError as error:
            if attempt == retries or not error.attributes.get("is_transient"):
                raise
        time.sleep(backoff_seconds * 2**attempt)
    raise AssertionError


def fetch(address: Address, access: Access) -> Body:
    """Fetch one body.

    Raises:
        SourceError: It was not reached, did not answer in time, sent too much, or sent another status than 200.
    """
    connection = _connect_to(address, access)
    deadline = time.monotonic() + access.timeout_seconds
    watchdog = threading.Timer(access.timeout_seconds, _hang_up, [connection])
    watchdog.daemon = True
    watchdog.start()
    try:
        return _exchange(connection, address, access, deadline)
    except (HTTPError, HTTPException, OSError, ValueError) as error:
        if time.monotonic() >= deadline - 0.01:
            raise _late(access, is_tls=address.is_tls) from None
        if isinstance(error.__cause__, IncompleteRead):
            raise _cut_off(error.__cause__.partial, error.__cause__.partial + error.__cause__.expected) from None
        raise SourceError(
            f"the server cannot be reached: {_reason(error)}",
            hint=_tell_next(error),
            is_transient=not isinstance(error, ssl.SSLError),
        ) from None
    finally:
        watchdog.cancel()
        connection.close()


def _connect_to(address: Address, access: Access) -> HTTPConnection:
    if address.socket_path is not None:
        return _UnixConnection(address.socket_path, access.timeout_seconds)
    if not address.is_tls:
        return HTTPConnection(address.host, address.port, timeout=access.timeout_seconds)
    try:
        context = ssl.create_default_context(cafile=access.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"the certificates to trust cannot be read: {error.strerror or 'the file holds none'}",
            hint="give --ca-file a file of certificates in PEM format",
        ) from None
    if not access.verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return HTTPSConnection(address.host, address.port, timeout=access.timeout_seconds, ssl_context=context)


def _exchange(connection: HTTPConnection, address: Address, access: Access, deadline: float) -> Body:
    headers = {
        "Accept": "text/plain, application/json;q=0.9, */*;q=0.1",
        "Accept-Encoding": "gzip",
        "Connection": "close",
        "User-Agent": f"kvledger/{kvledger.__version__}",
    }
    if access.token is not None:
        headers["Authorization"] = f"Bearer {access.token}"
    connection.request("GET", address.path, headers=headers, preload_content=False, decode_content=True)
    with closing(connection.getresponse()) as response:
        return _read(response, access, deadline)


def _read(response: HTTPResponse, access: Access, deadline: float) -> Body:
    if response.status != 200:
        raise _refused(response)
    pieces: list[bytes] = []
    size = 0
    while piece := response.read1(_CHUNK, decode_content=True):
        size += len(piece)
        if size > access.max_bytes:
            raise SourceError(
                f"the server sent more than {access.max_bytes:,} bytes",
                hint="is this the address of its /metrics?",
            )
        if time.monotonic() > deadline:
            raise _late(access)
        pieces.append(piece)
    if time.monotonic() >= deadline:
        raise _late(access)
    expected = response.headers.get("Content-Length", "")
    if expected.isdigit() and "Content-Encoding" not in response.headers and int(expected) != size:
        raise _cut_off(size, int(expected))
    return Body(content=b"".join(pieces), content_type=response.headers.get("Content-Type", "")[:100])


def _refused(response: Any) -> SourceError:
    status = response.status
    if 300 <= status < 400:
        return SourceError(f"the server answers with a redirect ({status})", hint="give the address it leads to")
    return SourceError(
        f"the server answers with status {status}" + _MEANINGS.get(status, ""),
        hint=_HINTS.get(status, "check the server"),
        status=status,
        is_transient=(status >= 500 and status != 501) or status == 429,
    )


def _cut_off(size: int, expected: int) -> SourceError:
    return SourceError(
        f"the body was cut off: {size:,} of {expected:,} bytes came",
        hint="the server, or a proxy before it, hung up: ask again",
        is_transient=True,
    )


def _late(access: Access, *, is_tls: bool = False) -> SourceError:
    plain = ", or write `http://` if it does not speak TLS" if is_tls else ""
    return SourceError(
        f"the server did not finish its answer within {access.timeout_seconds:g} s",
        hint=f"give it more time with --timeout{plain}",
        is_transient=True,
    )


def _hang_up(connection: HTTPConnection) -> None:
    """Break the connection at the deadline, wherever it waits."""
    sock = connection.sock
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _reason(error: Exception) -> str:
    """Say what went wrong without quoting addresses or content."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        return "it does not speak TLS"
    if isinstance(error, urllib3.exceptions.NameResolutionError):
        return "its name is not known"
    for cause in (error, error.__cause__):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
    if isinstance(error, urllib3.exceptions.ConnectTimeoutError | TimeoutError):
        return "no answer in time"
    return "it broke off, or is no HTTP server"


def _tell_next(error: Exception) -> str:
    """Say what can be done about a server that was not reached."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_NAMES:
            return "ask it under a name that its certificate is for, or add --insecure"
        return (
            "renew the certificate, or add --insecure" if error.verify_code == _EXPIRED else "trust it with --ca-file"
        )
    if isinstance(error, ssl.SSLError):
        return "write `http://` instead of `https://`, or check the port"
    causes = (error, error.__cause__)
    if any(isinstance(cause, ConnectionResetError | HTTPException) for cause in causes):
        return "check the address; a server that speaks TLS is `https://`"
    return "check the address, and that the server runs"
