"""Matrix products on a CPU: through oneDNN where PyTorch's own choice is slow.

PyTorch's wheels multiply float32 matrices with Intel's MKL, which takes code for older processors on those of other
makers: half as fast as oneDNN, which is in the same wheels. PyTorch offers no switch for it, so while a step goes
through the model, calls of ``torch.nn.functional.linear`` are handed to the operator that PyTorch's own compiler uses
(``mkldnn::_linear_pointwise``, checked on 2.13). The weights stay as they are, and the model is not touched.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from kvledger.errors import UsageError
from kvledger.runtime.options import Linear

__all__ = ["choose_linear"]


def choose_linear(linear: Linear, model: Any) -> AbstractContextManager[Any]:
    """Return the context in which a model multiplies matrices.

    Raises:
        UsageError: oneDNN was asked for, and cannot serve this model.
    """
    import torch

    parameter = next(model.parameters())
    usable = (
        parameter.device.type == "cpu"
        and parameter.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
    match linear:
        case Linear.TORCH:
            return nullcontext()
        case Linear.ONEDNN if not usable:
            raise UsageError(
                f"oneDNN serves float32 on a CPU, where PyTorch was built with it; the model is {parameter.dtype} on "
                f"{parameter.device.type}",
                hint="use linear=Linear.TORCH",
            )
        case Linear.AUTO if not (usable and torch.backends.mkl.is_available() and _is_by_amd()):
            return nullcontext()
        case _:
            return _make_mode()


def _is_by_amd() -> bool:
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")[:4096]
    except OSError:
        return False


def _make_mode() -> AbstractContextManager[Any]:
    import torch
    from torch.overrides import TorchFunctionMode

    plain = torch.nn.functional.linear
    multiply = torch.ops.mkldnn._linear_pointwise.default

    class OneDnn(TorchFunctionMode):  # type: ignore[misc]  # torch is not there when types are checked
        """Hands matrix products of float32 to oneDNN."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is plain and not kwargs:
                x, weight, *bias = args
                if x.dtype is weight.dtype is torch.float32 and weight.is_contiguous() and weight.dim() == 2:
                    return multiply(x, weight, bias[0] if bias else None, "none", [], "")
            return function(*args, **(kwargs or {}))

    return OneDnn()
