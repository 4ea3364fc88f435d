"""One running server of any engine: which one it is shows at the first answer, and what is asked follows from that.

Only GETs, and only what tells of the cache: ``/metrics`` of most engines; ``/props``, ``/slots`` and ``/metrics`` of
llama.cpp; ``/prometheus/metrics`` of TensorRT-LLM, because reading its ``/metrics`` takes the statistics away from
other readers; ``/v1/loads`` of an SGLang without ``--enable-metrics``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from kvledger.engines.facts import Engine, EngineSnapshot
from kvledger.engines.recognise import Recognition, TextKind, recognise
from kvledger.engines.transformers.metrics import is_serve_api
from kvledger.engines.vllm.metrics import VllmScrape, read_vllm_metrics
from kvledger.errors import SourceError
from kvledger.measure.tear import is_surely_torn
from kvledger.sources.encoding import decode, is_wide
from kvledger.sources.http import Access, Address, fetch, fetch_with_retries
from kvledger.units import counted

__all__ = ["Answer", "Endpoint", "decode_text", "read_text", "refuse_own"]

_NAMES = (
    "/prometheus/metrics",
    "/metrics",
    "/slots",
    "/props",
    "/v1/loads",
    "/server_info",
    "/api/ps",
    "/openapi.json",
)
"""Addresses that stand for their server, longest first where one ends another."""
_OWN = "# TYPE kvledger_source_up "
_OWN_SOURCE = re.compile(r'^kvledger_source_up\{source="([^"\\\n]{1,64})"\}', re.MULTILINE)
_OWN_HEAD = 2**20
_MUTE = (404, 405, 501)
_TORN_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server says at one moment: a scrape of vLLM, or what another engine says."""

    scrape: VllmScrape | None = None
    snapshots: tuple[EngineSnapshot, ...] = ()


@dataclass(slots=True)
class Endpoint:
    """One server; :meth:`take` asks it for one sample."""

    address: Address
    access: Access
    retries: int = 2
    """How often the first question is asked again when the server cannot be reached."""
    _read: Callable[[], Answer] | None = field(default=None, init=False)
    _has_metrics: bool = field(default=True, init=False)

    def take(self) -> Answer:
        """Ask for one sample; the first time, find out what the server is.

        Raises:
            SourceError: It gives no answer that can be read.
        """
        if self._read is not None:
            return self._read()
        self._read, first = self._find()
        return first if first is not None else self._read()

    def _find(self) -> tuple[Callable[[], Answer], Answer | None]:
        """Return how the server is read, and its first sample when it came with that."""
        retries, self.retries = self.retries, 0
        try:
            body = fetch_with_retries(self.address, self.access, retries=retries)
        except SourceError as error:
            if error.attributes.get("status") not in _MUTE:
                raise
            return self._find_without_metrics(error), None
        text = decode_text(body.content, body.content_type)
        found = recognise(text)
        if text.strip() == "[]" or (found is not None and found.kind is TextKind.ITERATIONS):
            return self._read_tensorrt_llm, None
        if found is not None and found.engine is Engine.LLAMACPP:
            return self._read_llamacpp, None
        if found is not None and found.kind is TextKind.RUNNING:
            raise _tell_ollama(text)
        return self._read_metrics, read_text(text)

    def _find_without_metrics(self, refused: SourceError) -> Callable[[], Answer]:
        """Ask for what servers without ``/metrics`` have; raise the first refusal when there is none of it."""
        for name, reader in (
            ("/props", self._read_llamacpp),
            ("/prometheus/metrics", self._read_tensorrt_llm),
            ("/v1/loads", self._read_sglang_loads),
            ("/api/ps", None),
        ):
            text = self._ask(name)
            found = None if text is None else recognise(text)
            if text is None or found is None or found.engine is None:
                continue
            if reader is None:
                raise _tell_ollama(text)
            return reader
        api = self._ask("/openapi.json")
        raise _tell_transformers() if api is not None and is_serve_api(api) else refused

    def _at(self, name: str) -> Address:
        """Return the address of another answer of the same server; what was asked for after a ``?`` stays."""
        path, mark, query = self.address.path.partition("?")
        base = next((path.removesuffix(one) for one in _NAMES if path.endswith(one)), path.rstrip("/"))
        return replace(self.address, path=f"{base}{name}{mark}{query}")

    def _ask(self, name: str) -> str | None:
        """Return another answer of the server, None when it has none."""
        try:
            body = fetch(self._at(name), self.access)
        except SourceError as error:
            if error.attributes.get("status") in _MUTE:
                return None
            raise
        with suppress(SourceError):
            return decode_text(body.content, body.content_type)
        return None

    def _read_metrics(self) -> Answer:
        """Read metrics; those of vLLM again when one part of them is a step older than the rest."""
        for _ in range(_TORN_TRIES):
            body = fetch(self.address, self.access)
            answer = read_text(decode_text(body.content, body.content_type))
            if answer.scrape is None or not any(map(is_surely_torn, answer.scrape.engines)):
                break
        return answer

    def _read_llamacpp(self) -> Answer:
        from kvledger.engines.llamacpp.metrics import read_metrics
        from kvledger.engines.llamacpp.slots import is_router, is_sleeping, join_answers, read_props, read_slots

        text = self._ask("/props")
        if text is not None and is_router(text):
            raise SourceError(
                "this is llama.cpp's router: it serves several models and has no slots of its own",
                hint="name one of its models that is loaded: `http://host:8080/?model=NAME&autoload=0`",
            )
        props, slots, metrics = None if text is None else read_props(text), None, None
        if props is not None and text is not None and is_sleeping(text):
            sleeping = replace(props, problem="the server sleeps: its model and its cache are not in memory")
            return Answer(snapshots=(sleeping,))
        found = self._ask("/metrics") if self._has_metrics else None
        if found is None:
            self._has_metrics = False
        else:
            metrics = next(iter(read_metrics(found)), None)
        told = self._ask("/slots")
        if told is not None:
            slots = read_slots(told)
        elif metrics is None or not metrics.pools:
            raise SourceError(
                "the server does not tell its slots", hint="start llama-server without `--no-slots` (old: with --slots)"
            )
        return Answer(snapshots=(join_answers(slots=slots, props=props, metrics=metrics),))

    def _read_tensorrt_llm(self) -> Answer:
        text = self._ask("/prometheus/metrics")
        if text is not None:
            found = read_text(text)
            if found.snapshots and found.snapshots[0].pools:
                return found
        body = fetch(self._at("/metrics"), self.access)
        text = decode_text(body.content, body.content_type)
        if text.strip() == "[]":
            raise SourceError(
                "the server keeps no statistics of its steps, or none came since they were read last",
                hint="start trtllm-serve with `enable_iter_perf_stats: true`; reading them takes them from others",
            )
        return read_text(text)

    def _read_sglang_loads(self) -> Answer:
        body = fetch(self._at("/v1/loads"), self.access)
        return read_text(decode_text(body.content, body.content_type))


def decode_text(content: bytes, content_type: str = "") -> str:
    """Return the text of an answer.

    Raises:
        SourceError: It is a web page, compressed, or no text.
    """
    start = content[:512].lstrip().lower()
    if start.startswith((b"<!doctype", b"<html")) or content_type.startswith("text/html"):
        raise SourceError(
            "the server answers with a web page, not with the metrics of vLLM, SGLang, llama.cpp, TGI, TensorRT-LLM, "
            "LMDeploy or Transformers",
            hint="give the /metrics address of one of them",
        )
    if content.startswith(b"\x1f\x8b"):
        raise SourceError("this is gzip data, not text", hint="unpack it: `zcat FILE | kvledger measure -`")
    if b"\x00" in content[:4096] and is_wide(content) is None:
        raise SourceError("this is binary data, not the text of /metrics", hint="give the server's /metrics address")
    return decode(content)


def read_text(text: str) -> Answer:
    """Read one answer of any engine: metrics, slots, iterations or loads.

    Raises:
        SourceError: It is none, or says nothing about a pool.
    """
    from kvledger.engines.readers import read_snapshots

    found = recognise(text)
    refuse_own(text, found)
    if found is None or found.engine is None or found.engine is Engine.VLLM or found.kind is TextKind.LOG:
        return Answer(scrape=read_vllm_metrics(text))
    if found.kind is TextKind.RUNNING:
        raise _tell_ollama(text)
    snapshots = read_snapshots(text, found)
    if found.kind is TextKind.ITERATIONS:
        snapshots = tuple({one.engine_index: one for one in snapshots}.values())
    if not any(one.pools or one.problem for one in snapshots):
        raise SourceError(
            f"{found.engine} says nothing about its KV pool here",
            hint="llama.cpp tells its slots at /slots, SGLang needs --enable-metrics",
        )
    return Answer(snapshots=snapshots)


def refuse_own(text: str, found: Recognition | None) -> None:
    """Raise for what `kvledger export` serves: ledgers, and not the metrics of an engine.

    Raises:
        SourceError: It is that; the servers are named as the exporter names them, for it tells no address.
    """
    if _OWN not in text[:_OWN_HEAD] or (found is not None and found.kind is TextKind.METRICS):
        return
    names = list(dict.fromkeys(_OWN_SOURCE.findall(text[:_OWN_HEAD])))
    listed = ", ".join(f"`{name}`" for name in names[:5]) + (", ..." if len(names) > 5 else "")
    raise SourceError(
        "this is `kvledger export`, which serves the ledgers of " + (listed or "other servers") + ", drawn up already",
        hint="measure the server itself: the address that stands behind its name in the command line of "
        "`kvledger export`",
    )


def _tell_transformers() -> SourceError:
    return SourceError(
        "this is `transformers serve`, which tells nothing of its cache: it has no /metrics, and its log is silent too",
        hint="start it as `python -m kvledger.live.transformers_serve` with the same arguments: that adds a /metrics",
    )


def _tell_ollama(text: str) -> SourceError:
    from kvledger.engines.ollama.running import read_running

    models = [
        one.name if one.context_tokens is None else f"{one.name} with {counted(one.context_tokens, 'token')} of context"
        for one in read_running(text)
    ]
    loaded = ", ".join(models[:5]) or "none"
    return SourceError(
        f"this is Ollama, which tells the models it has loaded ({loaded}), but not what is in their caches",
        hint="measure the llama-server that it runs (`ps` shows its port), or its log: `kvledger measure server.log`",
    )
