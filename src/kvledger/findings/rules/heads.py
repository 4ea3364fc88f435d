"""Models whose tokens are dear by their shape, or by the release that stores them."""

from __future__ import annotations

from collections.abc import Iterator

from kvledger.engines.facts import NoticeKind
from kvledger.findings.evidence import LogCase, SizeCase
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.release import is_before
from kvledger.findings.rule import Rule
from kvledger.ledger import Accuracy
from kvledger.model.layers import AttentionCache, LatentCache
from kvledger.units import counted, format_bytes

__all__ = ["EveryHeadCached", "LatentExpanded"]

_MANY_HEADS = 16
_USUAL_KV_HEADS = 8


class EveryHeadCached(Rule):
    """Every query head has keys and values of its own, so a token costs several times what newer models take.

    What it measures:
        Layers with as many KV heads as query heads (16 or more): multi-head attention without grouping.

    Why it costs:
        Grouped queries share keys and values. Without them a model of the same size fills the memory with a
        fraction of the tokens.

    Example:
        Qwen1.5-7B has 32 KV heads: 512 KiB a token, so 3.6 GiB hold 7,344 tokens. The same bytes hold about 67,000
        tokens of a 7B model with 28 layers and 4 KV heads.

    What to change:
        Another model, or fp8 KV (`--kv-cache-dtype fp8`), which the proof plans.

    What gets worse:
        fp8 rounds keys and values, which can change answers. Another model answers differently.

    Known limits:
        That another model would serve as well is not for a ledger to say.

    Sources:
        Ainslie et al., GQA, EMNLP 2023; QwenLM/Qwen3#295.
    """

    code = "KV046"

    def in_size(self, case: SizeCase) -> Iterator[Finding]:
        """Look at the heads of the model."""
        question = case.outcome.question
        caches = [layer.cache for layer in question.model.caching_layers()]
        heads = {cache.kv_heads for cache in caches if isinstance(cache, AttentionCache)}
        queries = question.model.query_heads
        alone = len(heads) == 1 and all(isinstance(cache, AttentionCache) for cache in caches)
        if not alone or queries is None or heads != {queries} or queries < _MANY_HEADS or not case.outcome.growth_bytes:
            return
        token = case.outcome.growth_bytes
        pool = sum(r.count * p.usable_units * r.unit_bytes[p.name] for r in case.plan.ranks for p in case.plan.pools)
        grouped = token * _USUAL_KV_HEADS // queries
        yield self.tell(
            case.subject,
            f"all {counted(queries, 'query head')} have keys and values of their own: {format_bytes(token)} a "
            f"token; with {_USUAL_KV_HEADS} KV heads it were {format_bytes(grouped)}",
            amount(pool * (1 - _USUAL_KV_HEADS / queries), formula=f"the pool * (1 - {_USUAL_KV_HEADS} / query heads)"),
            *_half(case),
        )


class LatentExpanded(Rule):
    """The release stores the full heads of a model whose latent would do.

    What it measures:
        vLLM before 0.7 and a model with latent attention (MLA): such releases keep every head expanded.

    Why it costs:
        Several megabytes a token over all ranks, against tens of kilobytes of latent.

    Example:
        vLLM 0.5.4 stored 13,360 tokens of DeepSeek-V2 where the latent takes 69,120 bytes a token.

    What to change:
        A release that stores the latent: vLLM 0.7 or newer. The number compares the two shapes of the model.

    What gets worse:
        Nothing in memory; a newer release may behave differently elsewhere.

    Known limits:
        llama.cpp stores full heads, too, from GGUF files that were converted before 2025-04.

    Sources:
        deepseek-ai/DeepSeek-V2#83; vLLM release notes of 0.7 (MLA).
    """

    code = "KV047"

    def in_log(self, case: LogCase) -> Iterator[Finding]:
        """Look at a release without latent caches that serves a DeepSeek model."""
        startup = case.startup
        version, model = case.check.version, case.check.model or ""
        name = model.lower()
        mla = any(known in name for known in ("deepseek-v2", "deepseek-v3", "deepseek-r1"))
        if startup is None or not mla or "distill" in name or not is_before(version, 0, 7, 0):
            return
        short = next((n for n in startup.errors if n.kind is NoticeKind.TOO_LONG and n.longest is not None), None)
        tokens = case.check.tokens
        held = short.longest if short is not None else None if tokens is None else int(tokens.value)
        if held is None:
            return
        yield self.tell(
            case.subject,
            f"vLLM {version} stores the full heads of {model}, several megabytes a token, so the pool holds {held:,} "
            "tokens; from 0.7 on the latent is stored, tens of kilobytes a token",
            amount(held, formula="tokens of the pool", unit="tokens", accuracy=Accuracy.MEASURED),
        )

    def in_size(self, case: SizeCase) -> Iterator[Finding]:
        """Compare the expanded heads with the latent."""
        options = case.outcome.question.deployment.options
        if case.plan.deployment.engine != "llama.cpp" or options.get("mla_tensors", "true") != "false":
            return
        caches = [layer.cache for layer in case.outcome.question.model.caching_layers()]
        after = case.replan(options={"mla_tensors": "true"})
        if after is None or not any(isinstance(cache, LatentCache) for cache in caches):
            return
        saved = case.plan.count_request_bytes(case.length_tokens) - after.count_request_bytes(case.length_tokens)
        slots = case.plan.request_limit or 1
        figure = amount(saved * slots, formula="cells with full heads, minus cells with latents")
        if saved > 0:
            yield self.tell(
                case.subject,
                "the GGUF file has no tensors for absorbed attention, so every head is stored instead of the latent",
                figure,
                Remedy(
                    setting="a GGUF file converted since 2025-04",
                    returned=figure,
                    trade=Trade.SAFE,
                    proof=f"planned: {format_bytes(after.count_request_bytes(case.length_tokens) * slots)} of cache "
                    f"instead of {format_bytes(case.plan.count_request_bytes(case.length_tokens) * slots)}",
                ),
            )


def _half(case: SizeCase) -> Iterator[Remedy]:
    deployment = case.plan.deployment
    if deployment.engine != "vllm" or deployment.kv_dtype not in ("auto", "float16", "bfloat16"):
        return
    after = case.replan(kv_dtype="fp8")
    count, before = 0 if after is None else case.count_requests(after), case.count_requests()
    if after is not None and count > before:
        saved = case.plan.count_request_bytes(case.length_tokens) - after.count_request_bytes(case.length_tokens)
        yield Remedy(
            setting="--kv-cache-dtype fp8",
            returned=amount(saved * before, formula="held by one request before minus after, * requests that fit"),
            trade=Trade.TRADE_OFF,
            proof=f"planned: {counted(count, 'request')} of {case.length_tokens:,} tokens fit at once instead of "
            f"{before:,}",
            worse="keys and values are rounded to fp8, which can change answers",
        )
