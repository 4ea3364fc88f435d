"""Recorded answers of vLLM's own planner, and ours to the same cases."""

from __future__ import annotations

import json
from pathlib import Path

from kvledger.engines.vllm.demand import Demand, StateMode
from kvledger.engines.vllm.lines import error_text, format_gib
from kvledger.engines.vllm.rules import Grouping, find_rules
from kvledger.engines.vllm.sizing import Limits, Stage, Worker, size_pool
from kvledger.engines.vllm.specs import LayerSpec, SpecKind
from kvledger.engines.vllm.version import parse_version
from kvledger.errors import ModelError

DATA = Path(__file__).parents[2] / "data"
_ELEMENT = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "uint8": 1}


def load_records(name: str):
    """Return the version and the records of one file."""
    document = json.loads((DATA / name).read_text(encoding="utf-8"))
    return document["vllm"], document["records"]


def layer_spec(layer, rules) -> LayerSpec:
    """Build our spec of a recorded layer."""
    kind = SpecKind(layer["kind"])
    block = layer["block"]
    if kind is SpecKind.STATE:
        return LayerSpec(
            kind=kind,
            block_tokens=block,
            payload_bytes=layer["bytes"],
            page_bytes=layer["padded"] or layer["bytes"],
            checkpoint_blocks=layer["checkpoint"] if rules.checkpoint_blocks else 0,
            speculative_blocks=layer["speculative"],
            shared_by_dcp=False,
        )
    element = _ELEMENT[layer["dtype"]]
    if kind is SpecKind.LATENT:
        page = block * (layer["record"] or layer["size"] * element)
        shape = (layer["size"], layer["dtype"], layer["record"] or 0)
        return LayerSpec(kind=kind, block_tokens=block, payload_bytes=page, page_bytes=page, shape=shape)
    value = layer["value"] if rules.separate_value_size else layer["key"]
    page = block * layer["heads"] * (layer["key"] + value) * element
    return LayerSpec(
        kind=kind,
        block_tokens=block,
        payload_bytes=page,
        page_bytes=page,
        shape=(layer["heads"], layer["key"], value, layer["dtype"]),
        window_tokens=layer.get("window"),
        chunk_tokens=layer.get("chunk"),
    )


def our_answer(case, version: str, *, brief: bool = False):
    """Return what our planner answers to a recorded case, in the form of the record."""
    rules = find_rules(parse_version(version))
    table = case["layers"]
    specs = [layer_spec(table["kinds"][i], rules) for i in table["order"]]
    retained = case["retained"]
    specs = [
        LayerSpec(**{**{f: getattr(s, f) for f in LayerSpec.__dataclass_fields__}, "retained_tokens": retained})
        if s.kind is SpecKind.WINDOW
        else s
        for s in specs
    ]
    stages, start = [], 0
    for length in case["stages"]:
        stages.append(Stage(specs=tuple(specs[start : start + length])))
        start += length
    workers = [Worker(stage=i, kv_bytes=b) for i, b in enumerate(case["kv_bytes"])]
    batches = case["batches"] if rules.counts_batches_in_flight else 1
    mode = StateMode(case["mode"]) if rules.state_modes else StateMode.ONE
    demand = Demand(
        in_flight_tokens=batches * case["batched_tokens"],
        token_shards=case["dcp"],
        state_mode=StateMode.ALL if rules.state_blocks_by_length else mode,
        all_mode_speculative=rules.all_mode_speculative,
    )
    limits = Limits(
        max_model_len=case["max_model_len"],
        auto_fit=case["auto_fit"],
        blocks_override=case["override"],
        hybrid=case["hybrid"],
        shards=case["dcp"],
    )
    try:
        sizing = size_pool(stages, workers, rules, demand, limits=limits)
    except ModelError:
        return {"error": "refused"}
    short = sizing.shortage
    if short is not None and short.available_bytes <= 0:
        return {"error": "memory"}
    if short is not None:
        return {
            "error": "length",
            "needed_gib": format_gib(short.needed_bytes, rules),
            "available_gib": format_gib(short.available_bytes, rules),
            "longest": short.largest_length,
            "text": error_text(short, rules, max_model_len=sizing.max_model_len),
        }
    members = {} if brief else {"members": [sorted(group.layers) for group in sizing.groups.groups]}
    return {
        **members,
        "groups": [len(group.layers) for group in sizing.stages[0]],
        "unit_bytes": list(sizing.unit_bytes),
        "blocks": sizing.blocks,
        "tokens": sizing.printed_tokens,
        "concurrency": sizing.concurrency,
        "max_model_len": sizing.max_model_len,
        "padding": [[n, f"{n / of * 100:.2f}"] for n, of in sizing.groups.padding],
    }


def comparable(answer, case, version: str):
    """Return what two answers must agree on.

    Up to 0.10 each stage forms its own groups, sorts them, and its tensors are not cut to the smallest stage: groups
    are compared as a set there, and pipelines by their blocks and concurrency only. 0.8 only prints the concurrency,
    and breaks off before the longest length.
    """
    if answer.get("error") in ("memory", "refused"):
        return {"error": answer["error"]}
    if "concurrency" in answer and version.startswith("0.8."):
        answer = {**answer, "concurrency": round(answer["concurrency"], 2)}
    if "longest" in answer and version.startswith("0.8."):
        answer = {**answer, "longest": None}
    if "groups" in answer and find_rules(parse_version(version)).grouping is not Grouping.STRIDED:
        answer = {**answer, "groups": sorted(answer["groups"])}
        if "members" in answer:
            answer["members"] = sorted(answer["members"])
        if len(case["stages"]) > 1:
            answer = {name: answer[name] for name in ("blocks", "concurrency", "max_model_len")}
    return answer
