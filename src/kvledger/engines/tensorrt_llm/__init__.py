"""TensorRT-LLM: what it allocates at start-up, and what it prints."""

from kvledger.engines.tensorrt_llm.plan import make_plan, model_memory

__all__ = ["make_plan", "model_memory"]
