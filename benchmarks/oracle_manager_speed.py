"""Time vLLM's own `KVCacheManager` on prompts that `manager_race` has cut into blocks.

Run with the Python of an installed vLLM 0.32 (CPU builds will do); `manager_race` does it::

    python benchmarks/oracle_manager_speed.py PROMPTS.npz ANSWER.json --requests 500

Requests come one after the other: each is looked up, given blocks for all of its prompt, and freed. Hashes of blocks
are ready-made, and only those three calls are timed, in processor time.
"""

from __future__ import annotations

import argparse
import json
import struct
import time
from pathlib import Path

import numpy as np


def drive(prompts, most):
    """Return what the manager took, the tokens it found for each request, and the free blocks after each."""
    import torch
    from vllm import SamplingParams
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request

    block, blocks = int(prompts["block_size"]), int(prompts["blocks"])
    spec = FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=1, dtype=torch.float32)
    manager = KVCacheManager(
        KVCacheConfig(num_blocks=blocks + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]),
        max_model_len=2**20,
        scheduler_block_size=block,
        hash_block_size=block,
    )
    sampling = SamplingParams(max_tokens=1)
    tokens, offsets, nodes = prompts["tokens"], prompts["offsets"], prompts["nodes"]
    seconds, found, free = [], [], []
    for i in range(min(most, len(tokens))):
        hashes = [struct.pack("<q24x", node) for node in nodes[offsets[i] : offsets[i + 1]].tolist()]
        request = Request(str(i), [0] * int(tokens[i]), sampling, None, block_hasher=lambda _, ready=hashes: ready)
        began = time.process_time()
        computed, hit, _ = manager.get_computed_blocks(request)
        taken = manager.allocate_slots(
            request, request.num_tokens - hit, num_new_computed_tokens=hit, new_computed_blocks=computed
        )
        if taken is not None:
            manager.free(request)
        seconds.append(time.process_time() - began)
        found.append(hit if taken is not None else -1)
        free.append(manager.block_pool.get_num_free_blocks())
    return {"seconds": seconds, "found_tokens": found, "free_blocks": free}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("answer", type=Path)
    parser.add_argument("--requests", type=int, default=2**62)
    options = parser.parse_args()
    with np.load(options.prompts) as prompts:
        answer = drive({name: prompts[name] for name in prompts}, options.requests)
    options.answer.write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
