"""Where every byte of KV-cache memory goes in LLM serving, and what would give it back."""

__version__ = "0.1.0.dev0"

__all__ = ["__version__"]
