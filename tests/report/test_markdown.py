"""Reports as Markdown: whole tables, and nothing that would break one."""

import pytest
from rich.console import Group
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from kvledger.report.markdown import markdown
from kvledger.report.tables import heading, new_table
from tests.cli.calling import call


def test_headings_sentences_and_tables_are_what_they_are_in_markdown():
    table = new_table("policy", "used")
    table.add_row("`max`", "18.2 %")
    text = markdown(Group(heading("Where", "share of the pool"), Text("A | B <c>\nsecond line"), table, Text()))
    assert text == (
        "### Where\n\n_share of the pool_\n\nA \\| B &lt;c>  \nsecond line\n\n"
        "| policy | used |\n| --- | ---: |\n| `max` | 18.2 % |\n"
    )


def test_a_cell_of_several_lines_stays_one_row():
    table = new_table("code", "what")
    table.add_row("KV001", "first\nsecond")
    assert "| KV001 | first<br>second |" in markdown(table)


def test_a_bold_sentence_is_no_heading():
    assert markdown(Padding(Text("\nThe answer.", style="bold"), 1)) == "**The answer.**\n"


def test_what_has_no_form_in_markdown_is_refused():
    with pytest.raises(TypeError, match="Rule has no form"):
        markdown(Rule())


@pytest.mark.parametrize(
    "arguments",
    [
        ("size", "llama-3.1-70b", "--tp", "16", "--kv-memory", "30GiB", "-q"),
        ("size", "llama-3.1-8b", "--engine", "all", "--kv-memory", "30GiB", "-q"),
        ("replay", "synthetic:chat,requests=50,rate=inf", "--model", "llama-3-8b", "--memory", "1GiB", "-q"),
    ],
    ids=["size", "engines", "replay"],
)
def test_reports_are_printed_as_markdown(capsys, arguments):
    called = call(capsys, *arguments, "--format", "md")
    assert called.code == 0, called.err
    assert "\n### " in called.out
    rows = [line for line in called.out.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)
