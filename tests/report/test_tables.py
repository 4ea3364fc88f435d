"""Tables stay readable at any width: numbers and words are never broken."""

import re

import pytest
from rich.console import Group
from rich.text import Text

from kvledger.report.tables import new_table, render

HEADINGS = ("used", "cached", "internal", "free", "running", "refused while free", "preempted", "hits", "queue")
NUMBERS = ("84.8", "12.9", "1.6 %", "0.7", "1,234.5", "12,345", "404", "0.0", "298.5")


def table():
    made = new_table("change", *HEADINGS)
    for name in ("(as it is)", "max-model-len=2048"):
        made.add_row(name, *NUMBERS)
    return made


@pytest.mark.parametrize("width", [40, 60, 80, 90, 100, 500])
def test_no_number_and_no_word_is_broken_at_any_width(width):
    text = render(table(), width=width, color=False)
    assert max(len(line) for line in text.splitlines()) <= width
    for number in NUMBERS:
        assert text.count(number) >= 2
    for word in (word for heading in HEADINGS for word in heading.split()):
        assert word in text.split()
    assert "…" not in text


def test_headings_wrap_between_words_before_a_table_is_divided():
    text = render(table(), width=92, color=False)
    assert text.count("(as it is)") == 1
    assert "refused while free" not in text
    assert len(text.splitlines()) < 6


def test_a_table_too_wide_is_divided_with_the_names_in_every_part():
    text = render(table(), width=70, color=False)
    first, second = text.split("\n\n")
    for part in (first, second):
        assert [line.split()[0] for line in part.splitlines()[-2:]] == ["(as", "max-model-len=2048"]


def test_a_sentence_at_the_end_folds_and_the_numbers_do_not():
    made = new_table("change", "reserved", "running", price=True)
    made.add_row("buffer", "1,234.5", "12.3", "what it costs is told in a long sentence that needs several lines")
    text = render(made, width=60, color=False)
    assert "1,234.5     12.3  what it costs" in text
    assert all(len(line) <= 60 for line in text.splitlines())


def test_a_long_name_is_shown_whole_where_the_numbers_leave_room():
    made = new_table("by hand", "", "measured in the replay")
    made.add_row("filled when it ends, at 794 tokens on average", "99.21 MiB", "81.8 %")
    assert "on average  99.21 MiB" in render(made, width=72, color=False)


@pytest.mark.parametrize("width", range(20, 60))
def test_no_line_ends_between_a_number_and_its_unit(width):
    sentence = "`max` keeps 29.9 % of 16.00 GiB from others for 3.5 s to store 5.3 % or 512 B, and 40 percent are kept"
    made = new_table("name", "", price=True)
    made.add_row("a", "81.8 %", sentence)
    for shown in (sentence, Text(sentence, style="bold"), Group(Text(sentence), made)):
        text = render(shown, width=width, color=False)
        assert not re.search(r"\d\n *(?:%|(?:GiB|s|B)\b)", text)
        assert "\ue000" not in text
    assert "3.5 s" in text
