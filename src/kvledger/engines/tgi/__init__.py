"""Text Generation Inference: what it allocates at start-up, and what it prints."""

from kvledger.engines.tgi.plan import make_plan, model_memory

__all__ = ["make_plan", "model_memory"]
