"""The same keys and values on several ranks."""

from __future__ import annotations

from collections.abc import Iterator

from kvledger.engines.plan import Plan
from kvledger.engines.structure import COPIES
from kvledger.findings.evidence import SizeCase
from kvledger.findings.finding import Finding, Remedy, Trade, amount
from kvledger.findings.release import is_before
from kvledger.findings.rule import Rule
from kvledger.findings.words import share
from kvledger.model.layers import AttentionCache, CompressedCache, LatentCache
from kvledger.units import counted

__all__ = ["LatentReplicated", "MoreRanksThanHeads"]

_SHARDS = "each step's attention is combined over the ranks that share a token, which takes communication"


class MoreRanksThanHeads(Rule):
    """Tensor parallelism beyond the KV heads stores the same keys and values several times.

    What it measures:
        Bytes in use that are copies of bytes on other ranks, for attention with fewer KV heads than ranks.

    Why it costs:
        KV heads are split over ranks while they last; then each rank keeps a whole head, and every copy is memory
        that could hold other requests.

    Example:
        A 70B model has 8 KV heads. With `--tensor-parallel-size 16` each head is stored twice: 16 ranks of 30 GiB
        hold as many tokens as 8 such ranks.

    What to change:
        vLLM `--decode-context-parallel-size` splits the tokens of a request over the ranks that share a head
        (0.10.2 and newer). Or fewer ranks and more replicas (`--data-parallel-size`). The proof plans the first.

    What gets worse:
        Attention is combined over those ranks in every step, which takes communication; not every backend and
        connector can do it.

    Known limits:
        The bytes a rank has are taken as before. For models with windows or states nothing is proposed: releases up to
        0.32 cannot split their tokens.

    Sources:
        vLLM 0.8 to 0.33, kv heads per rank = max(1, heads // tp); docs of decode context parallelism.
    """

    code = "KV042"

    def in_size(self, case: SizeCase) -> Iterator[Finding]:
        """Look at the copies at full load."""
        heads = min((c.kv_heads for c in _caches(case) if isinstance(c, AttentionCache) and c.kv_heads), default=0)
        tp = case.plan.deployment.tp
        if not heads or heads >= tp or any(isinstance(c, LatentCache | CompressedCache) for c in _caches(case)):
            return
        yield from _tell_copies(
            self,
            case,
            f"{counted(heads, 'KV head')} over {counted(tp, 'tensor-parallel rank')}: each is stored "
            f"{counted(tp // heads, 'time')}",
            dcp=tp // heads,
        )


class LatentReplicated(Rule):
    """The latent cache of MLA is stored on every tensor-parallel rank.

    What it measures:
        Bytes in use that are copies of bytes on other ranks, for models whose layers cache one latent vector a token.

    Why it costs:
        The latent belongs to all heads, so tensor parallelism cannot split it. Eight ranks keep eight copies.

    Example:
        DeepSeek-V3 caches 70,272 bytes a token. With `--tensor-parallel-size 8` the eight ranks take 562,176 bytes
        for it, and 8 x 30 GiB hold 458,368 tokens instead of eight times as many.

    What to change:
        vLLM `--decode-context-parallel-size`, SGLang `--enable-dp-attention`: the tokens, or the requests, are split
        over the ranks instead. The proof plans it with the same bytes a rank.

    What gets worse:
        Attention is combined over the ranks in every step (context parallel), or each rank computes the attention of
        its own requests with all its heads (data parallel).

    Known limits:
        The bytes a rank has are taken as before; under data parallel attention its weights take more of them.

    Sources:
        vLLM docs on decode context parallelism (PR #26877); SGLang docs, data parallelism attention.
    """

    code = "KV043"

    def in_size(self, case: SizeCase) -> Iterator[Finding]:
        """Look at the copies at full load."""
        latent = any(isinstance(c, LatentCache | CompressedCache) for c in _caches(case))
        tp = case.plan.deployment.tp
        if latent and tp > 1:
            sentence = f"each of {counted(tp, 'tensor-parallel rank')} keeps the latent of every token"
            yield from _tell_copies(self, case, sentence, dcp=tp)


def _tell_copies(rule: Rule, case: SizeCase, sentence: str, *, dcp: int) -> Iterator[Finding]:
    structure = case.outcome.load or case.outcome.structure
    copies = structure.deployment.find(COPIES) if structure is not None else 0
    if structure is None or not copies:
        return
    yield rule.tell(
        case.subject,
        f"{sentence}; {share(copies / structure.deployment.ledger.capacity)} of all memory holds copies at "
        f"{counted(structure.requests, 'request')} of {counted(structure.length_tokens, 'token')}",
        amount(copies, formula="payloads of all ranks, minus what is distinct"),
        *_split(case, dcp),
    )


def _split(case: SizeCase, ways: int) -> Iterator[Remedy]:
    deployment = case.plan.deployment
    setting, after, worse = "", None, ""
    alone = len(case.plan.claims) == 1  # with windows or states beside it, releases refuse to split tokens
    if deployment.engine == "vllm" and alone and deployment.dcp == 1 and not is_before(deployment.version, 0, 10, 2):
        setting, worse = f"--decode-context-parallel-size {ways}", _SHARDS
        after = case.replan(dcp=ways)
    elif deployment.engine == "sglang" and deployment.dp == 1 and ways == deployment.tp:
        setting = f"--enable-dp-attention --dp-size {ways}"
        worse = "each rank computes the attention of its own requests with all heads, and holds more weights"
        after = case.replan(tp=1, dp=ways)
    if after is None or after.failure is not None:
        return
    before_count, count = case.count_requests(), _count(case, after)
    if count > before_count:
        yield Remedy(
            setting=setting,
            returned=amount(
                case.saved_bytes(after), formula="bytes that the requests of that load hold before, minus after"
            ),
            trade=Trade.TRADE_OFF,
            proof=f"planned with the same bytes a rank: {counted(count, 'request')} of {case.length_tokens:,} tokens "
            f"fit at once instead of {before_count:,}",
            worse=worse,
        )


def _count(case: SizeCase, plan: Plan) -> int:
    return case.count_requests(plan) * (plan.deployment.dp // case.plan.deployment.dp)


def _caches(case: SizeCase) -> list[object]:
    return [layer.cache for layer in case.outcome.question.model.caching_layers()]
