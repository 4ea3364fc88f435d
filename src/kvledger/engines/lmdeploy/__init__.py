"""LMDeploy: what it allocates at start-up, and what it prints."""

from kvledger.engines.lmdeploy.plan import make_plan, model_memory

__all__ = ["make_plan", "model_memory"]
