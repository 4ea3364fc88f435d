"""Every output of every command is valid under its JSON Schema, and no field of a schema is never printed."""

import json
import re

import pytest

from kvledger.cli.main import _COMMANDS
from kvledger.cli.schema import read_tables
from kvledger.report.schema import SCHEMAS, make_schema, read_fields

from .cli.calling import call
from .cli.serving import serving
from .engines.sglang.test_metrics import FRONT, FULL
from .measure.recorded import DATA, rows, without_a_ledger
from .measure.test_pool_meter import TGI
from .sources.engine_server import serving_paths
from .sources.servers import answering, reply
from .sources.test_endpoints import llamacpp
from .test_docs import leaves

jsonschema = pytest.importorskip("jsonschema", reason="needs the package `jsonschema`")

TABLES = read_fields(read_tables())
ROOT = DATA.parents[2]
CHAT = "synthetic:chat,requests=40,rate=inf,shared_prefix=64"
SMALL = ("--model", "llama-3-8b", "--memory", "2GiB", "--max-model-len", "4096", "-q", "--json")
WITHOUT_SCHEMA = {"export", "report", "schema"}
"""Commands that print no JSON object of their own."""


def check(value):
    name = value.get("schema", "kvledger/error").removeprefix("kvledger/")
    jsonschema.Draft202012Validator(make_schema(name, TABLES)).validate(value)
    return value


@pytest.fixture
def folder(tmp_path):
    """Return a folder of scrapes, half an hour of a server."""
    for at, row in enumerate(rows("sync")[:30:3]):
        (tmp_path / f"{at:03}.txt").write_text(row["text"])
    return tmp_path


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_one(name):
    jsonschema.Draft202012Validator.check_schema(make_schema(name, TABLES))


@pytest.mark.parametrize(
    "line",
    [
        ("replay", CHAT, *SMALL, "--policy", "max,paged", "--prefix-caching", "on", "--mitigations", "max"),
        ("replay", CHAT, *SMALL, "--policy", "paged", "--try", "block-size=32"),
        ("replay", "synthetic:chat,requests=3,rate=1", *SMALL, "--policy", "grow"),
        ("replay", "synthetic:fixed,requests=3,prompt=9999", *SMALL, "--policy", "max,paged"),
        ("replay", CHAT, *SMALL, "--policy", "pow2", "--layout"),
        ("replay", CHAT, *SMALL, "--policy", "paged", "--layout", "--prefix-caching", "on"),
        ("replay", CHAT, *SMALL, "--policy", "paged", "--samples", "3", "--preemption", "swap"),
        ("trace", CHAT, "--json"),
        ("cache", CHAT, "--model", "llama-3-8b", "--live", "-q", "--json"),
        ("size", "llama-3.1-8b", "--kv-memory", "16GiB", "--engine", "all", "--length", "800", "-q", "--json"),
        ("size", "llama-3.1-8b", "--kv-memory", "1GiB", "--fit", "concurrency", "--length", "9", "-q", "--json"),
        ("size", "llama-3.1-8b", "--gpu", "H100-80GB", "--weights", "15GiB", "--concurrency", "3", "-q", "--json"),
        ("size", "gemma-3-27b", "--kv-memory", "64GiB", "-q", "--json"),
        ("size", "--list", "models", "--json"),
        ("size", "--list", "gpus", "--json"),
        ("doctor", "--no-compile", "--json"),
        ("explain", "--json"),
        ("explain", "KV001", "--json"),
        ("measure", ROOT / "tests/data/vllm-0.32.0/one-layer-cpu.log", "--json"),
        ("measure", ROOT / "tests/data/llamacpp-b11434/slots-split-busy.json", "--json"),
        ("measure", ROOT / "tests/data/llamacpp-b11434/server-unified.log", "--json"),
    ],
    ids=lambda line: " ".join(map(str, line[:3])).replace(str(ROOT), ""),
)
def test_what_is_printed_is_valid(capsys, line):
    called = call(capsys, *line)
    assert called.code == 0, called.err
    check(called.json())


def measured(capsys, folder):
    yield call(capsys, "measure", folder, "-q", "--json").json()
    yield call(capsys, "measure", folder, "--model", "llama-3.1-8b", "-q", "--json").json()
    yield call(capsys, "measure", folder / "001.txt", "-q", "--json").json()
    for name, text in (("none.txt", without_a_ledger()), ("groups.txt", rows("groups")[20]["text"])):
        (folder / name).write_text(text)
        yield call(capsys, "measure", folder / name, "-q", "--json").json()
    old = re.sub(r'(num_gpu_blocks|kv_cache_size_tokens)="\d+"', r'\1="None"', rows("sync")[9]["text"])
    (folder / "old.txt").write_text(old)
    yield call(capsys, "measure", folder / "old.txt", "-q", "--json").json()
    with serving("plain", failing=(2,)) as url:
        yield call(capsys, "measure", url, "--for", "0.3s", "--every", "0.1s", "-q", "--json").json()
    yield from measured_pools(capsys, folder)


def measured_pools(capsys, folder):
    with answering(reply(FRONT + FULL)) as url:
        yield call(capsys, "measure", url, "--for", "0.2s", "--every", "0.1s", "-q", "--json").json()
    two = FULL.replace('tp_rank="0"', 'tp_rank="1"')
    states = FULL.replace("kv_used", "mamba_used").replace("kv_available", "mamba_available")
    for name, text in (("two", FULL + two), ("states", states + FULL), ("size", FULL.replace("max_total", "x"))):
        (folder / f"{name}.prom").write_text(text)
        yield call(capsys, "measure", folder / f"{name}.prom", "--bytes-per-token", "9", "-q", "--json").json()
    with serving_paths(llamacpp()) as (url, _):
        yield call(capsys, "measure", url, "--model", "llama-3-8b", "-q", "--json").json()
        yield call(capsys, "measure", url, "--no-kv-unified", "-q", "--json").json()
    props = json.dumps(json.loads(llamacpp()["/props"]) | {"is_sleeping": True, "build_info": "b11434-x"})
    with serving_paths(llamacpp(**{"/props": props})) as (url, _):
        yield call(capsys, "measure", url, "-q", "--json").json()
    (folder / "tgi.prom").write_text(TGI)
    yield call(capsys, "measure", folder / "tgi.prom", "-q", "--json").json()


def test_measurements_are_valid_and_print_every_field(capsys, folder):
    found = [check(one) for one in measured(capsys, folder)]
    assert printed(found) == described("measure")


def test_checks_and_watched_lines_are_valid(capsys, folder):
    limits = ("--max-held", "10%", "--max-waiting", "3", "--max-unattributed", "1%")
    assert check(call(capsys, "check", folder, *limits, "--json").json())["limits"]
    lines = call(capsys, "watch", folder, "--json").out.splitlines()
    assert len(lines) == 10
    assert {check(json.loads(line))["schema"] for line in lines} == {"kvledger/watch"}


def test_checks_and_watched_lines_of_other_engines_are_valid(capsys):
    with serving_paths(llamacpp()) as (url, _):
        assert check(call(capsys, "check", url, "--max-held", "10%", "--json").json())["limits"][0]["pool"] is None
        lines = call(capsys, "watch", url, "--for", "0.1s", "--every", "50ms", "--json").out.splitlines()
    assert {check(json.loads(line))["schema"] for line in lines} == {"kvledger/watch-pool"}


def test_errors_are_valid(capsys, tmp_path):
    for line in (("measure", tmp_path / "none"), ("size", "no-such-model"), ("check", "http://x"), ("replay",)):
        called = call(capsys, *line, "--json")
        assert called.code == 2
        check(called.error())


def test_a_field_that_no_table_has_is_refused(capsys):
    value = call(capsys, "explain", "--json").json()
    value["findings"][0]["surprise"] = 1
    with pytest.raises(jsonschema.ValidationError, match="surprise"):
        check(value)


def test_a_value_of_another_kind_is_refused(capsys, folder):
    value = call(capsys, "measure", folder, "-q", "--json").json()
    value["sources"][0]["samples"] = "ten"
    with pytest.raises(jsonschema.ValidationError, match="'ten' is not of type 'integer'"):
        check(value)


def test_every_command_that_prints_json_has_a_schema():
    named = {"demo": "replay"}
    assert {named.get(name, name) for name in _COMMANDS if name not in WITHOUT_SCHEMA} <= set(SCHEMAS)


def printed(values):
    """Return the leaves of values, put together."""

    def walk(value, path):
        if isinstance(value, list):
            for item in value or [None]:
                yield from walk(item, f"{path}[]")
        elif isinstance(value, dict):
            for key, item in value.items():
                yield from walk(item, f"{path}.{key}".lstrip("."))
        else:
            yield path

    return leaves({path for value in values for path in walk(value, "")})


def described(name):
    """Return the leaves of a schema."""

    def walk(schema, path):
        if schema.get("items"):
            yield from walk(schema["items"], f"{path}[]")
        elif schema.get("properties"):
            for key, child in schema["properties"].items():
                yield from walk(child, f"{path}.{key}".lstrip("."))
        else:
            yield path

    return set(walk(make_schema(name, TABLES), ""))
