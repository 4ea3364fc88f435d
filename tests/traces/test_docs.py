"""The page about traces names everything there is, and its commands run."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvledger.cli.trace import command
from kvledger.traces.columns import parse_mapping
from kvledger.traces.formats import ALL
from kvledger.traces.synthetic import CATALOGUE
from kvledger.traces.synthetic.catalogue import COMMON

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ kvledger trace (synthetic:.*)$", PAGE, flags=re.MULTILINE)


def test_every_format_has_a_row_and_every_name_is_used_once() -> None:
    names = [reader.format.name for reader in ALL]
    assert len(names) == len(set(names))
    for name in names:
        assert f"| `{name}` |" in PAGE, name


def test_every_synthetic_workload_and_parameter_is_documented() -> None:
    for kind in CATALOGUE.values():
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{kind.name}` |"))
        for parameter in set(kind.defaults) - set(COMMON):
            assert f"`{parameter}`" in row, (kind.name, parameter)
    for parameter in COMMON:
        assert f"`{parameter}`" in PAGE, parameter


def test_every_option_of_the_command_is_documented() -> None:
    documented = {"--seed", "--format", "--force"}  # said by --help alone
    for parameter in command.params:
        for option in parameter.opts:
            assert not option.startswith("--") or option in documented or option in PAGE, option


def test_the_smallest_input_of_the_page_is_a_trace() -> None:
    text = re.search(r"```text\n(arrival_seconds.*?)```", PAGE, flags=re.DOTALL)
    assert text is not None
    assert "requests   2" in CliRunner().invoke(command, ["-"], input=text[1]).stdout


def test_the_mapping_of_the_page_can_be_read() -> None:
    mapping = re.search(r"--columns (arrival=\S+)$", PAGE, flags=re.MULTILINE)
    assert mapping is not None
    assert parse_mapping(mapping[1]).prompt == "in"


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_of_the_page_run(line: str) -> None:
    assert CliRunner().invoke(command, line.split()).exit_code == 0


def test_the_page_has_commands_to_run() -> None:
    assert len(COMMANDS) >= 4
