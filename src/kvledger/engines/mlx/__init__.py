"""MLX-LM: the bytes of its caches."""

from kvledger.engines.mlx.plan import make_plan, model_memory

__all__ = ["make_plan", "model_memory"]
