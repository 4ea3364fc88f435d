"""Attention over block tables behind Transformers' attention interface: no model is patched.

The function that is registered looks for a batch among the keyword arguments that Transformers hands down to every
layer. Without one, as in the model's own ``generate``, it is plain PyTorch attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from kvledger.errors import MissingExtra, ModelError

if TYPE_CHECKING:
    import torch

__all__ = ["BATCH", "NAME", "Attending", "Manner", "attach", "call_model", "load_transformers", "register"]

NAME = "kvledger"
BATCH = "kvledger_batch"
"""The keyword argument by which a batch reaches every layer."""
_ATTACHING = Lock()
_ATTACHED: WeakKeyDictionary[Any, tuple[str, int]] = WeakKeyDictionary()
"""The attention a model had before, and the engines that serve it. Transformers keeps it once a model, too."""
# What layers and callers pass that changes nothing about attention, beside what is read below.
_HARMLESS = frozenset(
    {
        "cache_position",
        "dropout",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "use_cache",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a layer wants its scores: times ``scale``, within a window, bent by ``softcap``, beside ``sinks``.

    ``softcap``: scores become ``softcap * tanh(score / softcap)``; 0 for none. ``sinks``: (heads,), scores that take
    their share of the softmax and give nothing; None for none.
    """

    scale: float
    window_tokens: int | None = None
    softcap: float = 0.0
    sinks: torch.Tensor | None = None


class Attending(Protocol):
    """What computes attention for the tokens of a packed sequence."""

    def attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, manner: Manner
    ) -> torch.Tensor:
        """Store keys and values (mutates), and return the answer: (1, tokens, heads, head_size).

        ``query``, ``key`` and ``value`` are (1, heads, tokens, head_size).
        """


def load_transformers() -> Any:
    """Return the module `transformers`, with torch beside it.

    Raises:
        MissingExtra: One of them is not installed.
    """
    for package in ("torch", "transformers"):
        try:
            module = __import__(package)
        except ImportError:
            raise MissingExtra.for_package(package, extra="transformers") from None
    return module


def register() -> None:
    """Make attention over block tables known to Transformers; doing so again changes nothing."""
    load_transformers()
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def attach(model: Any) -> Callable[[], None]:
    """Let a model attend over block tables when it is given a batch; return what gives it its own attention back.

    Several engines may serve one model: it has its own attention again when the last of them let go.

    Raises:
        ModelError: The model does not go through Transformers' attention interface.
    """
    register()
    with _ATTACHING:
        before, count = _ATTACHED.get(model, (model.config._attn_implementation, 0))
        model.set_attn_implementation(NAME)
        if model.config._attn_implementation != NAME:
            raise ModelError(f"`{type(model).__name__}` does not go through Transformers' attention interface")
        _ATTACHED[model] = before, count + 1

    def detach() -> None:
        with _ATTACHING:
            before, count = _ATTACHED.pop(model)
            if count == 1:
                model.set_attn_implementation(before)
            else:
                _ATTACHED[model] = before, count - 1

    return detach


def call_model(
    model: Any, batch: Attending, tokens: torch.Tensor, positions: torch.Tensor, kept: torch.Tensor
) -> torch.Tensor:
    """Return the logits of the rows ``kept`` of one packed sequence: (rows, vocabulary).

    ``tokens`` and ``positions``: (1, tokens) int64. The mask is a stand-in of four dimensions, which Transformers hands
    on as it is instead of building one.
    """
    import torch

    answer = model(
        input_ids=tokens,
        position_ids=positions,
        attention_mask=torch.zeros((1, 1, 1, 1), dtype=torch.bool, device=tokens.device),
        use_cache=False,
        logits_to_keep=kept,
        **{BATCH: batch},
    )
    logits: torch.Tensor = answer.logits[0]
    return logits


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    batch: Attending | None = others.pop(BATCH, None)
    if batch is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        answer: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **others
        )
        return answer
    manner = Manner(
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window_tokens=others.pop("sliding_window", None),
        softcap=others.pop("softcap", None) or 0.0,
        sinks=others.pop("s_aux", None),
    )
    if others.pop("is_causal", None) is False or getattr(module, "is_causal", True) is False:
        raise ModelError(f"`{type(module).__name__}` attends to tokens that come later, which no cache can hold")
    unknown = sorted(k for k, v in others.items() if v is not None and k not in _HARMLESS)
    if unknown:
        raise ModelError(
            f"`{type(module).__name__}` asks its attention for `{unknown[0]}`, which is not known to attention over "
            "block tables"
        )
    return batch.attend(module, query, key, value, manner), None
