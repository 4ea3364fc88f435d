"""The paged KV cache for Hugging Face Transformers: real tensors under the block tables of this package."""

from kvledger.runtime.answers import Answer, Ending, Likelihood, Result, Step, Token
from kvledger.runtime.driver import Driver
from kvledger.runtime.engine import Engine
from kvledger.runtime.observe import Observation, Observer, observe
from kvledger.runtime.options import Attention, Generation, Linear, Options, Preemption, Reservation
from kvledger.runtime.prompts import Chat
from kvledger.runtime.sequence import RequestId

__all__ = [
    "Answer",
    "Attention",
    "Chat",
    "Driver",
    "Ending",
    "Engine",
    "Generation",
    "Likelihood",
    "Linear",
    "Observation",
    "Observer",
    "Options",
    "Preemption",
    "RequestId",
    "Reservation",
    "Result",
    "Step",
    "Token",
    "observe",
]
