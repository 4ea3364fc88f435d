"""What vLLM allocates and prints, by version: 0.2 to 0.33."""

from kvledger.engines.vllm.memory import model_memory
from kvledger.engines.vllm.planner import make_plan

__all__ = ["make_plan", "model_memory"]
