"""Scrapes beside the ledgers that the scheduler itself drew up, step by step: the truth of the same instant."""

import json


def written(folder):
    """Return the ledgers of engine 0 in the order of its steps."""
    lines = []
    for name in ("engine-0.1.jsonl", "engine-0.jsonl"):
        if (folder / name).exists():
            lines += (folder / name).read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


class Steps:
    """Finds the step a scrape speaks of.

    vLLM's front end counts the steps that handed out tokens, and so does the scheduler. Steps of prefill alone hand out
    none: among those, load and blocks tell.
    """

    def __init__(self, ledgers):
        self._by_step = {}
        for line, after in zip(ledgers, [*ledgers[1:], ledgers[-1]], strict=True):
            gone = leaving(line, after)
            self._by_step.setdefault(line["emitting_steps"], []).append({**line, "leaving": gone})

    def find(self, engine):
        """Return the last ledger that agrees with the gauges of a scrape, None when there is none."""
        held = round(engine.usage_ratio * (engine.count_config("num_gpu_blocks") - 1))
        found = [
            line
            for line in self._by_step.get(engine.count("iteration_tokens_total") or 0, [])
            if (line["running"], line["waiting"], line["held_blocks"]) == (engine.running, engine.waiting, held)
        ]
        return found[-1] if found else None


def leaving(line, after):
    """Return the tokens of requests that are gone in the next ledger.

    Some of them ended with its step; others are those of clients that had gone, which the front end has forgotten and
    the scheduler still runs.
    """
    stay = {request["id"] for request in after.get("requests", ())}
    gone = [request for request in line.get("requests", ()) if request["id"] not in stay]
    return [request["prompt_tokens"] + request["output_tokens"] for request in gone]


def contradictions(reading, truth, *, clients_leave=False):
    """Return every number of a reading whose interval does not hold the truth.

    With ``clients_leave``, requests that are about to go may be known to the scheduler alone.
    """
    balance, block = reading.balance, reading.shape.block_tokens
    cached = reading.sheet.figure("cached").span
    grain = reading.sheet.ledger.capacity // reading.shape.blocks
    gone = truth["leaving"] if clients_leave else []
    pairs = {
        "held": (balance.held, balance.held, truth["held_blocks"] * block),
        "used": (balance.used.low, balance.used.high, truth["used_tokens"]),
        "shared saving": (balance.shared_saving.low, balance.shared_saving.high, truth["saved_tokens"]),
        "preempted": (balance.preempted.low, balance.preempted.high, truth["preempted"]),
        "prefilling": (balance.prefilling.low - len(gone), balance.prefilling.high, truth["prefilling"]),
        "cached": (cached.low, cached.high, truth["cached_blocks"] * grain),
    }
    if balance.live is not None:
        pairs["live"] = (balance.live.low, balance.live.high + sum(gone), truth["live_tokens"])
    return {name: found for name, found in pairs.items() if not found[0] <= found[2] <= found[1]}
