"""What vLLM 0.2 to 0.33 logs: start-up lines, errors and periodic lines.

The part ``[file.py:line]`` of a prefix moves with every release and is never looked at. A size in GiB is rounded to two
decimals, and from 0.16 on it has lost the zeros at its end: ``13.1`` is 13.095 to 13.105.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvledger.engines.facts import Engine, EngineLog
from kvledger.engines.log_reader import read_engine_log
from kvledger.engines.torch_lines import OUT_OF_MEMORY
from kvledger.engines.vllm.log_notices import NOTICE_RULES
from kvledger.engines.vllm.log_samples import SAMPLE_RULES
from kvledger.engines.vllm.log_settings import SETTING_RULES
from kvledger.engines.vllm.log_sizes import SIZE_RULES
from kvledger.engines.vllm.log_wording import WORDING_RULES

__all__ = ["read_log"]

_BEGINS = re.compile(
    r"\s{0,8}(?:Engine \d{3}: |\d{1,4} Engines Aggregated: |Avg prompt throughput: |Prefix cache hit rate: GPU"
    r"|[A-Z]{2,8}(?: \+ host)? KV cache size: |Maximum concurrency for |# \w{1,12} blocks: |Available KV cache memory: "
    r"|Model loading took |Loading model weights |Overriding num_gpu_blocks|Multiplying the |Initializing an? "
    r"|To serve at least one|The model's max seq len|No available memory for|Setting attention block size to "
    r"|Padding mamba page size by |Add \d{1,6} padding layers|Hybrid KV cache manager is|Free memory on device "
    r"|Current kv cache memory |the current vLLM instance|model weights take|non_torch_memory takes|Memory profiling "
    r"|Graph capturing |Using max model len )"
)


def read_log(lines: str | Iterable[str]) -> EngineLog:
    """Read a log of vLLM: a text, or its lines in order."""
    rules = (*SETTING_RULES, *SIZE_RULES, *NOTICE_RULES, *WORDING_RULES, *SAMPLE_RULES, OUT_OF_MEMORY)
    return read_engine_log(lines, engine=Engine.VLLM, rules=rules, begins=_BEGINS)
