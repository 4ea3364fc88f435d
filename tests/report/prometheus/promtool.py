"""Rules tried by Prometheus itself: scrapes become input series of ``promtool test rules``."""

import json
import re
import shutil
import subprocess

import pytest

SERIES = re.compile(r"(?P<series>[A-Za-z_:][\w:]*(?:\{.*\})?) (?P<value>\S+)")
INTERVAL = 15


def series_of(texts, *, labels='instance="a:8000",job="vllm"', skip=("_bucket", "_created")):
    """Return the input series of scrapes that are ``INTERVAL`` seconds apart; None is a scrape that failed."""
    found = {}
    for at, text in enumerate(texts):
        for line in (text or "").splitlines():
            match = None if line.startswith("#") else SERIES.fullmatch(line)
            if match is None or match["series"].partition("{")[0].endswith(skip):
                continue
            name, _, inside = match["series"].partition("{")
            inside = ",".join(part for part in (labels, inside.rstrip("}")) if part)
            values = found.setdefault(f"{name}{{{inside}}}", ["_"] * len(texts))
            values[at] = match["value"]
    for values in found.values():
        for at in range(1, len(values)):
            if values[at] == "_" and values[at - 1] not in ("_", "stale"):
                values[at] = "stale"
    return [{"series": name, "values": " ".join(values)} for name, values in found.items()]


def run(folder, rules, series, tests):
    """Run promtool over rules, series and ``tests`` [(seconds, expression, {labels: value})]; return what fails."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool: install the package `prometheus`")
    (folder / "rules.yml").write_text(rules)
    case = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": f"{INTERVAL}s",
        "tests": [
            {
                "interval": f"{INTERVAL}s",
                "input_series": series,
                "promql_expr_test": [
                    {
                        "expr": expression,
                        "eval_time": f"{seconds}s",
                        "exp_samples": [{"labels": key, "value": value} for key, value in expected.items()],
                    }
                    for seconds, expression, expected in tests
                ],
            }
        ],
    }
    (folder / "test.yml").write_text(json.dumps(case))  # JSON is YAML
    done = subprocess.run(
        [promtool, "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert "FAILED" in done.stderr + done.stdout or done.returncode == 0, done.stderr
    return done.stdout + done.stderr if done.returncode else ""


def finds_none(expression, samples):
    """Return a test that an expression had no result at any sample."""
    return (INTERVAL * (samples - 1), f"count_over_time(({expression})[{INTERVAL * samples}s:{INTERVAL}s])", {})


def times_true(expression, samples, at_least):
    """Return a test that an expression had a result at ``at_least`` samples of each series."""
    counted = f"count_over_time({expression}[{INTERVAL * samples}s:{INTERVAL}s])"
    return (INTERVAL * (samples - 1), f"min({counted}) >= bool {at_least}", {"{}": 1})
