"""Size every config of a folder: `python -m benchmarks.configs FOLDER [PEERS.json]` prints a Markdown table.

FOLDER holds `NAME_config.json` files, with `NAME_hf_quant_config.json` beside some. Nothing is downloaded. Each row is
one sequence of 32,768 tokens in the model's own 16-bit dtype, windows capped, states as declared. PEERS.json is what
`config_peers.py` wrote.
"""

import json
import sys
import time
from pathlib import Path

from kvledger.errors import Error
from kvledger.model import AttentionCache, CompressedCache, CrossAttentionCache, LatentCache, SharedCache, StateCache
from kvledger.model.reader import parse_config, read_config

TOKENS = 32_768
GIB = 2**30
PEERS = ("kvfit", "vramscout", "aiconfigurator")


def layer_kinds(spec):
    """Return what the layers are, such as `10 full, 52 sliding 1024`."""
    counts = {}
    for layer in spec.layers:
        kind = _kind(layer.cache)
        counts[kind] = counts.get(kind, 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _kind(cache):
    match cache:
        case AttentionCache():
            heads = f"{cache.kv_heads}x{cache.key_size}"
            heads += f"/{cache.value_size}" if cache.value_size != cache.key_size else ""
            index = " + index" if cache.indexer else ""
            if cache.window_tokens:
                return f"sliding {cache.window_tokens} ({heads})"
            return f"chunked {cache.chunk_tokens} ({heads})" if cache.chunk_tokens else f"full ({heads}){index}"
        case LatentCache():
            own = cache.indexer and cache.indexer.shares_with is None
            return f"MLA {cache.latent_size}+{cache.rope_size}" + (" + index" if own else "")
        case CompressedCache():
            return f"window {cache.window_tokens}" + (f" + 1/{cache.ratio}" if cache.ratio else "")
        case StateCache():
            return f"{cache.kind} state"
        case CrossAttentionCache():
            return f"cross {cache.encoder_tokens}"
        case SharedCache():
            return "shared"
        case _:
            return cache.reason or "nothing"


def size(path):
    """Return the table cells of one config: GiB, bytes a token, fixed MiB, layers, milliseconds."""
    beside = path.with_name(path.name.removesuffix("_config.json") + "_hf_quant_config.json")
    start = time.perf_counter()
    quant = parse_config(beside.read_bytes()) if beside.is_file() else None
    spec = read_config(parse_config(path.read_bytes()), quant_config=quant)
    spent = (time.perf_counter() - start) * 1000
    dtype = spec.dtype.value
    fixed = spec.fixed_bytes_per_sequence(dtype) / 2**20
    cells = (
        f"{spec.sequence_bytes(TOKENS, dtype) / GIB:.4f}",
        f"{float(spec.growth(dtype)):,.10g}",
        f"{fixed:.2f}",
        layer_kinds(spec),
    )
    return cells, spent


def main():
    folder = Path(sys.argv[1])
    peers = json.loads(Path(sys.argv[2]).read_text()) if len(sys.argv) > 2 else {}
    rows, refused, slowest = [], 0, 0.0
    for path in sorted(folder.glob("*_config.json")):
        if "hf_quant_config" in path.name:
            continue
        name = path.name.removesuffix("_config.json")
        try:
            cells, spent = size(path)
            slowest = max(slowest, spent)
        except Error as error:
            refused += 1
            cells = ("refused", "", "", error.message)
        others = [_peer(peers.get(name, {}).get(tool)) for tool in PEERS] if peers else []
        rows.append("| " + " | ".join([name.replace("--", "/", 1), cells[0], *others, *cells[1:]]) + " |")
    titles = ["model", "GiB", *(PEERS if peers else ()), "bytes a token", "fixed MiB", "layers"]
    print("| " + " | ".join(titles) + " |\n|" + "---|" * len(titles))
    print("\n".join(rows))
    print(f"\n{len(rows)} configs, {refused} refused, slowest {slowest:.0f} ms.")


def _peer(value):
    if value is None:
        return "not run"
    return f"{value:.4f}" if isinstance(value, int | float) else "refuses"


if __name__ == "__main__":
    main()
