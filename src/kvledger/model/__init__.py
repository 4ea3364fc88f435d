"""What one token costs: a model's configuration, its layers, and their bytes."""

from kvledger.model.formats import KV_FORMATS, Dtype, KvFormat, find_dtype, find_kv_format
from kvledger.model.layers import (
    AttentionCache,
    Cache,
    CompressedCache,
    CrossAttentionCache,
    Indexer,
    LatentCache,
    Layer,
    NoCache,
    Role,
    SharedCache,
    heads_per_rank,
)
from kvledger.model.spec import Length, ModelSpec, Parameters, Quantisation, StoredAs
from kvledger.model.states import StateCache, StateKind, StateTensor, TensorRole
from kvledger.model.storage import Origin, Storage, Windows

__all__ = [
    "KV_FORMATS",
    "AttentionCache",
    "Cache",
    "CompressedCache",
    "CrossAttentionCache",
    "Dtype",
    "Indexer",
    "KvFormat",
    "LatentCache",
    "Layer",
    "Length",
    "ModelSpec",
    "NoCache",
    "Origin",
    "Parameters",
    "Quantisation",
    "Role",
    "SharedCache",
    "StateCache",
    "StateKind",
    "StateTensor",
    "Storage",
    "StoredAs",
    "TensorRole",
    "Windows",
    "find_dtype",
    "find_kv_format",
    "heads_per_rank",
]
