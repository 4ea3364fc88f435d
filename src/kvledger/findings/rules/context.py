"""A context of llama.cpp that cannot be allocated, and one whose window has moved on."""

from __future__ import annotations

from collections.abc import Iterator

from kvledger.engines.facts import Engine, Notice, NoticeKind
from kvledger.findings.evidence import LogCase
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.rule import Rule
from kvledger.ledger import Accuracy
from kvledger.units import counted, format_bytes

__all__ = ["CacheRefused", "WindowForgets"]

_ENGINES = (Engine.LLAMACPP, Engine.OLLAMA)
_Q8_RATIO = 34 / 64
"""Bytes of 32 values in q8_0 (a scale and 32 bytes) over those in f16."""


class CacheRefused(Rule):
    """The context asks for a cache that the device refuses.

    What it measures:
        The bytes that llama.cpp asked for when it failed to allocate its KV cache, and the context they are for.

    Why it costs:
        The cache is allocated whole when a context is made, for every token that may ever come. Without `--ctx-size`
        that is the length the model was trained for.

    Example:
        A model trained for 1,048,576 tokens asks for 137,438,953,504 bytes: 128 KiB a token. Nothing is wrong with
        the number; the prompts had a few thousand tokens.

    What to change:
        `--ctx-size` (num_ctx of Ollama) as long as requests really are, for all slots together, or a smaller type of
        the cache.

    What gets worse:
        Longer conversations are cut or refused. q8_0 rounds keys and values.

    Known limits:
        The log does not say how much would have been there, so half the context is an example. With several devices
        the bytes are those of the one that refused.

    Sources:
        llama.cpp src/llama-kv-cache.cpp; ggml-org/llama.cpp#8101, #8817.
    """

    code = "KV018"

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Look for the error."""
        startup = case.startup
        errors = startup.errors if startup is not None else ()
        notice = next((one for one in reversed(errors) if one.kind is NoticeKind.CACHE_REFUSED), None)
        if notice is None or notice.needed is None or case.log.engine not in _ENGINES:
            return
        needed = notice.needed
        size = amount(needed.low, needed.high, formula="bytes that were refused", accuracy=Accuracy.MEASURED)
        of_context = "" if notice.asked is None else f" for a context of {notice.asked:,} tokens"
        each = "" if not notice.asked else f", {format_bytes(1024 * needed.value / notice.asked)} for each 1,024 tokens"
        yield self.tell(
            case.subject,
            f"the device refused {format_bytes(needed.value)} of cache{of_context}{each}",
            size,
            *self._remedies(case, notice),
        )

    def _remedies(self, case: LogCase, notice: Notice) -> Iterator[Remedy]:
        needed, is_ollama = notice.needed, case.log.engine is Engine.OLLAMA
        if needed is None:
            return
        if notice.asked is not None and notice.asked > 1:
            half = notice.asked // 2
            yield Remedy(
                setting=f"num_ctx {half:,}" if is_ollama else f"--ctx-size {half}",
                returned=amount(needed.low / 2, needed.high / 2, formula="half of the bytes"),
                trade=Trade.TRADE_OFF,
                proof=f"the cache grows with its context: {format_bytes(needed.value / 2)} hold {half:,} tokens",
                worse=f"conversations above {counted(half, 'token')}, all slots together, are cut or refused",
            )
        pool = next(iter(case.startup.find_pools("kv")), None) if case.startup is not None else None
        types = {None} if pool is None else {pool.key_dtype, pool.value_dtype}
        if types <= {None, "f16"}:
            saved = 1 - _Q8_RATIO
            yield Remedy(
                setting="OLLAMA_KV_CACHE_TYPE=q8_0" if is_ollama else "--cache-type-k q8_0 --cache-type-v q8_0",
                returned=amount(needed.low * saved, needed.high * saved, formula="bytes in f16 minus bytes in q8_0"),
                trade=Trade.TRADE_OFF,
                proof=f"34 bytes hold 32 values instead of 64: {format_bytes(needed.value * _Q8_RATIO)}",
                worse="keys and values are rounded to q8_0",
            )


class WindowForgets(Rule):
    """A prompt is computed from its beginning again, because the window behind it has moved on.

    What it measures:
        Prompts of which a slot held the beginning, and which llama.cpp computed whole nevertheless: layers with a
        window (or a recurrent state) no longer had what that beginning needs.

    Why it costs:
        Tokens that are in the cache are computed again, with every turn of a conversation.

    Example:
        A slot holds 10,922 tokens of which 10,423 match the new prompt; its windowed layers hold 9,716 and later, so
        all 10,423 are computed again.

    What to change:
        `--swa-full`: windowed layers keep every cell, as the others do. Newer builds keep checkpoints of windows and
        states instead (`--ctx-checkpoints`).

    What gets worse:
        With `--swa-full` windowed layers take as many cells as the whole context.

    Known limits:
        The log does not say whether the prompt was one whose beginning is worth keeping.

    Sources:
        llama.cpp tools/server/server-context.cpp; ggml-org/llama.cpp#13194, ollama/ollama#11365.
    """

    code = "KV034"

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Count the tokens that were computed again."""
        notices = case.startup.notices if case.startup is not None else ()
        found = [one for one in notices if one.kind is NoticeKind.PREFIX_FORGOTTEN and one.count]
        tokens = sum(one.count or 0 for one in found)
        if not tokens or case.log.engine not in _ENGINES:
            return
        window = max((one.asked or 0 for one in found), default=0)
        remedies = []
        if window > 1:
            remedies.append(
                Remedy(
                    setting="--swa-full",
                    returned=amount(0, formula="none: it takes memory", unit="tokens"),
                    trade=Trade.TRADE_OFF,
                    proof="every layer then keeps all cells of the context, so any prefix of it can be continued",
                    worse=f"layers that keep {counted(window, 'token')} now take as many cells as the others",
                    gain="prompts that continue what is cached",
                )
            )
        yield self.tell(
            case.subject,
            f"{counted(len(found), 'prompt')}, of which {counted(tokens, 'token')} were in the cache, "
            f"{'was' if len(found) == 1 else 'were'} computed whole again: "
            + (f"layers with a window of {counted(window, 'token')}" if window > 1 else "a window or a state")
            + " no longer had what that beginning needs",
            amount(tokens, formula="cached tokens of these prompts", unit="tokens", accuracy=Accuracy.MEASURED),
            *remedies,
        )
