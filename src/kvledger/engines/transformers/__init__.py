"""Hugging Face Transformers: the bytes of its caches, and of continuous batching."""

from kvledger.engines.transformers.plan import make_plan, model_memory

__all__ = ["make_plan", "model_memory"]
