"""SGLang: what it allocates at start-up, and what it prints."""

from kvledger.engines.sglang.plan import make_plan, model_memory

__all__ = ["make_plan", "model_memory"]
