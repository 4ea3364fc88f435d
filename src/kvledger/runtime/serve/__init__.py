"""An OpenAI-compatible endpoint over an engine, with vLLM's metric names: everything that follows vLLM follows it."""

from kvledger.runtime.serve.app import make_app
from kvledger.runtime.serve.run import serve
from kvledger.runtime.serve.tallies import Tallies

__all__ = ["Tallies", "make_app", "serve"]
