"""Serving SmolLM2-135M on a CPU, one way beside the other: ``python -m benchmarks.runtime``.

16 prompts of 20 to 200 tokens, 48 new tokens each, float32. The ways take turns, so that a busy machine slows all of
them; each figure is the best of its rounds, and CPU seconds are given beside it, except vLLM's, which is in other
processes. vLLM is asked when ``KVLEDGER_VLLM_PYTHON`` names the Python of an installation of its CPU build.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import GenerationConfig

from kvledger.runtime import Attention, Engine, Generation, Options
from kvledger.runtime.gather import Gather, attend_causally
from kvledger.runtime.load import load_model

NEW_TOKENS = 48
LONGEST = 512


@dataclass(frozen=True)
class Run:
    """One round of one way: seconds by the clock and of the processor, of prompts and of the rest where known."""

    seconds: float
    cpu_seconds: float
    prefill_seconds: float | None = None
    answers: list[list[int]] | None = None


class Contiguous(Gather):
    """The same engine without paging: one contiguous tensor a sequence, and PyTorch's attention over it."""

    def __init__(self, gather: Gather, *, slots: int, longest: int) -> None:
        super().__init__(gather.layout, gather.pages, gather.tables)
        shape = self.layout.shape
        sizes = (len(self.layout.layers), 2, slots, shape.kv_heads, longest, shape.head_size)
        self.kv = torch.zeros(sizes, dtype=gather.pages.kv.dtype)

    def attend(self, batch, layer, query, key, value, manner):
        """Append keys and values to their sequences, and return the answer."""
        keys, values = self.kv[layer.index]
        answer = torch.empty(query.shape[2], query.shape[1], query.shape[3])
        rows = len(batch.decodes)
        if rows:
            slots, lengths = torch.from_numpy(batch.decodes.slots), torch.from_numpy(batch.decodes.lengths)
            keys[slots, :, lengths - 1] = key[0, :, :rows].transpose(0, 1)
            values[slots, :, lengths - 1] = value[0, :, :rows].transpose(0, 1)
        for row, (slot, length) in enumerate(zip(batch.decodes.slots, batch.decodes.lengths, strict=True)):
            own = keys[slot, :, :length][None], values[slot, :, :length][None]
            answer[row] = attend_one(query[:, :, row : row + 1], *own, manner)[0, :, 0]
        for chunk in batch.chunks:
            rows_of = slice(chunk.row, chunk.row + chunk.tokens)
            keys[chunk.slot, :, chunk.start : chunk.end] = key[0, :, rows_of]
            values[chunk.slot, :, chunk.start : chunk.end] = value[0, :, rows_of]
            own = keys[chunk.slot, :, : chunk.end][None], values[chunk.slot, :, : chunk.end][None]
            answer[rows_of] = attend_causally(query[:, :, rows_of], *own, manner)[0].transpose(0, 1)
        return answer[None]


def attend_one(query, key, value, manner):
    """Return PyTorch's attention of one row, whose query heads are rows of their key-value head: nothing is copied."""
    shared = query.shape[1] // key.shape[1]
    rows = query.view(1, key.shape[1], shared, query.shape[3])
    answer = torch.nn.functional.scaled_dot_product_attention(rows, key, value, scale=manner.scale)
    return answer.reshape(query.shape)


def run_engine(model, prompts, *, attention=Attention.AUTO, contiguous=False, block_size=16) -> Run:
    options = Options(prefix_caching=False, attention=attention, max_model_len=LONGEST)
    engine = Engine(model, "256MiB" if block_size < LONGEST else "512MiB", block_size=block_size, options=options)
    if contiguous:
        engine.runner.backend = Contiguous(engine.runner.backend, slots=options.max_num_seqs + 1, longest=LONGEST)
    numbers = [engine.submit(prompt, Generation(max_tokens=NEW_TOKENS, ignore_eos=True)) for prompt in prompts]
    begun, cpu, prefill = time.perf_counter(), time.process_time(), 0.0
    while not engine.is_idle:
        step = engine.step()
        prefill += step.seconds if step.prefill_tokens else 0.0
    run = (time.perf_counter() - begun, time.process_time() - cpu, prefill)
    answers = [list(engine.take(number).token_ids) for number in numbers]
    engine.close()
    return Run(*run, answers)


def run_one_by_one(model, prompts) -> Run:
    begun, cpu = time.perf_counter(), time.process_time()
    answers = [generate(model, [prompt])[0] for prompt in prompts]
    return Run(time.perf_counter() - begun, time.process_time() - cpu, None, answers)


def run_static_batch(model, prompts) -> Run:
    begun, cpu = time.perf_counter(), time.process_time()
    answers = generate(model, prompts)
    return Run(time.perf_counter() - begun, time.process_time() - cpu, None, answers)


def run_generate_batch(model, prompts) -> Run:
    config = GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0)
    begun, cpu = time.perf_counter(), time.process_time()
    outputs = model.generate_batch(prompts, generation_config=config, progress_bar=False)
    seconds = time.perf_counter() - begun, time.process_time() - cpu
    return Run(*seconds, None, [list(output.generated_tokens) for output in outputs.values()])


def generate(model, prompts):
    """Return what `generate` answers to a padded batch."""
    longest = max(map(len, prompts))
    tokens = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    answers = model.generate(
        tokens,
        attention_mask=mask,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return answers[:, longest:].tolist()


class Vllm:
    """vLLM in a process of its own, which serves the prompts once for every line it is sent."""

    CODE = (
        "import json, resource, sys, time\n"
        "from vllm import LLM, SamplingParams\n"
        "folder, prompts, new = json.loads(sys.stdin.readline())\n"
        "llm = LLM(model=folder, dtype='float32', max_model_len=512, enable_prefix_caching=False,"
        " skip_tokenizer_init=True)\n"
        "ask = [{'prompt_token_ids': prompt} for prompt in prompts]\n"
        "params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)\n"
        "for line in sys.stdin:\n"
        "    begun = time.perf_counter()\n"
        "    outputs = llm.generate(ask, params, use_tqdm=False)\n"
        "    seconds = time.perf_counter() - begun\n"
        "    print('RUN ' + json.dumps([seconds, [list(o.outputs[0].token_ids) for o in outputs]]), flush=True)\n"
    )

    def __init__(self, python: str, model, prompts) -> None:
        self.folder = tempfile.TemporaryDirectory()
        save_plainly(model, self.folder.name)
        environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        self.process = subprocess.Popen(
            [python, "-c", self.CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=self.folder.name,
            start_new_session=True,
        )
        self.send(json.dumps([self.folder.name, prompts, NEW_TOKENS]))
        self.run()

    def send(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def run(self) -> Run:
        """Serve the prompts, with all its processes stopped before and after: its idle engine would take a core."""
        os.killpg(self.process.pid, signal.SIGCONT)
        self.send("go")
        for line in self.process.stdout:
            if line.startswith("RUN "):
                os.killpg(self.process.pid, signal.SIGSTOP)
                seconds, answers = json.loads(line.removeprefix("RUN "))
                return Run(seconds, float("nan"), None, answers)
        raise SystemExit("vLLM did not answer")

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.folder.cleanup()


def save_plainly(model, folder: str) -> None:
    """Save a model that came from a GGUF file with its weights as they are in memory."""
    config = type(model.config)(**{k: v for k, v in model.config.to_dict().items() if k != "quantization_config"})
    plain = type(model)(config)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(folder)


def draw_prompts(vocabulary: int) -> list[list[int]]:
    drawn = random.Random(0)
    return [[drawn.randrange(100, vocabulary) for _ in range(drawn.randint(20, 200))] for _ in range(16)]


def measure(ways: dict[str, Callable[[], Run]], rounds: int) -> dict[str, list[Run]]:
    """Let the ways take turns; the first turn of each warms up and is not counted."""
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            gc.collect()
            run = way()
            if turn:
                runs[name].append(run)
            print(f"round {turn}: {name} {run.seconds:.2f} s", file=sys.stderr, flush=True)
    return runs


def write_table(runs: dict[str, list[Run]], prompts: list[list[int]]) -> None:
    new = NEW_TOKENS * len(prompts)
    prompt_tokens = sum(map(len, prompts))
    print(
        "| way | tokens/s | prefill tokens/s | decode tokens/s | seconds of every round | CPU seconds | same answers |"
    )
    print("|---|---|---|---|---|---|---|")
    first = next(iter(runs.values()))[0].answers
    for name, rounds in runs.items():
        best = min(rounds, key=lambda run: run.seconds)
        prefill = decode = "-"
        if best.prefill_seconds is not None:
            prefill = f"{prompt_tokens / best.prefill_seconds:.0f}"
            decode = f"{(new - len(prompts)) / (best.seconds - best.prefill_seconds):.0f}"
        seconds = ", ".join(f"{run.seconds:.2f}" for run in rounds)
        cpu = min(run.cpu_seconds for run in rounds)
        same = sum(ours == theirs for ours, theirs in zip(first or [], best.answers or [], strict=True))
        row = [
            name,
            f"**{new / best.seconds:.1f}**",
            prefill,
            decode,
            seconds,
            f"{cpu:.1f}",
            f"{same} of {len(prompts)}",
        ]
        print("| " + " | ".join(row) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true", help="leave out what takes a minute a round")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = load_model(arguments.model).model
    prompts = draw_prompts(model.config.vocab_size)
    ways: dict[str, Callable[[], Run]] = {
        "kvledger, block tables": lambda: run_engine(model, prompts),
        "kvledger, one block a sequence (contiguous)": lambda: run_engine(model, prompts, block_size=LONGEST),
        "kvledger, contiguous tensors and PyTorch's attention": lambda: run_engine(
            model, prompts, attention=Attention.GATHER, contiguous=True
        ),
        "kvledger, block tables gathered (the reference)": lambda: run_engine(
            model, prompts, attention=Attention.GATHER
        ),
    }
    if not arguments.quick:
        ways["Transformers, static batch"] = lambda: run_static_batch(model, prompts)
        ways["Transformers, generate_batch"] = lambda: run_generate_batch(model, prompts)
        ways["Transformers, one by one"] = lambda: run_one_by_one(model, prompts)
    vllm = Vllm(python, model, prompts) if (python := os.environ.get("KVLEDGER_VLLM_PYTHON")) else None
    if vllm:
        ways["vLLM"] = vllm.run
    try:
        write_table(measure(ways, arguments.rounds), prompts)
    finally:
        if vllm:
            vllm.close()


if __name__ == "__main__":
    main()
