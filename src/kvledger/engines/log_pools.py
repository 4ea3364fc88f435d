"""The pools a start-up log prints against a model's layers, for engines that name tokens and bytes of each pool.

Tokens, cells or blocks are exact in such logs and bytes are rounded, so the bytes are computed from the units: a figure
follows when they round to what is printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from kvledger.engines.facts import Engine, PoolFacts, StartupFacts
from kvledger.engines.plan import Deployment, KvMemory, Plan
from kvledger.engines.quantity import Quantity
from kvledger.engines.registry import load_planner
from kvledger.engines.tensorrt_llm.log import WINDOW
from kvledger.engines.vllm.logcheck import LogCheck
from kvledger.errors import Error, SourceError
from kvledger.ledger import Accuracy
from kvledger.model import ModelSpec
from kvledger.units import format_bytes

__all__ = ["check_pools"]

_PLENTY_BYTES = 2**50
_STATES = ("state", "mamba")
_ATTENTION = ("kv", "full", "swa", "index")
_MOST_KEPT = 64
_SOME_CELLS = 4096
_SLACK_BYTES = 5_243
"""Half of the last of two decimals of a MiB: a sum of rounded devices may be that much off."""
_DTYPES = {
    "float8_e4m3fn": "fp8",
    "float4_e2m1fn_x2": "nvfp4",
    "float8_e5m2": "fp8_e5m2",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """One pool of the log: its units, the bytes this model's layers put into them, and what is printed."""

    name: str
    units: int
    unit_name: str
    computed_bytes: int
    printed: Quantity | None
    layers: tuple[int, int] | None
    """As printed, and those of the model."""
    is_derived: bool = False
    """Whether the units follow from the bytes, because the log prints none."""

    @property
    def follows(self) -> bool:
        """Whether the printed bytes are these, as they were rounded."""
        return self.printed is None or (
            self.printed.low - _SLACK_BYTES <= self.computed_bytes <= self.printed.high + _SLACK_BYTES
        )

    def words(self) -> str:
        """Say what the pool takes."""
        name = f"{self.units:,} {self.unit_name}{'s' if self.units != 1 else ''}"
        take = f"{self.name}: {name} take {format_bytes(self.computed_bytes)}"
        if self.printed is None:
            return f"{take}; the log prints no bytes"
        printed = format_bytes(round(self.printed.value))
        if self.is_derived:
            return f"{self.name}: the printed {printed} hold {name}"
        if self.follows:
            return f"{take}, as printed"
        other = ""
        if self.layers is not None and self.layers[0] != self.layers[1]:
            other = f" (the log counts {self.layers[0]} layers, this model has {self.layers[1]} of that kind)"
        return f"{take} by this model's layers, but {printed} are printed{other}"


def check_pools(model: ModelSpec, asked: Deployment, facts: StartupFacts) -> tuple[Deployment, LogCheck, KvMemory]:
    """Return the deployment of a log, what the comparison of its pools found, and the bytes of them all on a rank.

    Raises:
        SourceError: The log prints no pool whose units are known.
    """
    deployment = _deployment(model, asked, facts)
    pools = _pools(model, _with_cells(deployment, ()), facts)
    deployment = _with_cells(deployment, pools)
    if not pools:
        raise SourceError(
            f"the log of {asked.engine} prints no pool with its tokens, cells or blocks",
            hint="give the lines of the start; llama.cpp prints its memory with `-lv 4` only",
        )
    follows = all(pool.follows for pool in pools)
    explanation = "; ".join(pool.words() for pool in pools)
    if not follows:
        other = _other_setting(model, deployment, facts)
        explanation += f"; they follow if {other}" if other else "; check the model, the KV dtype and the parallelism"
    total = sum(pool.computed_bytes for pool in pools)
    tokens = facts.find_smallest("tokens") or facts.find_smallest("tokens", "full")
    check = LogCheck(
        follows=follows,
        printed_tokens=None if tokens is None else round(tokens.value),
        printed_concurrency=None,
        predicted_tokens=None,
        blocks=None,
        kv_bytes=total,
        explanation=explanation,
    )
    units = ", ".join(f"{pool.units:,} {pool.unit_name}s" for pool in pools)
    memory = KvMemory(
        per_rank_bytes=(total,),
        accuracy=Accuracy.DERIVED,
        source=f"the pools of the log: {units}",
        low_bytes=total,
        high_bytes=total,
    )
    return deployment, check, memory


def _with_cells(deployment: Deployment, pools: Sequence[_Pool]) -> Deployment:
    """Return a llama.cpp server whose log tells no context with the cells that its bytes hold; before, with any."""
    options = deployment.options
    if deployment.engine != "llama.cpp" or deployment.max_model_len is not None or "ctx_size" in options:
        return deployment
    cells = next((pool.units for pool in pools if pool.is_derived and pool.name != "state"), None)
    if cells is None:
        return deployment if pools else replace(deployment, options={**options, "ctx_size": str(_SOME_CELLS)})
    slots = next((pool.units for pool in pools if pool.name == "state"), 1)
    more = {"kv_unified": "on"} if slots > 1 else {}
    return replace(deployment, options={"parallel": str(slots), **more, **options, "ctx_size": str(cells)})


def _pools(model: ModelSpec, deployment: Deployment, facts: StartupFacts) -> list[_Pool]:
    plan = load_planner(deployment.engine).make_plan(model, deployment, KvMemory.given(_PLENTY_BYTES))
    told = {pool.name: pool for pool in reversed(facts.pools) if pool.is_memory}
    found = [pool for name in (*_ATTENTION, "state") if name in told and (pool := _pool(told[name], plan, facts))]
    parts = [pool for pool in found if pool.name in _ATTENTION and pool.printed is None]
    whole = told.get("kv")
    if whole is None or whole.size_bytes is None or len(parts) < 2 or any(pool.name == "kv" for pool in found):
        return found
    joined = _Pool(
        name="kv",
        units=sum(pool.units for pool in parts),
        unit_name=parts[0].unit_name,
        computed_bytes=sum(pool.computed_bytes for pool in parts),
        printed=whole.size_bytes,
        layers=None,
    )
    return [joined, *(pool for pool in found if pool not in parts)]


def _pool(told: PoolFacts, plan: Plan, facts: StartupFacts) -> _Pool | None:
    """Return one pool of the log with the bytes it takes; None where its units are not told or the plan has no such."""
    names = [pool.name for pool in plan.pools if pool.name not in ("draft", *_STATES)]
    if told.name == "state":
        names = [pool.name for pool in plan.pools if pool.name in _STATES]
    elif told.name != "kv":
        names = [name for name in names if name == told.name]
    elif len(names) > 1 and "swa" in names:
        return None
    unit_bytes: Mapping[str, int] = plan.ranks[0].unit_bytes
    units = _count_units(told, plan, facts)
    is_derived = units is None and told.size_bytes is not None and bool(names)
    if is_derived and told.size_bytes is not None:
        units = round(told.size_bytes.value / max(1, sum(unit_bytes[name] for name in names)))
    if not names or units is None:
        return None
    null = max(pool.null_units for pool in plan.pools if pool.name in names) if facts.engine is Engine.SGLANG else 0
    mine = sum(claim.layers for claim in plan.claims if claim.pool == names[0])
    is_counted = told.layers is not None and told.name != "state"
    return _Pool(
        name=told.name,
        units=units,
        unit_name=next(pool.unit_name for pool in plan.pools if pool.name == names[0]),
        computed_bytes=sum((units + null) * unit_bytes[name] for name in names),
        printed=told.size_bytes or _of_blocks(told),
        layers=(round(told.layers.value), mine) if is_counted and told.layers is not None else None,
        is_derived=is_derived,
    )


def _of_blocks(told: PoolFacts) -> Quantity | None:
    """Return the bytes of all blocks, where the log names those of one."""
    blocks, one = _whole(told.blocks), told.block_bytes
    if blocks is None or one is None:
        return None
    return replace(one, value=blocks * one.value, low=blocks * one.low, high=blocks * one.high)


def _count_units(told: PoolFacts, plan: Plan, facts: StartupFacts) -> int | None:
    """Return slots of a state, cells of all streams, blocks, or tokens in units of the plan's block."""
    if told.name == "state":
        return _whole(told.slots)
    if told.cells is not None:
        return round(told.cells.value) * (_whole(told.streams) or 1)
    block = plan.deployment.block_tokens or 1
    blocks, tokens = _whole(told.blocks), _whole(told.tokens)
    if blocks is not None and (_whole(told.block_tokens) or _whole(facts.block_tokens) or block) == block:
        return blocks
    return None if tokens is None else tokens // block


def _whole(quantity: Quantity | None) -> int | None:
    return None if quantity is None or not quantity.is_exact else round(quantity.value)


def _deployment(model: ModelSpec, asked: Deployment, facts: StartupFacts) -> Deployment:
    """Return the deployment with what the log says filled in where nothing was asked for."""
    options = dict(asked.options)
    for name, value in _engine_options(facts):
        options.setdefault(name, value)
    if asked.max_model_len is not None and asked.engine == "llama.cpp":
        options.pop("ctx_size", None)
    dtype = asked.kv_dtype
    if dtype == "auto" and asked.engine not in ("llama.cpp", "ollama"):
        told = facts.kv_dtype.value if facts.kv_dtype else next((p.key_dtype for p in facts.pools if p.key_dtype), None)
        dtype = _DTYPES.get(told or "auto", told or "auto")
    elif dtype != "auto":
        options.pop("cache_type_k", None)
        options.pop("cache_type_v", None)
    length = asked.max_model_len
    if length is None and asked.engine in ("sglang", "tensorrt-llm", "lmdeploy", "tgi"):
        length = _whole(facts.max_model_len) or _longest_window(model, facts)
    return replace(
        asked,
        tp=asked.tp if asked.tp > 1 else (_whole(facts.tp) or 1),
        pp=asked.pp if asked.pp > 1 else (_whole(facts.pp) or 1),
        max_model_len=length,
        block_tokens=asked.block_tokens or _block(facts),
        kv_dtype=dtype,
        options=options,
    )


def _longest_window(model: ModelSpec, facts: StartupFacts) -> int | None:
    """Return TensorRT-LLM's longest window: the longest request, where a layer of the model reads every token."""
    reads_all = any(getattr(layer.cache, "cap_tokens", None) is None for layer in model.caching_layers())
    told = facts.options.get(WINDOW, "") if facts.engine is Engine.TENSORRT_LLM and reads_all else ""
    return int(told) if told else None


def _block(facts: StartupFacts) -> int | None:
    if facts.engine not in (Engine.SGLANG, Engine.TENSORRT_LLM, Engine.LMDEPLOY):
        return None
    return _whole(facts.block_tokens) or next((_whole(pool.block_tokens) for pool in facts.pools), None)


def _engine_options(facts: StartupFacts) -> Iterator[tuple[str, str]]:
    """Yield the settings of an engine that fix the pools the log prints."""
    kv = next((pool for name in ("kv", "full") for pool in facts.find_pools(name) if pool.tokens or pool.cells), None)
    state = next(iter(facts.find_pools("state")), None)
    tokens = _whole(kv.tokens) if kv is not None else None
    if facts.engine is Engine.SGLANG:
        if tokens:
            yield "max_total_tokens", str(tokens)
        if facts.find_pools("swa"):
            yield "hybrid_swa", "on"
        if state is not None and _whole(state.slots):
            yield "max_mamba_cache_size", str(_whole(state.slots))
    elif facts.engine is Engine.TENSORRT_LLM and tokens:
        yield "max_tokens", str(tokens)
    elif facts.engine in (Engine.LLAMACPP, Engine.OLLAMA):
        if kv is not None and kv.cells is not None:
            yield from _llamacpp_options(facts, kv)
        elif facts.engine is Engine.LLAMACPP:
            yield from _contexts(facts)
        else:
            yield from _ollama_settings(facts)
        if state is not None and _whole(state.kept_states) and facts.engine is Engine.LLAMACPP:
            yield "rs_seq", str(_whole(state.kept_states))


def _contexts(facts: StartupFacts) -> Iterator[tuple[str, str]]:
    """Yield what llama.cpp tells of its context where no line counts cells: old builds served one sequence."""
    if facts.options.get("n_ctx"):
        yield "ctx_size", facts.options["n_ctx"]
        yield "parallel", facts.options.get("n_seq_max", "1")
        if facts.options.get("kv_unified"):
            yield "kv_unified", facts.options["kv_unified"]


def _ollama_settings(facts: StartupFacts) -> Iterator[tuple[str, str]]:
    """Yield what Ollama says of a runner whose own engine counts no cells: tokens of a slot, slots, type."""
    length, slots = _whole(facts.max_model_len), _whole(facts.max_running)
    if length and slots:
        yield "num_ctx", str(length)
        yield "num_parallel", str(slots)
    if facts.kv_dtype:
        yield "kv_cache_type", facts.kv_dtype.value


def _llamacpp_options(facts: StartupFacts, kv: PoolFacts) -> Iterator[tuple[str, str]]:
    assert kv.cells is not None
    cells, streams, slots = round(kv.cells.value), _whole(kv.streams) or 1, _whole(kv.slots) or 1
    if facts.engine is Engine.OLLAMA:
        yield "num_ctx", str(cells * streams // slots)
        yield "num_parallel", str(slots)
        if kv.key_dtype:
            yield "kv_cache_type", kv.key_dtype
        return
    yield "ctx_size", str(cells * streams)
    yield "parallel", str(slots)
    if streams == 1 and slots > 1:
        yield "kv_unified", "on"
    if kv.key_dtype:
        yield "cache_type_k", kv.key_dtype
    if kv.value_dtype or kv.key_dtype:
        yield "cache_type_v", kv.value_dtype or kv.key_dtype or ""


def _other_setting(model: ModelSpec, deployment: Deployment, facts: StartupFacts) -> str | None:
    for words, changed in (*_kept_states(model, deployment, facts), *_variants(deployment)):
        try:
            if all(pool.follows for pool in _pools(model, changed, facts)):
                return words
        except Error:
            continue
    return None


def _kept_states(model: ModelSpec, deployment: Deployment, facts: StartupFacts) -> Iterator[tuple[str, Deployment]]:
    """Yield a llama.cpp server that keeps older states for a rejected draft, where the bytes are a whole multiple."""
    if deployment.engine != "llama.cpp" or "rs_seq" in deployment.options:
        return
    for pool in _pools(model, deployment, facts):
        if pool.name == "state" and pool.printed is not None and pool.computed_bytes:
            kept = round(pool.printed.value / pool.computed_bytes) - 1
            if 1 <= kept <= _MOST_KEPT:
                options = {**deployment.options, "rs_seq": str(kept)}
                each = "an older state" if kept == 1 else f"{kept} older states"
                words = f"each slot keeps {each} for a rejected draft (`rs_seq` is {kept})"
                yield words, replace(deployment, options=options)


def _variants(deployment: Deployment) -> Iterator[tuple[str, Deployment]]:
    """Yield deployments with another dtype of the cache, another block, or more ranks."""
    bare = {name: text for name, text in deployment.options.items() if not name.startswith(("cache_type", "kv_cache"))}
    for dtype in _dtypes(deployment.engine):
        yield f"the KV dtype is {dtype}", replace(deployment, kv_dtype=dtype, options=bare)
    if deployment.engine in ("llama.cpp", "ollama"):
        return
    ranks = [tp for tp in (2, 4, 8, 16) if deployment.tp != tp]
    for tp in ranks:
        yield f"tensor parallelism is {tp}", replace(deployment, tp=tp)
    for tp, dtype in product(ranks, _dtypes(deployment.engine)):
        words = f"tensor parallelism is {tp} and the KV dtype is {dtype}"
        yield words, replace(deployment, tp=tp, kv_dtype=dtype)


def _dtypes(engine: str) -> Sequence[str]:
    if engine in ("llama.cpp", "ollama"):
        return ("float16", "q8_0", "q4_0", "q5_1", "q5_0", "q4_1", "iq4_nl", "float32")
    return ("fp8", "bfloat16", "int8", "nvfp4")
