"""Record a server with its scheduler's own ledgers: ``python -m tests.live.record OUT.jsonl.gz [ahead]``.

Makes ``tests/data/vllm-0.32.0-inside``: a row for each scrape, with the series that are read and its step's ledger.
"""

import asyncio
import gzip
import json
import random
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from kvledger.engines.vllm.series import is_series, wanted_pattern
from tests.live.test_vllm import engine_of, load, traffic_of
from tests.live.truth import Steps, written
from tests.live.vllm_server import vllm

KEPT = ("running", "waiting", "preempted", "prefilling", "live_tokens", "used_tokens", "saved_tokens")
KEPT += ("held_blocks", "cached_blocks", "free_blocks", "step", "leaving")
SELDOM = ("time_per", "request_queue", "request_params")


def slim(text):
    """Return the lines that are read, without buckets and latencies."""
    names = re.compile(wanted_pattern())
    lines = []
    for line in text.splitlines():
        name = re.split(r"[{ ]", line, maxsplit=1)[0]
        kept = names.fullmatch(name) and not name.removeprefix("vllm:").startswith(SELDOM)
        if kept or line.startswith(("process_start_time_seconds", "# HELP vllm:prefix_cache_queries")):
            lines.append(line)
    assert any(map(is_series, lines))
    return "\n".join(lines) + "\n"


def main():
    out, is_ahead = Path(sys.argv[1]), "ahead" in sys.argv[2:]
    with TemporaryDirectory() as folder:
        with vllm(Path(folder) / "server", is_ahead=is_ahead) as server:
            rows = asyncio.run(load(server.port, traffic_of(random.Random(4)), samples=24))
        steps = Steps(written(server.ledgers))
    kept = []
    for row in rows:
        truth = steps.find(engine_of(row))
        if truth is not None:
            chosen = {name: truth[name] for name in KEPT}
            kept.append(
                {"phase": row["phase"], "seconds": round(row["seconds"], 3), "text": slim(row["text"])} | chosen
            )
    with gzip.GzipFile(out, "wb", 9, mtime=0) as stream:
        stream.write("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in kept).encode())
    print(f"Wrote {out}: {len(kept)} scrapes")


if __name__ == "__main__":
    main()
