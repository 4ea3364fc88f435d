"""Run the benchmarks and print a Markdown table: ``python -m benchmarks [NAME ...]``."""

import sys

from benchmarks import measure, replay
from benchmarks.running import run_benchmark

BENCHMARKS = {**replay.BENCHMARKS, **measure.BENCHMARKS}


def main() -> None:
    chosen = sys.argv[1:] or list(BENCHMARKS)
    unknown = [name for name in chosen if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"unknown benchmark `{unknown[0]}`; there are {', '.join(BENCHMARKS)}")
    print("| benchmark | median | all runs | target |\n|---|---|---|---|")
    for name in chosen:
        print(run_benchmark(name, BENCHMARKS[name]), flush=True)


if __name__ == "__main__":
    main()
