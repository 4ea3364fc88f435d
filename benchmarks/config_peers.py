"""Ask other sizing tools for the same configs: `python config_peers.py FOLDER OUTPUT.json`, where they are installed.

Runs whichever of kvfit, vramscout and aiconfigurator-core is installed, through the function each offers for a config
(or, aiconfigurator, for a model it bundles). Everything is asked for one sequence of 32,768 tokens, 16-bit keys and
values, one GPU. Needs nothing of kvledger, so that both sides can live in environments of their own.
"""

import json
import sys
import tempfile
from pathlib import Path

TOKENS = 32_768
GIB = 2**30


def ask_kvfit(config):
    from kvfit.architectures import estimate_cache

    return estimate_cache(config, context_tokens=TOKENS, kv_bytes=2.0).total_bytes / GIB


def ask_vramscout(config):
    from vramscout.memory import cache_memory_gib
    from vramscout.model import inspect_model

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        return cache_memory_gib(inspect_model(folder), TOKENS, 1, "bf16")


def ask_aiconfigurator(name):
    from aiconfigurator_core.sdk import common, config
    from aiconfigurator_core.sdk.models import get_model

    plan = config.ModelConfig(tp_size=1, pp_size=1, moe_tp_size=1, moe_ep_size=1, attention_dp_size=1)
    plan.kvcache_quant_mode = common.KVCacheQuantMode.bfloat16
    return get_model(name, plan, "vllm").get_kvcache_bytes_per_sequence(TOKENS) / GIB


def answer(ask, argument):
    """Return GiB, or the first words of a refusal."""
    try:
        return round(float(ask(argument)), 4)
    except ImportError:
        return None
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:100]}"


def main():
    folder, output = Path(sys.argv[1]), Path(sys.argv[2])
    answers = {}
    for path in sorted(folder.glob("*_config.json")):
        if "hf_quant_config" in path.name:
            continue
        model = path.name.removesuffix("_config.json")
        config = json.loads(path.read_text())
        answers[model] = {
            "kvfit": answer(ask_kvfit, config),
            "vramscout": answer(ask_vramscout, config),
            "aiconfigurator": answer(ask_aiconfigurator, model.replace("--", "/", 1)),
        }
    output.write_text(json.dumps(answers, indent=1) + "\n")
    print(f"Wrote {output}: {len(answers)} models")


if __name__ == "__main__":
    main()
