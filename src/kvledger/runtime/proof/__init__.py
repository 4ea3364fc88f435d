"""The proof: the same prompts through the same model in the same memory, held in different ways."""

from kvledger.runtime.proof.agreement import Agreement, agree
from kvledger.runtime.proof.engine import run_engine
from kvledger.runtime.proof.side import Side, Task, Way
from kvledger.runtime.proof.transformers_own import run_transformers

__all__ = ["Agreement", "Side", "Task", "Way", "agree", "run_engine", "run_transformers"]
