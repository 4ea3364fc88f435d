"""Record what vLLM's own planner decides, for the tests of ours.

Run with the Python of an installed vLLM (CPU builds will do)::

    python benchmarks/oracle_vllm.py OUT.json            # all cases below
    python benchmarks/oracle_vllm.py OUT.json --random 200 --seed 7

Other releases answer the same way when their ``vllm`` package is first on ``PYTHONPATH``.

Each record is ours: a case as plain numbers (layers, flags, bytes) and what the planner answered (groups, bytes of a
block, blocks, concurrency, printed tokens, or the error). No part of vLLM is stored.
"""

from __future__ import annotations

import argparse
import inspect
import json
import random
import re
import sys
import types
from itertools import count
from pathlib import Path

GIB = 2**30
_ELEMENT = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "uint8": 1}


def full(heads=8, size=128, dtype="bfloat16", value_size=None, block=16):
    return {"kind": "full", "block": block, "heads": heads, "key": size, "value": value_size or size, "dtype": dtype}


def window(tokens, heads=8, size=128, dtype="bfloat16", block=16):
    return {**full(heads, size, dtype, block=block), "kind": "window", "window": tokens}


def chunk(tokens, heads=8, size=128, dtype="bfloat16", block=16):
    return {**full(heads, size, dtype, block=block), "kind": "chunk", "chunk": tokens}


def latent(size=576, dtype="bfloat16", block=64, record=None):
    return {"kind": "latent", "block": block, "size": size, "dtype": dtype, "record": record}


def state(bytes_, padded=None, block=16, speculative=0, checkpoint=0):
    return {
        "kind": "state",
        "block": block,
        "bytes": bytes_,
        "padded": padded,
        "speculative": speculative,
        "checkpoint": checkpoint,
    }


def pattern(*parts):
    return [layer for layer, times in parts for layer in [layer] * times]


def interleave(period, layers):
    return [layer for _ in range(layers // len(period)) for layer in period]


def case(name, layers, **settings):
    defaults = {
        "max_model_len": 8192,
        "batched_tokens": 8192,
        "batches": 2,
        "kv_bytes": [20 * GIB],
        "stages": [len(layers)],
        "dcp": 1,
        "tp": 1,
        "mode": "none",
        "override": None,
        "hybrid": True,
        "retained": 0,
        "auto_fit": False,
    }
    unknown = set(settings) - set(defaults)
    if unknown:
        raise SystemExit(f"unknown settings {unknown}")
    return {"name": name, "layers": layers, **defaults, **settings}


def fixed_cases():
    gemma3 = interleave([window(1024, 16)] * 5 + [full(16)], 60) + [window(1024, 16)] * 2
    gptoss = interleave([window(128, 8, 64), full(8, 64)], 36)
    gemma4 = interleave([window(1024, 16, 256)] * 5 + [full(4, 512)], 60)
    next_page = 16 * 34 * 2048
    qwen_next = interleave([state(1_097_728, next_page, 544)] * 3 + [full(2, 256, block=544)], 48)
    qwen35 = interleave([state(3_207_168, 784 * 4096, 784)] * 3 + [full(4, 256, block=784)], 64)
    draft = full(4, 256, block=800)
    spec35 = [*interleave([state(3_268_608, 800 * 4096, 800, speculative=3)] * 3 + [draft], 64), draft]
    nano = pattern((state(2_695_168, 672 * 4096, 672, checkpoint=1), 27), (full(8, 128, block=672), 4))
    jamba = interleave([state(311_296, 80 * 4096, 80)] * 7 + [full(8, 128, block=80)], 32)
    scout = interleave([chunk(8192)] * 3 + [full()], 48)
    v32 = [x for _ in range(61) for x in (latent(dtype="uint8", record=656), latent(132, "uint8"))]
    kimi_linear = interleave([state(2_170_880, 1920 * 1152, 1920)] * 3 + [latent(block=1920)], 24)
    dense = [full()] * 32
    return [
        case("dense", dense),
        case("dense, uneven length", dense, max_model_len=1000, kv_bytes=[100 * 2**21]),
        case("dense, too long", dense, max_model_len=131072, kv_bytes=[5 * GIB + 12345]),
        case("dense, exactly one request, null block missing", dense, max_model_len=8192, kv_bytes=[GIB]),
        case("dense, exactly one request and the null block", dense, max_model_len=8192, kv_bytes=[GIB + 2**21]),
        case("dense, auto length", dense, max_model_len=131072, kv_bytes=[5 * GIB + 12345], auto_fit=True),
        case("dense, forced blocks", dense, override=777),
        case("dense, no memory", dense, kv_bytes=[0]),
        case("dense, pipeline of 3", dense, stages=[11, 11, 10], kv_bytes=[9 * GIB, 10 * GIB, 8 * GIB]),
        case("dense, context parallel 4", [full(1)] * 32, dcp=4, tp=4, max_model_len=9001),
        case("latent", [latent()] * 61, max_model_len=163840, kv_bytes=[30 * GIB]),
        case("latent, context parallel 8", [latent()] * 61, max_model_len=163840, dcp=8, tp=8),
        case("latent with indexer", v32, max_model_len=163840, kv_bytes=[43 * GIB]),
        case("widths differ", interleave([full(8), full(4, 128, value_size=64)], 30)),
        case("gemma-3", gemma3, max_model_len=131072, kv_bytes=[32 * GIB]),
        case("gemma-3, one batch in flight", gemma3, max_model_len=131072, batches=1, kv_bytes=[32 * GIB]),
        case("gemma-3, without groups", gemma3, max_model_len=16384, hybrid=False, kv_bytes=[32 * GIB]),
        case("gemma-3, short", gemma3, max_model_len=700),
        case("gemma-3, too long", gemma3, max_model_len=131072, kv_bytes=[9 * GIB]),
        case("gemma-3, pipeline", gemma3, stages=[31, 31], batches=3, kv_bytes=[16 * GIB, 15 * GIB]),
        case("gemma-2", interleave([window(4096, 16), full(16)], 46), max_model_len=8192),
        case("gemma-4", gemma4, max_model_len=262144, batched_tokens=32768, kv_bytes=[71 * GIB]),
        case("gemma-4, too long", gemma4, max_model_len=262144, batched_tokens=32768, kv_bytes=[60 * GIB]),
        case("gpt-oss", gptoss, max_model_len=131072),
        case("gpt-oss, context parallel fails for windows only", gptoss, max_model_len=131072, batched_tokens=1024),
        case("gpt-oss with a draft", [*gptoss, full(8, 64)], max_model_len=131072),
        case("window only", [window(4096, 2)] * 30, max_model_len=16384),
        case(
            "window only, modules retained",
            [window(4096, 2)] * 30,
            max_model_len=16384,
            retained=18,
            batched_tokens=512,
        ),
        case("two windows", interleave([window(512), window(2048)], 24), max_model_len=16384),
        case("chunked local", scout, max_model_len=131072, kv_bytes=[40 * GIB]),
        case("chunked local without groups", scout, max_model_len=131072, hybrid=False, kv_bytes=[40 * GIB]),
        case("qwen3-next", qwen_next, max_model_len=65536),
        case("qwen3-next, align", qwen_next, max_model_len=65536, mode="align"),
        case("qwen3.5", qwen35, max_model_len=32768, kv_bytes=[70 * GIB]),
        case("qwen3.5, align, 3 proposed", spec35, max_model_len=131072, mode="align"),
        case("qwen3.5, too long", qwen35, max_model_len=262144, mode="align", kv_bytes=[9 * GIB]),
        case("nemotron-nano, align", nano, max_model_len=131072, mode="align"),
        case("nemotron-nano", nano, max_model_len=131072),
        case("jamba", jamba, max_model_len=262144, mode="align"),
        case("mamba only", [state(2_695_168, None, 65536)] * 48, max_model_len=65536),
        case("kimi linear", kimi_linear, max_model_len=262144, mode="align"),
        case("qwen3-next, pipeline", qwen_next, stages=[24, 24], kv_bytes=[20 * GIB, 19 * GIB], mode="align"),
        case("state page smaller", interleave([state(100_000, None, 32)] * 2 + [full(block=32)], 24)),
        case("page that does not divide", interleave([window(512, 3, 96), full(8)], 24)),
        case("latent beside windows", interleave([latent(block=16), window(512, 2)], 24), max_model_len=4096),
        case("three kinds", interleave([state(60_000, 16 * 4096)] + [window(512)] * 2 + [full()], 40), mode="align"),
    ]


def random_cases(number, seed):
    rng = random.Random(seed)
    for index in range(number):
        pages = rng.choice([[(8, 128)], [(8, 128), (4, 128)], [(8, 128), (4, 64), (3, 96)]])
        kinds = []
        for _ in range(rng.randint(1, 3)):
            heads, size = rng.choice(pages)
            block = 16
            kind = rng.choice(["full", "window", "chunk", "state", "full", "latent"])
            if kind == "full":
                kinds.append(full(heads, size, block=block))
            elif kind == "window":
                kinds.append(window(rng.choice([128, 1024, 4096]), heads, size, block=block))
            elif kind == "latent":
                kinds.append(latent(rng.choice([576, 256]), block=block))
            elif kind == "chunk":
                kinds.append(chunk(rng.choice([512, 8192]), heads, size, block=block))
            else:
                kinds.append(state(rng.randint(1000, 16 * 4096), 16 * 4096, block, rng.choice([0, 0, 3])))
        layers = [rng.choice(kinds) for _ in range(rng.randint(2, 40))]
        stages = rng.choice([1, 1, 1, 2])
        cut = rng.randint(1, len(layers) - 1)
        yield case(
            f"random {seed}/{index}",
            layers,
            max_model_len=rng.choice([100, 1000, 4096, 131072]),
            batched_tokens=rng.choice([1024, 2048, 8192]),
            batches=rng.choice([1, 2]),
            stages=[len(layers)] if stages == 1 else [cut, len(layers) - cut],
            kv_bytes=[rng.randint(1, 4 * GIB) for _ in range(stages)],
            mode=rng.choice(["none", "align"]),
            retained=rng.choice([0, 0, 2]),
            override=rng.choice([None, None, None, 500]),
            hybrid=rng.random() > 0.15,
            auto_fit=rng.random() < 0.2,
        )


class Oracle:
    """vLLM's planner behind the few attributes of its configuration that it reads."""

    def __init__(self):
        import torch
        import vllm.v1.kv_cache_interface as interface

        try:
            import vllm.v1.core.kv_cache_planning as planning
        except ImportError:
            import vllm.v1.core.kv_cache_utils as planning
        import vllm.v1.core.kv_cache_utils as utils

        self.torch, self.interface, self.planning, self.utils = torch, interface, planning, utils
        self.printed = planning.logger = utils.logger = _Printed()
        try:
            import vllm.v1.core.single_type_kv_cache_manager as managers

            register = getattr(managers, "register_all_kvcache_specs", None)
            if register is not None:
                register(types.SimpleNamespace())
        except (ImportError, AttributeError, TypeError):
            pass
        try:
            from vllm.v1.kv_cache_layout import KVCacheLayout

            self.layout = KVCacheLayout.LBNHC
        except ImportError:
            self.layout = None

    def dtype(self, name):
        names = {"fp8": "uint8"}
        return getattr(self.torch, names.get(name, name))

    def spec(self, layer, settings):
        interface = self.interface
        kind = layer["kind"]
        if kind == "state":
            return self._build(
                interface.MambaSpec,
                block_size=layer["block"],
                shapes=((layer["bytes"],),),
                dtypes=(self.torch.uint8,),
                dtype=self.torch.uint8,
                page_size_padded=layer["padded"],
                mamba_cache_mode=settings["mode"],
                num_speculative_blocks=layer["speculative"],
                num_prefill_checkpoint_blocks=layer["checkpoint"],
            )
        if kind == "latent":
            return self._build(
                getattr(interface, "MLAAttentionSpec", interface.FullAttentionSpec),
                block_size=layer["block"],
                num_kv_heads=1,
                head_size=layer["size"],
                dtype=self.dtype(layer["dtype"]),
                state_content_bytes=layer["record"],
                cache_dtype_str="fp8_ds_mla" if layer["record"] else None,
                use_mla=True,
            )
        common = {
            "block_size": layer["block"],
            "num_kv_heads": layer["heads"],
            "head_size": layer["key"],
            "head_size_v": layer["value"],
            "dtype": self.dtype(layer["dtype"]),
            "use_mla": False,
            "indexes_kv_by_block_stride": True,
        }
        if kind == "window":
            return self._build(interface.SlidingWindowSpec, **common, sliding_window=layer["window"])
        if kind == "chunk":
            return self._build(interface.ChunkedLocalAttentionSpec, **common, attention_chunk_size=layer["chunk"])
        return self._build(interface.FullAttentionSpec, **common)

    @staticmethod
    def _build(cls, **values):
        known = inspect.signature(cls).parameters
        return cls(**{name: value for name, value in values.items() if name in known})

    def config(self, settings):
        space = types.SimpleNamespace
        cache = space(
            block_size=settings["layers"][0]["block"],
            num_gpu_blocks_override=settings["override"],
            mamba_cache_mode=settings["mode"],
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: self.layout,
            enable_prefix_caching=settings["mode"] == "align",
            kv_cache_size_tokens=None,
            kv_cache_max_concurrency=None,
        )
        original = -1 if settings["auto_fit"] else settings["max_model_len"]
        return space(
            cache_config=cache,
            model_config=space(
                max_model_len=settings["max_model_len"],
                original_max_model_len=original,
                hf_config=space(model_type="x"),
                supports_kv_cache_grouping=False,
            ),
            scheduler_config=space(
                disable_hybrid_kv_cache_manager=not settings["hybrid"],
                max_num_batched_tokens=settings["batched_tokens"],
                max_num_encoder_input_tokens=0,
            ),
            parallel_config=space(
                decode_context_parallel_size=settings["dcp"],
                prefill_context_parallel_size=1,
                tensor_parallel_size=settings["tp"],
                pipeline_parallel_size=len(settings["stages"]),
            ),
            max_in_flight_tokens=settings["batches"] * settings["batched_tokens"],
            num_prefill_lookahead_tokens=settings["retained"] + 1 if settings["retained"] else 0,
            attention_config=space(hisparse_config=None),
            speculative_config=None,
            device_config=space(device_type="cuda"),
            kv_transfer_config=None,
        )

    def supports(self, settings):
        """Tell whether this release has what the case asks for."""
        planning = self.planning
        if settings["auto_fit"] and not hasattr(planning, "_auto_fit_max_model_len"):
            return False
        if settings["retained"]:
            names = ("get_global_kv_cache_groups", "get_kv_cache_configs", "get_kv_cache_config")
            planner = next(getattr(planning, name) for name in names if hasattr(planning, name))
            return "num_prefill_lookahead_tokens" in inspect.getsource(planner)
        if settings["dcp"] > 1 and "decode_context_parallel_size" not in inspect.getsource(self.interface):
            return False
        kinds = {layer["kind"] for layer in settings["layers"]}
        if "chunk" in kinds and not hasattr(self.interface, "ChunkedLocalAttentionSpec"):
            return False
        return not ("state" in kinds and not hasattr(self.interface, "MambaSpec"))

    def answer(self, settings):
        config = self.config(settings)
        names = count()
        stages, position = [], 0
        for length in settings["stages"]:
            chunk_ = settings["layers"][position : position + length]
            stages.append({f"layers.{next(names)}": self.spec(layer, settings) for layer in chunk_})
            position += length
        self.printed.lines.clear()
        try:
            return {**self._plan(config, stages, settings), "padding": self.printed.padding()}
        except (ValueError, NotImplementedError, AssertionError) as error:
            return _failure(error)

    def _plan(self, config, stages, settings):
        planning = self.planning
        if not hasattr(planning, "get_kv_cache_configs"):
            return self._plan_each_worker(config, stages, settings)
        arguments = [config, stages, list(settings["kv_bytes"])]
        if "global_kv_cache_groups" in inspect.signature(planning.get_kv_cache_configs).parameters:
            arguments.append(planning.get_global_kv_cache_groups(config, stages))
        configs = planning.get_kv_cache_configs(*arguments)
        return self._report(config, configs)

    def _plan_each_worker(self, config, stages, settings):
        pairs = zip(stages, settings["kv_bytes"], strict=True)
        planned = [self.planning.get_kv_cache_config(config, stage, size) for stage, size in pairs]
        if len({len(plan.kv_cache_groups) for plan in planned}) > 1:
            raise ValueError("stages with different groups")
        return self._report(config, self.planning.unify_kv_cache_configs(planned))

    def _report(self, config, configs):
        tokens, concurrency = self._capacity(config, configs)
        return {
            "groups": [len(group.layer_names) for group in configs[0].kv_cache_groups],
            "members": [
                sorted(int(name.rsplit(".", 1)[1]) for c in configs for name in c.kv_cache_groups[g].layer_names)
                for g in range(len(configs[0].kv_cache_groups))
            ],
            "unit_bytes": [_unit_bytes(c) for c in configs],
            "blocks": configs[0].num_blocks,
            "tokens": tokens,
            "concurrency": concurrency,
            "max_model_len": config.model_config.max_model_len,
        }

    def _capacity(self, config, configs):
        utils = self.utils
        if hasattr(utils, "get_kv_cache_capacity"):
            scheduler = utils.generate_scheduler_kv_cache_config(configs)
            return utils.get_kv_cache_capacity(config, scheduler)
        lines = self.printed.lines
        tokens = [m[1] for m in (re.search(r"KV cache size: ([\d,]+) tokens", line) for line in lines) if m]
        if hasattr(utils, "get_max_concurrency_for_kv_cache_config"):
            return int(tokens[-1].replace(",", "")), utils.get_max_concurrency_for_kv_cache_config(config, configs[0])
        printed = [m[1] for m in (re.search(r"per request: ([\d.]+)x", line) for line in lines) if m]
        return int(tokens[-1].replace(",", "")), float(printed[-1])


class _Printed:
    """Stands in for the planner's logger and keeps its lines."""

    def __init__(self):
        self.lines = []

    def _keep(self, text, *values, **_):
        self.lines.append(text % values if values else text)

    info = info_once = warning = warning_once = debug = debug_once = _keep

    def padding(self):
        found = (re.search(r"Add (\d+) padding layers, may waste at most ([\d.]+)%", line) for line in self.lines)
        return [[int(match[1]), match[2]] for match in found if match]


def _unit_bytes(config):
    if not config.num_blocks:
        return None
    tensors = config.kv_cache_tensors if hasattr(config, "kv_cache_tensors") else list(config.tensors.values())
    sizes = [tensor.size for tensor in tensors]
    shared = hasattr(tensors[0], "layer_stride")
    total = max(sizes) if shared else sum(sizes)
    return total // config.num_blocks


def _failure(error):
    text = str(error)
    lengths = re.search(r"seq len \((\d+)\)", text)
    needs = re.search(r"\(([\d.]+) GiB KV.*memory \((-?[\d.]+) GiB\)", text, re.S)
    longest = re.search(r"maximum model length is (\d+)", text)
    if lengths and needs:
        return {
            "error": "length",
            "needed_gib": needs[1],
            "available_gib": needs[2],
            "longest": int(longest[1]) if longest else 0,
            "text": text,
        }
    if "No available memory" in text or "Cannot auto-fit" in text:
        return {"error": "memory", "text": text}
    return {"error": "refused"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--brief", action="store_true", help="leave out which layer is in which group")
    arguments = parser.parse_args()
    cases = list(random_cases(arguments.random, arguments.seed)) if arguments.random else fixed_cases()
    oracle = Oracle()
    import vllm

    version = vllm.__version__
    records = [{"case": item, "answer": oracle.answer(item)} for item in cases if oracle.supports(item)]
    for record in records if arguments.brief else ():
        record["answer"].pop("members", None)
    lines = ",\n".join(json.dumps(_fold(record), separators=(",", ":")) for record in records)
    arguments.out.write_text(f'{{"vllm":"{version}","records":[\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{len(records)} records of vLLM {version}: {arguments.out}", file=sys.stderr)


def _fold(record):
    """Write the layers as a table of kinds and a string of runs, so that records stay short."""
    layers = record["case"]["layers"]
    kinds = []
    order = []
    for layer in layers:
        if layer not in kinds:
            kinds.append(layer)
        order.append(kinds.index(layer))
    folded = {**record["case"], "layers": {"kinds": kinds, "order": order}}
    return {"case": folded, "answer": record["answer"]}


if __name__ == "__main__":
    main()
