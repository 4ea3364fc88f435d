"""llama.cpp's slots as a test writes them, and a naive server whose cells are counted one by one."""

import json

from kvledger.engines.llamacpp.slots import read_slots


def slot(number, *, tokens, context=1000, busy=False, task=1, prompt=None, reused=0, decoded=None, declared=-1):
    """Return one slot as b11434 answers it; ``tokens`` None is a slot that never worked."""
    found = {"id": number, "n_ctx": context, "speculative": False, "is_processing": busy}
    if tokens is None:
        return found
    prompt = tokens if prompt is None else prompt
    return found | {
        "id_task": task,
        "n_prompt_tokens": tokens,
        "n_prompt_tokens_processed": prompt - reused if busy else 0,
        "n_prompt_tokens_cache": reused if busy else 0,
        "params": {"n_predict": declared},
        "next_token": [{"n_remain": -1, "n_decoded": tokens - prompt if decoded is None else decoded}],
    }


def snapshot_of(*slots):
    """Return what a reader makes of these slots."""
    return read_slots(json.dumps(list(slots)))
