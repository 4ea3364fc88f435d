"""KV bytes of one rank from its device: an estimate with every term and an interval.

vLLM ``worker/gpu_worker.py`` (``determine_available_memory``): ``requested = ceil(total * utilisation)``; from it go
the weights, what CUDA, NCCL and the kernels take (non-torch), the peak of activations in a profile run over
``max_num_batched_tokens``, and from 0.20 an estimate of the CUDA graphs. Only the weights can be known beforehand.
"""

from __future__ import annotations

from math import ceil

from kvledger.engines.plan import Deployment, GpuBudget, KvMemory, MemoryTerm
from kvledger.engines.vllm.settings import Settings, resolve_settings
from kvledger.errors import CapacityError
from kvledger.ledger import Accuracy
from kvledger.model import ModelSpec
from kvledger.units import GIB, MIB, counted, format_bytes

__all__ = ["model_memory"]


def model_memory(model: ModelSpec, deployment: Deployment, budget: GpuBudget) -> KvMemory:
    """Estimate the KV bytes of one rank.

    Raises:
        CapacityError: Nothing is left for the KV cache.
    """
    settings = resolve_settings(model, deployment)
    ratio = budget.utilisation_ratio
    if ratio is None:
        ratio = settings.rules.utilisation_ratio
    requested = ceil(budget.total_bytes * ratio)
    terms = (
        MemoryTerm(
            name="requested",
            value_bytes=requested,
            # The driver keeps up to 1 % of what is printed on the card.
            low_bytes=ceil(requested * 0.99),
            high_bytes=requested,
            accuracy=Accuracy.DERIVED,
            why=f"total memory times gpu_memory_utilization {ratio:g}",
        ),
        _minus("weights", budget.weights_bytes, spread=0.02, why="weights on one rank, as loaded"),
        _activations(model, settings, budget),
        _non_torch(settings, budget),
        *_graphs(settings, budget),
    )
    value = sum(term.value_bytes for term in terms)
    low, high = sum(term.low_bytes for term in terms), sum(term.high_bytes for term in terms)
    if high <= 0:
        raise CapacityError(
            f"nothing is left for the KV cache: {format_bytes(requested)} requested, "
            f"{format_bytes(requested - value)} used by weights, activations and the runtime",
            hint="use a larger GPU, more tensor parallelism, smaller weights or a higher utilisation",
        )
    return KvMemory(
        per_rank_bytes=(max(0, value),),
        accuracy=Accuracy.MODELLED,
        source="estimated from the device, the utilisation and the weights",
        low_bytes=max(0, low),
        high_bytes=high,
        terms=terms,
    )


def _minus(name: str, value_bytes: int, *, spread: float, why: str, known: bool = True) -> MemoryTerm:
    wide = round(value_bytes * spread)
    return MemoryTerm(
        name=name,
        value_bytes=-value_bytes,
        low_bytes=-value_bytes - wide,
        high_bytes=-value_bytes + wide,
        accuracy=Accuracy.DERIVED if known else Accuracy.MODELLED,
        why=why,
    )


def _activations(model: ModelSpec, settings: Settings, budget: GpuBudget) -> MemoryTerm:
    """Return the peak of the profile run: hidden states of all batched tokens, and logits of all sequences.

    Per batched token about 16 hidden vectors of 2 bytes (residual, attention, the MLP's widest point), and one float32
    row of logits for each of ``max_num_seqs`` sequences with its 2-byte original.
    """
    if budget.activation_bytes is not None:
        return _minus("activations", budget.activation_bytes, spread=0.0, why="as given")
    tokens = settings.deployment.max_num_batched_tokens or 8192
    sequences = settings.deployment.max_num_seqs or 256
    hidden = model.hidden_size or 4096
    vocabulary = model.vocabulary_size or 128_000
    peak = tokens * hidden * 2 * 16 + sequences * vocabulary * 6
    return _minus(
        "activations",
        peak,
        spread=0.5,
        why=f"{tokens:,} batched tokens x {hidden} x 32 B + {counted(sequences, 'sequence')} x {vocabulary} logits "
        "x 6 B",
        known=False,
    )


def _non_torch(settings: Settings, budget: GpuBudget) -> MemoryTerm:
    if budget.non_torch_bytes is not None:
        return _minus("non-torch", budget.non_torch_bytes, spread=0.0, why="as given")
    parallel = settings.deployment.tp * settings.deployment.pp > 1
    value = (1200 if parallel else 300) * MIB
    return _minus(
        "non-torch",
        value,
        spread=0.7,
        why="CUDA context and kernels" + (", NCCL and all-reduce buffers" if parallel else ""),
        known=False,
    )


def _graphs(settings: Settings, budget: GpuBudget) -> tuple[MemoryTerm, ...]:
    if budget.cuda_graph_bytes is not None:
        return (_minus("CUDA graphs", budget.cuda_graph_bytes, spread=0.0, why="as given"),)
    if not settings.rules.subtracts_cuda_graphs:
        return ()
    return (
        _minus(
            "CUDA graphs",
            GIB // 2,
            spread=0.9,
            why="taken off the budget from 0.20 on; 0 with --enforce-eager",
            known=False,
        ),
    )
