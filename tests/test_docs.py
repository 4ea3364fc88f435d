"""The documentation holds everything a user can name, and what it shows is what the program prints."""

import ast
import importlib.util
import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from kvledger.cli.main import _kvledger as group
from kvledger.findings.catalogue import RULES
from kvledger.ledger import Account, Accuracy, Memo, PaperView
from kvledger.pool import Growth, Placement, Reservation
from kvledger.replay import Factors, Rejection
from kvledger.report.prometheus.alerts import EXPORTER_ALERTS, RULE_ALERTS
from kvledger.report.prometheus.table import METRICS
from kvledger.report.schema import SCHEMAS, read_fields
from kvledger.report.series import SERIES_COLUMNS
from kvledger.traces.formats import ALL as FORMATS
from kvledger.traces.synthetic.catalogue import CATALOGUE, COMMON

from .docs_blocks import CHECKED, NOT_RUN, blocks_of, commands_of, missing_line, run
from .docs_files import write_files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)]


def load_generated():
    spec = importlib.util.spec_from_file_location("generated", DOCS / "generated.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generated = load_generated()


def name_of(path):
    return path.relative_to(ROOT).as_posix().removeprefix("docs/")


def page(name):
    return generated.fill_in((DOCS / name).read_text("utf-8"))


@pytest.fixture
def folder_of_a_user(tmp_path):
    """Return a folder with what a user has."""
    write_files(tmp_path)
    return tmp_path


RUN = [path for path in PAGES if CHECKED in path.read_text("utf-8") and path.parent != DOCS / "zh"]
"""Pages with commands to run. What a translation shows is compared with the English page."""


@pytest.mark.parametrize("path", RUN, ids=name_of)
def test_what_a_page_shows_is_what_the_program_prints(path, folder_of_a_user):
    for block in blocks_of(path):
        if block.before != CHECKED:
            continue
        for command in commands_of(block):
            code, printed = run(command.line, folder_of_a_user)
            failing = any(line.startswith("error: ") for line in command.expected)
            assert code == (2 if failing else 0), "\n".join([command.line, *printed])
            if command.expected:
                missing = missing_line(command.expected, printed)
                assert missing is None, "\n".join([f"{command.line}\nwants: {missing}\nprinted:", *printed])


def test_missing_lines_are_found():
    assert missing_line(("a", "...", "c"), ["a", "b", "c"]) is None
    assert missing_line(("a", "c"), ["a", "b", "c"]) == "c"
    assert missing_line(("a",), ["a", "b"]) == "(the end)"
    assert missing_line(("b", "..."), ["a", "b"]) == "b"


def test_commands_that_need_no_shell_print_the_same_without_one(folder_of_a_user):
    plain = run("kvledger trace server.log  # a comment", folder_of_a_user)
    assert plain[0] == 0
    assert plain == run("kvledger trace server.log && true", folder_of_a_user)


def lines_of(block):
    """Return the command lines of a block."""
    if block.language in ("sh", "bash"):
        return block.body.replace("\\\n", " ").splitlines()
    return [command.line for command in commands_of(block)] if block.language == "console" else []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_command_line_of_a_page_can_be_parsed(path):
    for block in blocks_of(path):
        for line in lines_of(block):
            for part in re.split(r"[|;]|&&", line):
                words = shlex.split(part, comments=True)
                if words[:1] == ["kvledger"] and words[1:2] not in (["--version"], ["--help"]):
                    subcommand = generated.commands()[words[1]]
                    subcommand.make_context(words[1], words[2:], resilient_parsing=True)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_python_of_a_page_runs(path, capsys, folder_of_a_user, monkeypatch):
    monkeypatch.chdir(folder_of_a_user)
    names = {}
    for block in blocks_of(path):
        if block.language == "python" and not block.before.startswith(NOT_RUN):
            exec(compile(block.body, name_of(path), "exec"), names)


def test_every_command_that_help_lists_is_there_and_documented():
    text = page("cli.md")
    for name in group.list_commands(None):
        assert f"## kvledger {name}" in text
        for option in generated.options_of(generated.commands()[name]):
            assert generated.meaning_of(option), option.name
            for spelling in (*option.opts, *option.secondary_opts):
                assert f"`{spelling}`" in text.split(f"## kvledger {name}")[1].split("\n## ")[0], spelling


def test_help_breaks_its_lines_where_they_were_broken():
    for command in (group, *generated.commands().values()):
        assert "\\b" not in (command.help or "") + (command.epilog or "")


def test_every_account_memo_line_category_and_factor_is_documented():
    text = page("accounts.md")
    names = [*Account, *(f.name for record in (Memo, PaperView, Factors) for f in fields(record)), "product"]
    assert [name for name in names if text.count(f"`{name}`") < 1] == []
    assert all(account.meaning in text for account in Account)


def test_every_policy_and_variant_is_documented():
    text = page("policies.md")
    by_hand = (DOCS / "policies.md").read_text("utf-8")
    for policy in generated.every_policy():
        assert policy.meaning in text
        assert f"`{policy.name}`" in by_hand, policy.name
    assert all(f"`{name}`" in by_hand for name in (*Placement, *Reservation))
    assert all(f"`grow@{name}`" in by_hand for name in Growth)


def test_every_error_code_is_documented():
    text = page("errors.md")
    assert len(generated.every_error()) >= 8
    assert all(f"| `{error.code}` | `{error.__name__}` |" in text for error in generated.every_error())


def test_no_two_errors_share_a_code():
    codes = [error.code for error in generated.every_error()]
    assert len(set(codes)) == len(codes)


def environment_variables():
    """Return the names that the source reads from or writes to ``os.environ``, through constants of a module too."""
    found = set()
    texts = (path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    for tree in (ast.parse(text) for text in texts if "os.environ" in text):
        named = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call | ast.Subscript | ast.Compare) and "os.environ" in ast.unparse(node):
                used = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
                used |= {named.get(n.id) for n in ast.walk(node) if isinstance(n, ast.Name)}
                found |= {c for c in used if isinstance(c, str) and re.fullmatch(r"[A-Z][A-Z0-9_]+", c)}
    return found


def test_every_environment_variable_is_documented():
    names = environment_variables()
    assert names >= {"NO_COLOR", "NUMBA_CACHE_DIR", "KVLEDGER_TOKEN"}
    text = page("cli.md")
    assert [name for name in sorted({*names, "COLUMNS"}) if f"`{name}`" not in text] == []


def test_every_metric_is_documented():
    text = page("export.md")
    assert [metric.name for metric in METRICS if f"| `{metric.name}` |" not in text] == []
    assert [alert.name for alert in (*EXPORTER_ALERTS, *RULE_ALERTS) if f"`{alert.name}`" not in text] == []


def test_every_schema_is_documented():
    text = page("json.md")
    assert [name for name in SCHEMAS if f"| `kvledger/{name}` |" not in text] == []
    tables = read_fields((DOCS / "json.md").read_text("utf-8"))
    shared = {"sheet", "quantity"}  # parts of the others
    assert {table for made_from in SCHEMAS.values() for table in made_from} == set(tables) - shared


def test_every_public_name_says_what_it_is():
    """Rows of the generated page; names that the documentation cannot explain are not for users."""
    assert re.findall(r"^\| `\w+` \| +\|$", page("python.md"), re.MULTILINE) == []


def test_every_finding_is_documented():
    text = page("findings.md")
    assert [rule.code for rule in RULES if f"({rule.code.lower()})=" not in text] == []


def test_every_way_of_being_rejected_is_documented():
    reasons = [value for name, value in vars(Rejection).items() if name.isupper()]
    assert len(reasons) >= 3
    for name in ("replay.md", "json.md"):
        assert [reason for reason in reasons if f"`{reason}`" not in page(name)] == []


def test_every_column_of_the_series_is_documented():
    assert [column for column in SERIES_COLUMNS if f"`{column}`" not in page("replay.md")] == []


def test_every_accuracy_is_documented():
    assert all(f"| `{accuracy}` |" in page("accuracy.md") for accuracy in Accuracy)


def test_every_format_and_synthetic_workload_is_documented():
    text = page("traces.md")
    names = {reader.format.name for reader in FORMATS} | set(CATALOGUE)
    names |= {name for kind in CATALOGUE.values() for name in kind.defaults} | set(COMMON)
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


_OPEN = {
    "accounts", "adjusted", "best", "declared_max_tokens", "dropped", "effect", "end_to_end", "error_band_ratio",
    "first_token", "error", "headline_ratio", "mean_ratio", "mitigations", "options", "output", "prompt", "queue",
    "full_ratio", "rejected", "saturated_ratio", "total", "unit_bytes", "values",
    "accounts_bytes",
}  # fmt: skip


def fields_of(value, path=""):
    """Return the paths of a JSON value; names that the data chooses are written ``{}``."""
    if isinstance(value, list):
        return {p for item in value for p in fields_of(item, f"{path}[]")} or {f"{path}[]"}
    if not isinstance(value, dict):
        return {path}
    last = path.removesuffix("[]").rsplit(".", 1)[-1]
    if last in _OPEN or (last == "ratio" and value):
        named = ((name if name == "exact" else "{}", item) for name, item in value.items())
        return {p for name, item in named for p in fields_of(item, f"{path}.{name}")} or {f"{path}.{{}}"}
    return {p for name, item in value.items() for p in fields_of(item, f"{path}.{name}".lstrip("."))}


def documented_fields(section):
    """Return the paths of a table; not those of objects, whose fields follow, nor of what repeats other fields."""
    rows = read_fields((DOCS / "json.md").read_text("utf-8"))[section]
    return leaves({re.sub(r"\{\w+\}", "{}", row.path) for row in rows if "the fields of" not in row.meaning})


def test_every_field_of_replay_json_is_documented(tmp_path):
    trace = "synthetic:chat,requests=40,rate=inf,shared_prefix=64"
    line = f"kvledger replay {trace} --model llama-3-8b --memory 2GiB --max-model-len 4096 -q --json"
    code, printed = run(f"{line} --policy max,paged --prefix-caching on --mitigations max", tmp_path)
    assert code == 0, printed
    record = json.loads("\n".join(printed))
    record["findings"] = None  # documented on their own
    assert leaves(fields_of(record)) == documented_fields("replay")


def test_every_field_of_trace_json_is_documented(folder_of_a_user):
    code, printed = run("kvledger trace server.log --json", folder_of_a_user)
    assert code == 0, printed
    record = json.loads("\n".join(printed))
    assert record["declared_max_tokens"]
    assert fields_of(record) == documented_fields("trace")


_ALIKE = (
    ("engines[].load", "engines[].structure"),
    ("structure.deployment", "structure.ranks[]"),
    ("plan_high", "plan_low"),
)
_STARTUP = """\
INFO 06-01 10:00:09 [gpu_worker.py:300] Available KV cache memory: 17.21 GiB
INFO 06-01 10:00:09 [kv_cache_utils.py:1500] GPU KV cache size: 140,976 tokens, Maximum concurrency for 131,072 tokens \
per request: 1.08x
"""


def test_every_field_of_size_json_is_documented(tmp_path):
    (tmp_path / "start.log").write_text(_STARTUP)
    found = set()
    for rest in (
        "--log start.log",
        "--gpu H100-80GB --weights 15GiB --length 800 --concurrency 3",
        "--kv-memory 16GiB --engine all --length 800 --fit concurrency",
    ):
        code, printed = run(f"kvledger size llama-3.1-8b {rest} --json -q", tmp_path)
        assert code == 0, printed
        found |= fields_of(json.loads("\n".join(printed)) | {"findings": None})  # documented on their own
    for other, described in _ALIKE:
        found = {path.replace(other, described) for path in found}
    assert leaves(found) == documented_fields("size")


def leaves(paths):
    """Leave out what is only the empty or absent form of something that has fields."""
    return {path for path in paths if not any(other.startswith((f"{path}.", f"{path}[")) for other in paths)}


TRANSLATED = [(ROOT / "README.md", ROOT / "README.zh-CN.md")] + [
    (DOCS / path.name, path) for path in sorted((DOCS / "zh").glob("*.md")) if path.name != "index.md"
]


@pytest.mark.parametrize(("english", "chinese"), TRANSLATED, ids=name_of)
def test_a_translation_shows_the_same(english, chinese):
    assert [b for b in blocks_of(english) if b.before == CHECKED]
    # Comments of commands are translated; what is run and printed is not.
    shown = [[(b.before == CHECKED, strip_comments(b.body)) for b in blocks_of(path)] for path in (english, chinese)]
    assert shown[0] == shown[1]
    for pattern in (r"^#+ ", r"^\|", r"^- ", r"!\["):
        assert len({tuple(re.findall(pattern, p.read_text("utf-8"), re.MULTILINE)) for p in (english, chinese)}) == 1
    links = {link.removeprefix("../").replace("zh/", "") for link in links_of(chinese)}
    assert links_of(english) - {"README.zh-CN.md"} == links - {"README.md"}


def strip_comments(body):
    return "\n".join(line.split("  #")[0].rstrip() for line in body.splitlines())


def links_of(path):
    return set(re.findall(r"\]\(([^)#\s]+)", path.read_text("utf-8")))


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md", "CONTRIBUTING.md", "benchmarks/README.md"])
def test_every_local_link_leads_somewhere(name):
    path = ROOT / name
    local = [link for link in links_of(path) if "://" not in link]
    assert [link for link in local if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_readme_names_every_command(name):
    text = (ROOT / name).read_text("utf-8")
    assert [command for command in group.list_commands(None) if not re.search(rf"^\| `{command}[ `]", text, re.M)] == []


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_speed_in_the_readme_is_what_the_benchmarks_recorded(name):
    recorded = dict(re.findall(r"^\| ([^|]+) \| \*\*([^*]+)\*\* \|", (ROOT / "benchmarks/README.md").read_text(), re.M))
    shown = re.findall(r"^\| [^|]+ \| \*\*([^*]+)\*\* \| `([^`|]+)` \|", (ROOT / name).read_text("utf-8"), re.M)
    assert len(shown) >= 5
    assert [(figure, benchmark) for figure, benchmark in shown if recorded.get(benchmark) != figure] == []
