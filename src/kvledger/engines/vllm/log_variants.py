"""Other settings that may explain a log: deployments that differ in one setting, then in several seldom told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, product

from kvledger.engines.plan import Deployment
from kvledger.errors import Error
from kvledger.model import AttentionCache, ModelSpec

__all__ = ["name_setting"]

_BLOCKS = (32, 64, 128, 256)
_MOST_PROPOSED = 5
_MOST_TOGETHER = 4
_RELEASES = (
    ("0.10", "0.9 to 0.10"),
    ("0.13", "0.11 to 0.13"),
    ("0.16", "0.14 to 0.16"),
    ("0.19", "0.17 to 0.20.0"),
    ("0.25", "0.20.1 to 0.25"),
    ("0.27", "0.26 to 0.27"),
    ("0.32", "0.28 or later"),
)
"""One release of every span that counts blocks and needs in another way."""
_VERSION = "the version is "
_Change = tuple[str, Callable[[Deployment], Deployment]]
"""What is changed in words, and the change."""


def name_setting(
    model: ModelSpec, deployment: Deployment, explains: Callable[[Deployment], bool], *, is_version_told: bool
) -> str | None:
    """Name the first other settings that explain a log, with every release that does so beside them; None: none do."""
    before: str = ""
    spans: list[str] = []
    for words, changed in _variants(model, deployment, is_version_told=is_version_told):
        rest, is_release, span = words.rpartition(_VERSION)
        if spans and (not is_release or rest != before):
            break
        try:
            if not explains(changed):
                continue
        except Error:
            continue
        if not is_release:
            return words
        before, spans = rest, [*spans, span]
    if not spans:
        return None
    return before + _VERSION + " or ".join(filter(None, (", ".join(spans[:-1]), spans[-1])))


def _variants(model: ModelSpec, deployment: Deployment, *, is_version_told: bool) -> Iterator[tuple[str, Deployment]]:
    """Yield deployments that differ in one setting, then in two to four; the release changes fastest."""
    dtypes, caching, drafts = _dtypes(deployment), _caching(deployment), _drafts(model, deployment)
    batches = _batches(deployment)
    for words, change in (*dtypes, *batches, *caching, *drafts, *_rest(deployment), *_RELEASED):
        yield words, change(deployment)
    has_windows = any(isinstance(layer.cache, AttentionCache) and layer.cache.cap_tokens for layer in model.layers)
    usual = (dtypes, batches if has_windows else caching, drafts)
    axes = [axis for axis in usual if axis] + ([] if is_version_told else [list(_RELEASED)])
    for count in range(2, _MOST_TOGETHER + 1):
        for chosen in combinations(axes, count):
            for changes in product(*chosen):
                changed = deployment
                for _, change in changes:
                    changed = change(changed)
                yield " and ".join(words for words, _ in changes), changed


def _with(words: str, **values: object) -> _Change:
    change: Callable[..., Deployment] = replace
    return words, lambda deployment: change(deployment, **values)


def _with_options(words: str, proposed: int | None = None, **options: str) -> _Change:
    def change(deployment: Deployment) -> Deployment:
        tokens = deployment.speculative_tokens if proposed is None else proposed
        return replace(deployment, speculative_tokens=tokens, options={**deployment.options, **options})

    return words, change


_RELEASED = tuple(_with(_VERSION + span, version=version) for version, span in _RELEASES)


def _dtypes(deployment: Deployment) -> list[_Change]:
    return [
        _with(f"the KV dtype is {name}", kv_dtype=name) for name in ("fp8", "bfloat16") if deployment.kv_dtype != name
    ]


def _batches(deployment: Deployment) -> list[_Change]:
    return [
        _with(f"max_num_batched_tokens is {tokens}", max_num_batched_tokens=tokens)
        for tokens in (2048, 4096, 8192, 16_384)
        if deployment.max_num_batched_tokens != tokens
    ]


def _caching(deployment: Deployment) -> list[_Change]:
    return [
        _with(f"prefix caching is {'on' if caching else 'off'}", prefix_caching=caching)
        for caching in (True, False)
        if deployment.prefix_caching is not caching
    ]


def _drafts(model: ModelSpec, deployment: Deployment) -> list[_Change]:
    """Yield what a draft of one layer, or the model's own draft, adds; the tokens it proposes widen states."""
    changes = []
    for proposed in range(1, _MOST_PROPOSED + 1) if model.draft_layers else ():
        if deployment.speculative_tokens != proposed:
            tokens = "1 token" if proposed == 1 else f"{proposed} tokens"
            words = f"the model's own draft proposes {tokens}"
            changes.append(_with_options(words, proposed, speculative_method="mtp"))
    if not deployment.speculative_tokens:
        changes.append(_with_options("a draft adds a layer", 1, speculative_method="eagle", draft_layers="1"))
    return changes


def _rest(deployment: Deployment) -> list[_Change]:
    changes = []
    if deployment.options.get("disable_hybrid_kv_cache_manager") != "true":
        changes.append(_with_options("the hybrid KV cache manager is off", disable_hybrid_kv_cache_manager="true"))
    changes += [_with(f"tensor parallelism is {tp}", tp=tp) for tp in (2, 4, 8) if deployment.tp != tp]
    changes += [
        _with(f"a block has {block} tokens", block_tokens=block)
        for block in _BLOCKS
        if deployment.block_tokens != block
    ]
    return changes
