"""Ollama: what it makes of memory and settings, and the llama.cpp server it starts."""

from kvledger.engines.ollama.plan import make_plan, model_memory

__all__ = ["make_plan", "model_memory"]
