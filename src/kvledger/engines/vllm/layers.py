"""Layers: what each layer of a model tells vLLM's planner under given settings.

Pages as ``Attention.get_kv_cache_spec``, ``MLAAttention.get_kv_cache_spec`` and ``MambaBase.get_kv_cache_spec`` build
them, and the alignment of the block to states (``_align_hybrid_block_size``, before 0.20
``HybridAttentionMambaModelConfig``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm

from kvledger.engines.vllm.demand import StateMode
from kvledger.engines.vllm.settings import Settings
from kvledger.engines.vllm.sizing import Stage
from kvledger.engines.vllm.specs import LayerSpec, SpecKind
from kvledger.errors import ModelError, UsageError
from kvledger.model import (
    AttentionCache,
    CompressedCache,
    CrossAttentionCache,
    Dtype,
    LatentCache,
    Layer,
    ModelSpec,
    NoCache,
    SharedCache,
    StateCache,
    StateKind,
    Storage,
    find_dtype,
    find_kv_format,
    heads_per_rank,
)
from kvledger.units import counted

__all__ = ["Alignment", "BuiltLayers", "build_layers"]

_SPECULATIVE_CONV = (StateKind.MAMBA2, StateKind.GDN, StateKind.KDA, StateKind.SHORT_CONV)
"""States whose convolution grows with proposed tokens (``mamba_utils.py``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """How the block was widened so that a state fits into a page."""

    block_tokens: int
    changed: bool
    """Whether the engine raised the block (and says so)."""
    attention_bytes: int
    """Bytes of a token in one attention layer."""
    state_bytes: int

    @property
    def page_bytes(self) -> int:
        """The page all layers share."""
        return self.block_tokens * self.attention_bytes

    @property
    def padding_ratio(self) -> float:
        """Padding over the bytes of a state."""
        return (self.page_bytes - self.state_bytes) / self.state_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltLayers:
    """The layers by pipeline stage, and how the block came about."""

    stages: tuple[Stage, ...]
    storage: Storage
    block_tokens: int
    alignment: Alignment | None


def build_layers(model: ModelSpec, settings: Settings) -> BuiltLayers:
    """Build the specs of every layer.

    Raises:
        ModelError: vLLM's rule for a kind of layer is not known here.
        UsageError: The layers cannot be split as the settings ask.
    """
    storage = _storage(model, settings)
    layers = _all_layers(model, settings)
    alignment = _align(layers, settings, storage)
    block = alignment.block_tokens if alignment else settings.block_tokens
    builder = _Builder(settings=settings, storage=storage, block_tokens=block, alignment=alignment)
    owners = _stage_of(model, settings)
    stages: list[list[LayerSpec]] = [[] for _ in range(settings.deployment.pp)]
    for layer in layers:
        stages[owners(layer)].extend(builder.build(layer))
    return BuiltLayers(
        stages=tuple(Stage(specs=tuple(specs)) for specs in stages),
        storage=storage,
        block_tokens=block,
        alignment=alignment,
    )


def _storage(model: ModelSpec, settings: Settings) -> Storage:
    deployment, options = settings.deployment, settings.options
    storage = model.storage(deployment.kv_dtype)
    sparse = any(isinstance(layer.cache, LatentCache) and layer.cache.indexer for layer in model.layers)
    if sparse and storage.kv.name == "fp8":
        storage = replace(storage, kv=find_kv_format("fp8_ds_mla"))
    conv = find_dtype(options.mamba_cache_dtype) if options.mamba_cache_dtype else storage.conv
    state = find_dtype(options.mamba_ssm_cache_dtype) if options.mamba_ssm_cache_dtype else storage.state
    if state is None and not settings.rules.reads_state_dtype and _may_narrow_states(model):
        state = conv or model.dtype
    kinds = {layer.cache.kind for layer in model.layers if isinstance(layer.cache, StateCache)}
    if deployment.device == "cpu" and settings.rules.cpu_widens_states and StateKind.GDN in kinds:
        state = Dtype.FLOAT32
    return replace(storage, tp=deployment.tp, conv=conv, state=state)


def _may_narrow_states(model: ModelSpec) -> bool:
    """Tell whether all states are of kinds that vLLM keeps in the model's dtype unless told otherwise."""
    kinds = {layer.cache.kind for layer in model.layers if isinstance(layer.cache, StateCache)}
    return kinds <= {StateKind.MAMBA1, StateKind.MAMBA2, StateKind.GDN}


def _all_layers(model: ModelSpec, settings: Settings) -> list[Layer]:
    layers = [layer for layer in model.layers if not isinstance(layer.cache, NoCache | SharedCache)]
    if not settings.draft_cache:
        return layers
    if settings.options.draft_layers is None:
        if not model.draft_layers or settings.options.speculative_method != "mtp":
            whose = "has no draft layers of its own" if not model.draft_layers else "is drafted for by another model"
            raise UsageError(
                f"`{model.name}` {whose}, so the draft's KV cache is not known",
                hint="give `--set draft_layers=1` (1 for EAGLE), or `--set speculative_method=ngram`",
            )
        return [*layers, *model.draft_layers]
    full = [layer for layer in layers if _is_full(layer)]
    if not full:
        raise UsageError("a draft takes the shape of a full-attention layer, and the model has none")
    return [*layers, *(full[-1:] * settings.options.draft_layers)]


def _is_full(layer: Layer) -> bool:
    cache = layer.cache
    return isinstance(cache, LatentCache) or (isinstance(cache, AttentionCache) and cache.cap_tokens is None)


class _StageOf:
    """Maps a layer to its pipeline stage (``distributed/utils.get_pp_indices``)."""

    def __init__(self, blocks: int, sizes: tuple[int, ...]) -> None:
        self._owner = [stage for stage, size in enumerate(sizes) for _ in range(size)]
        self._last = len(sizes) - 1
        self._blocks = blocks

    def __call__(self, layer: Layer) -> int:
        return self._owner[layer.index] if layer.index < self._blocks else self._last


def _stage_of(model: ModelSpec, settings: Settings) -> _StageOf:
    stages = settings.deployment.pp
    blocks = 1 + max(layer.index for layer in model.layers)
    given = settings.options.layer_partition
    if given is not None:
        if len(given) != stages or sum(given) != blocks:
            raise UsageError(
                f"the layer partition {given} does not give {counted(blocks, 'layer')} to {counted(stages, 'stage')}",
                hint="give one number a stage, separated by commas",
            )
        return _StageOf(blocks, given)
    each, rest = divmod(blocks, stages)
    sizes = [each] * stages
    for i in range(2, rest + 2):
        sizes[-i] += 1
    return _StageOf(blocks, tuple(sizes))


def _align(layers: list[Layer], settings: Settings, storage: Storage) -> Alignment | None:
    """Widen the block until a state fits into an attention page.

    ``block = align * ceil(state / (align * attention bytes per token))``; in mode all the block is a multiple of the
    kernel's chunk.
    """
    states = [layer.cache for layer in layers if isinstance(layer.cache, StateCache)]
    attention = [layer.cache for layer in layers if isinstance(layer.cache, AttentionCache | LatentCache)]
    if not states or not attention:
        return None
    rules = settings.rules
    plain = next((c for c in attention if not isinstance(c, AttentionCache) or c.cap_tokens is None), attention[0])
    token_bytes = _plain_bytes(plain, storage)
    state_bytes = max(_state_bytes(state, settings, storage) for state in states)
    align = settings.kernel_tokens
    if rules.aligns_to_block:
        align = max(align, settings.block_tokens)
    if isinstance(plain, LatentCache):
        align = max(align, rules.latent_alignment_tokens)
    if settings.options.state_alignment_tokens:
        align = lcm(align, settings.options.state_alignment_tokens)
    if _keeps_every_state(settings):
        align = lcm(align, settings.options.mamba_chunk_tokens)
    needed = align * -(-state_bytes // (align * token_bytes))
    return Alignment(
        block_tokens=max(needed, settings.block_tokens),
        changed=needed > settings.block_tokens,
        attention_bytes=token_bytes,
        state_bytes=state_bytes,
    )


def _keeps_every_state(settings: Settings) -> bool:
    return settings.state_mode is StateMode.ALL and bool(settings.deployment.prefix_caching)


def _plain_bytes(cache: AttentionCache | LatentCache, storage: Storage) -> int:
    """Return a token's bytes without the indexer, which is a layer of its own."""
    return replace(cache, indexer=None).token_bytes(storage)


def _state_bytes(state: StateCache, settings: Settings, storage: Storage) -> int:
    proposed = settings.deployment.speculative_tokens if state.kind in _SPECULATIVE_CONV else 0
    return state.state_bytes(storage, proposed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Builder:
    settings: Settings
    storage: Storage
    block_tokens: int
    alignment: Alignment | None

    def build(self, layer: Layer) -> list[LayerSpec]:
        cache = layer.cache
        match cache:
            case AttentionCache():
                return [self._attention(cache), *self._indexer(cache)]
            case LatentCache():
                return [self._latent(cache), *self._indexer(cache)]
            case StateCache():
                return [self._state(cache)]
            case CrossAttentionCache():
                return [self._cross(cache)]
            case CompressedCache():
                raise ModelError(
                    "the packed pages of compressed attention (DeepSeek-V4) are not planned here",
                    hint="state the layers by hand with `--layers`, each with the bytes it keeps",
                )
            case NoCache() | SharedCache():
                return []

    @property
    def _whole(self) -> Storage:
        return replace(self.storage, tp=1)

    def _attention(self, cache: AttentionCache) -> LayerSpec:
        if not self.settings.rules.separate_value_size and self.settings.v1:
            cache = replace(cache, value_size=cache.key_size)
        kind = SpecKind.FULL
        if cache.window_tokens is not None:
            kind = SpecKind.WINDOW
        elif cache.chunk_tokens is not None:
            kind = SpecKind.CHUNK
        if kind is not SpecKind.FULL and self.settings.deployment.dcp > 1:
            raise UsageError(
                "decode context parallelism does not support layers with a window or chunk", hint="use `--dcp 1`"
            )
        smallest = self.settings.rules.windows_take_smallest_block and kind is SpecKind.WINDOW
        block = self.settings.kernel_tokens if smallest else self.block_tokens
        page = block * _plain_bytes(cache, self.storage)
        heads = heads_per_rank(cache.kv_heads, self.storage.tp), cache.key_size, cache.value_size
        return LayerSpec(
            kind=kind,
            block_tokens=block,
            payload_bytes=page,
            page_bytes=page,
            shape=(*heads, self.storage.kv.name),
            distinct_bytes=block * _plain_bytes(cache, self._whole),
            window_tokens=cache.window_tokens,
            chunk_tokens=cache.chunk_tokens,
            retained_tokens=self._retained(kind),
        )

    def _retained(self, kind: SpecKind) -> int:
        settings = self.settings
        modules = settings.options.multi_module_mtp and settings.version >= (0, 28)
        if kind is not SpecKind.WINDOW or not modules:
            return 0
        return max(0, settings.deployment.speculative_tokens - 1)

    def _latent(self, cache: LatentCache) -> LayerSpec:
        page = self.block_tokens * _plain_bytes(cache, self.storage)
        return LayerSpec(
            kind=SpecKind.LATENT,
            block_tokens=self.block_tokens,
            payload_bytes=page,
            page_bytes=page,
            shape=("latent", cache.latent_size + cache.rope_size, self.storage.kv.name),
            distinct_bytes=page,
        )

    def _indexer(self, cache: AttentionCache | LatentCache) -> list[LayerSpec]:
        indexer = cache.indexer
        page = self.block_tokens * indexer.token_bytes(self.storage) if indexer else 0
        if not page:
            return []
        return [
            LayerSpec(
                kind=SpecKind.LATENT,
                block_tokens=self.block_tokens,
                payload_bytes=page,
                page_bytes=page,
                shape=("indexer", page // self.block_tokens),
                distinct_bytes=page,
            )
        ]

    def _cross(self, cache: CrossAttentionCache) -> LayerSpec:
        page = self.block_tokens * cache.token_bytes(self.storage)
        return LayerSpec(
            kind=SpecKind.CROSS,
            block_tokens=self.block_tokens,
            payload_bytes=page,
            page_bytes=page,
            shape=(cache.kv_heads, cache.key_size, cache.value_size, self.storage.kv.name),
            distinct_bytes=self.block_tokens * cache.token_bytes(self._whole),
            reserve_tokens=cache.encoder_tokens,
            shared_by_dcp=False,
        )

    def _state(self, cache: StateCache) -> LayerSpec:
        settings = self.settings
        size = _state_bytes(cache, settings, self.storage)
        in_blocks = settings.state_mode is StateMode.ALIGN or _keeps_every_state(settings)
        exported = settings.options.prefill_checkpoint_blocks
        if exported is None:
            exported = settings.rules.mamba2_checkpoint_blocks if cache.kind is StateKind.MAMBA2 else 0
        return LayerSpec(
            kind=SpecKind.STATE,
            block_tokens=self.block_tokens if in_blocks else settings.max_model_len,
            payload_bytes=size,
            page_bytes=self.alignment.page_bytes if self.alignment else size,
            shape=(cache.kind.value, size),
            distinct_bytes=_state_bytes(cache, settings, self._whole),
            checkpoint_blocks=exported,
            speculative_blocks=settings.deployment.speculative_tokens,
            shared_by_dcp=False,
        )
