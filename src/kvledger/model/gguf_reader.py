"""GGUF models: the metadata of a GGUF file to layers, by the rules of llama.cpp (b11434).

llama.cpp decides from keys named after the architecture. Its caches are f16 unless set otherwise, its recurrent states
f32 in both parts (``llama_hparams::n_embd_r`` and ``n_embd_s``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvledger.errors import ModelError
from kvledger.model.decoder import MAX_HEAD_SIZE, MAX_HEADS, MAX_LAYERS
from kvledger.model.fields import STATE_BY_HAND, Fields
from kvledger.model.formats import Dtype
from kvledger.model.gguf_header import GgufValue
from kvledger.model.layers import AttentionCache, Cache, LatentCache, Layer, NoCache, Role, SharedCache
from kvledger.model.spec import Length, ModelSpec
from kvledger.model.states import Part, Shard, StateCache, StateKind, StateTensor, TensorRole
from kvledger.units import counted

__all__ = ["read_gguf"]

_PERIODS = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gemma4": 6,
    "gpt-oss": 2,
    "cohere2": 4,
    "exaone4": 4,
    "olmo2": 4,
    "llama4": 4,
    "plamo3": 8,
}
"""One full layer in so many, where the file does not list them (``set_swa_pattern``)."""
_IGNORES_WINDOW = frozenset(
    ("llama", "mistral3", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "starcoder2", "phi3", "mimo")
)
"""Architectures whose window llama.cpp does not apply."""
_SIDE_BY_SIDE = frozenset(("falcon-h1",))
_INTERVAL = frozenset(("qwen3next", "qwen35", "qwen35moe"))
_PLAIN_SSM = frozenset(("mamba", "mamba2"))
_KINDS = {
    "mamba": StateKind.MAMBA1,
    "jamba": StateKind.MAMBA1,
    **dict.fromkeys(_INTERVAL, StateKind.GDN),
}
_RELEVANT = re.compile(
    r"ssm|wkv|sliding|chunk|kda|shortconv|indexer|shared_kv|kv_lora|token_shift|recurr|compress|window"
)
_HARMLESS = re.compile(r"dt_b_c_rms|time_step_rank|temperature|expert_chunk|rope")


def read_gguf(metadata: Mapping[str, GgufValue], *, name: str = "") -> ModelSpec:
    """Read the metadata of a GGUF file into layers.

    Raises:
        ModelError: A key is missing, has an unusable value, or could change the cache and is not understood.
    """
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str):
        raise ModelError(
            "the GGUF file has no `general.architecture`", hint=STATE_BY_HAND, field="general.architecture"
        )
    prefix = f"{arch}."
    fields = Fields({key[len(prefix) :]: value for key, value in metadata.items() if key.startswith(prefix)}, path=arch)
    blocks = fields.need_integer("block_count", high=MAX_LAYERS)
    drafts = fields.integer("nextn_predict_layers", low=0, high=blocks - 1, default=0) or 0
    layers = _share(fields, _layers(fields, arch, blocks))
    main, rest = _split(layers, blocks - drafts)
    _refuse_overlooked(fields, arch)
    context = fields.integer("context_length")
    label = metadata.get("general.name")
    return ModelSpec(
        name=name or (label if isinstance(label, str) else arch)[:120],
        model_type=arch,
        layers=main,
        draft_layers=rest,
        dtype=Dtype.FLOAT16,
        max_model_len=Length(tokens=context, source=f"{arch}.context_length") if context else None,
        query_heads=_heads(fields, "attention.head_count", blocks)[0] or None,
        hidden_size=fields.integer("embedding_length"),
        vocabulary_size=fields.integer("vocab_size"),
        provenance=tuple(fields.origins.values()),
        notes=("states are f32 and the cache f16 by default, as in llama.cpp",),
    )


def _split(layers: Sequence[Layer], main: int) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
    """Separate the next-token blocks at the end, which get no cache in the main context."""
    drafts = tuple(replace(layer, role=Role.DRAFT) for layer in layers if layer.index >= main)
    return tuple(layer for layer in layers if layer.index < main), drafts


def _heads(fields: Fields, name: str, blocks: int) -> tuple[int, ...]:
    """Return a number of heads for each block, from one number or a list."""
    if isinstance(fields.raw.get(name), tuple | list):
        heads = fields.integers(name, high=MAX_HEADS) or ()
        if len(heads) != blocks:
            raise fields.refusal(name, heads, f"does not describe {counted(blocks, 'block')}")
        return heads
    found = fields.integer(name, low=0, high=MAX_HEADS)
    return (0 if found is None else found,) * blocks


def _layers(fields: Fields, arch: str, blocks: int) -> list[Layer]:
    queries = _heads(fields, "attention.head_count", blocks)
    kv_heads = _heads(fields, "attention.head_count_kv", blocks)
    if not fields.has("attention.head_count_kv"):
        kv_heads = queries
    state = _state(fields, arch, max(queries))
    if arch in _PLAIN_SSM and state is not None:
        return [Layer(index=i, cache=state, origin="ssm.*") for i in range(blocks)]
    if not fields.has("attention.head_count"):
        raise fields.missing("attention.head_count")
    sliding = _sliding(fields, arch, blocks)
    step = fields.integer("full_attention_interval", default=4) if arch in _INTERVAL else None
    feed_forward = _heads_or_none(fields, "feed_forward_length", blocks)
    layers: list[Layer] = []
    for i in range(blocks):
        recurrent = (step is not None and (i + 1) % step != 0) or (kv_heads[i] == 0 and queries[i] != 0)
        recurrent = recurrent or (kv_heads[i] == 0 and feed_forward is not None and feed_forward[i] == 0)
        if kv_heads[i] == 0 and not recurrent:
            layers.append(Layer(index=i, cache=NoCache(reason="MLP"), origin=f"attention.head_count_kv[{i}] = 0"))
        elif recurrent:
            if state is None:
                raise fields.missing("ssm.state_size", "shortconv.l_cache")
            layers.append(Layer(index=i, cache=state, origin=f"block {i} is recurrent"))
        else:
            cache = _attention(fields, queries[i], kv_heads[i], sliding[i])
            layers.append(Layer(index=i, cache=cache, origin=f"attention.head_count_kv = {kv_heads[i]}"))
        if arch in _SIDE_BY_SIDE and state is not None:
            layers.append(Layer(index=i, cache=state, origin="ssm.*, side by side"))
    return layers


def _heads_or_none(fields: Fields, name: str, blocks: int) -> tuple[int, ...] | None:
    if not isinstance(fields.raw.get(name), tuple | list):
        return None
    found = fields.integers(name)
    return found if found is not None and len(found) == blocks else None


def _attention(fields: Fields, queries: int, kv_heads: int, window: int | None) -> Cache:
    latent = fields.integer("attention.kv_lora_rank", high=MAX_HEAD_SIZE)
    if latent is not None and fields.has("attention.key_length_mla"):
        fields.accept("attention.key_length", "attention.value_length", "attention.value_length_mla")
        rope = fields.need_integer("rope.dimension_count", high=MAX_HEAD_SIZE)
        return LatentCache(latent_size=latent, rope_size=rope)
    default = None
    if not fields.has("attention.key_length"):
        default = fields.need_integer("embedding_length") // queries
    key = fields.integer("attention.key_length", high=MAX_HEAD_SIZE) or default or 0
    value = fields.integer("attention.value_length", high=MAX_HEAD_SIZE) or key
    if window is not None:
        key = fields.integer("attention.key_length_swa", high=MAX_HEAD_SIZE) or key
        value = fields.integer("attention.value_length_swa", high=MAX_HEAD_SIZE) or value
    return AttentionCache(kv_heads=kv_heads, key_size=key, value_size=value, window_tokens=window)


def _sliding(fields: Fields, arch: str, blocks: int) -> list[int | None]:
    """Return the window of each block, None where it is full."""
    window = fields.integer("attention.sliding_window", "attention.chunk_size", low=0)
    listed = fields.raw.get("attention.sliding_window_pattern")
    if not window or arch in _IGNORES_WINDOW:
        fields.accept("attention.sliding_window_pattern")
        return [None] * blocks
    if isinstance(listed, tuple | list):
        flags = fields.integers("attention.sliding_window_pattern", high=1) or ()
        if len(flags) != blocks:
            raise fields.refusal(
                "attention.sliding_window_pattern", flags, f"does not describe {counted(blocks, 'block')}"
            )
        return [window if flag else None for flag in flags]
    step = fields.integer("attention.sliding_window_pattern") or _PERIODS.get(arch)
    if step is None:
        raise fields.refusal("attention.sliding_window", window, f"has no known pattern for the architecture `{arch}`")
    return [window if i % step < step - 1 else None for i in range(blocks)]


def _state(fields: Fields, arch: str, queries: int) -> StateCache | None:
    """Return the recurrent state of llama.cpp (``n_embd_r`` and ``n_embd_s``), both f32."""
    kernel = fields.integer("shortconv.l_cache", low=2, high=4096)
    if kernel is not None:
        width = fields.need_integer("embedding_length")
        return StateCache(kind=StateKind.SHORT_CONV, tensors=(_tensor(TensorRole.CONV, kernel - 1, width),))
    kernel = fields.integer("ssm.conv_kernel", high=4096)
    if kernel is None:
        return None
    head = fields.integer("kda.head_dim", high=MAX_HEAD_SIZE)
    if head is not None:
        conv = _tensor(TensorRole.CONV, kernel - 1, 3 * queries * head)
        return StateCache(kind=StateKind.KDA, tensors=(conv, _tensor(TensorRole.STATE, head, queries * head)))
    inner = fields.need_integer("ssm.inner_size")
    size = fields.need_integer("ssm.state_size", high=MAX_HEAD_SIZE)
    groups = fields.integer("ssm.group_count", low=0, high=MAX_HEADS, default=0) or 0
    conv = _tensor(TensorRole.CONV, kernel - 1, inner + 2 * groups * size)
    kind = _KINDS.get(arch, StateKind.MAMBA2)
    return StateCache(kind=kind, tensors=(conv, _tensor(TensorRole.STATE, size, inner)))


def _tensor(role: TensorRole, rows: int, columns: int) -> StateTensor:
    axes = ((Part(count=rows),), (Part(count=columns, shard=Shard.SPLIT),))
    return StateTensor(role=role, axes=axes, dtype=Dtype.FLOAT32, declared=True)


def _share(fields: Fields, layers: list[Layer]) -> list[Layer]:
    """Let the last blocks read the last earlier block of their own kind (Gemma 3n and 4)."""
    shared = fields.integer("attention.shared_kv_layers", low=0, high=len(layers), default=0) or 0
    own = len(layers) - shared
    result = list(layers)
    for i in range(own, len(layers)):
        cache = layers[i].cache
        if not isinstance(cache, AttentionCache):
            raise fields.refusal("attention.shared_kv_layers", shared, f"includes block {i}, which is not attention")
        earlier = [j for j in range(own) if _window(layers[j]) == cache.window_tokens]
        if not earlier:
            raise fields.refusal("attention.shared_kv_layers", shared, f"leaves block {i} no earlier block of its kind")
        result[i] = replace(layers[i], cache=SharedCache(shares_with=earlier[-1], cache=cache))
    return result


def _window(layer: Layer) -> int | None:
    return layer.cache.window_tokens if isinstance(layer.cache, AttentionCache) else -1


def _refuse_overlooked(fields: Fields, arch: str) -> None:
    overlooked = [
        key
        for key, value in fields.raw.items()
        if key not in fields.used and value and _RELEVANT.search(key) and not _HARMLESS.search(key)
    ]
    if overlooked:
        listed = ", ".join(f"`{arch}.{key}`" for key in overlooked[:6])
        raise ModelError(
            f"the GGUF file has keys that could change the cache and that kvledger does not understand: {listed}",
            hint=STATE_BY_HAND,
            field=overlooked[0],
        )
