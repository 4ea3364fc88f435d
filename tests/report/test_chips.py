"""Accounts have the colours of the palette on a terminal, too, and none where none is wanted."""

from io import StringIO

import pytest
from rich.console import Console

from kvledger.ledger import Account
from kvledger.live.painting import paint_line
from kvledger.report.chips import account_chip, paint_accounts
from kvledger.report.palette import PALETTE
from kvledger.report.tables import new_table, render


def printed(text, system, environment=None):
    stream = StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system=system, legacy_windows=False)
    paint_accounts(console, environment or {})
    console.print(text, end="")
    return stream.getvalue()


def rgb(colour):
    return ";".join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))


@pytest.mark.parametrize("account", Account)
def test_a_terminal_of_many_colours_gets_those_of_the_page(account):
    chip = account_chip(account)
    assert f"48;2;{rgb(PALETTE[account].dark)}m" in printed(chip, "truecolor")
    assert f"48;2;{rgb(PALETTE[account].light)}m" in printed(chip, "truecolor", {"COLORFGBG": "0;15"})


def test_a_terminal_of_sixteen_colours_tells_all_accounts_apart():
    codes = {printed(account_chip(account), "standard").split("m")[0] for account in Account}
    assert len(codes) == len(Account)
    assert all(";2;" not in code for code in codes)


def test_without_colour_the_text_is_the_same():
    table = new_table("policy", account_chip(Account.USED))
    table.add_row("max", "1 %")
    assert "\x1b" not in render(table, width=80, color=False)
    assert render(table, width=80, color=False).split() == ["policy", "used", "max", "1", "%"]


def test_the_cells_of_a_strip_have_the_colour_of_their_account():
    spans = [(span.start, span.end, span.style) for span in paint_line("[uuuui??...]").spans]
    assert spans == [
        (1, 5, "account.used"),
        (5, 6, "account.internal"),
        (6, 8, "account.unattributed"),
        (8, 11, "account.free"),
    ]


def test_rows_and_legends_are_painted_and_nothing_else():
    assert [span.style for span in paint_line("internal        1.5 GiB       3.0 %").spans] == ["account.internal"]
    legend = "u used   i internal   ? held, not told apart   . free or cached"
    assert [(legend[s.start], s.style.removeprefix("account.")) for s in paint_line(legend).spans] == [
        ("u", "used"),
        ("i", "internal"),
        ("?", "unattributed"),
        (".", "free"),
    ]
    for line in ("internal for each running request: 7.5 tokens", "held over time |...|", "q quit   p pause", ""):
        assert not paint_line(line).spans
    assert paint_line("used   [/red] 3 GiB").plain == "used   [/red] 3 GiB"


def test_every_line_that_watch_draws_keeps_its_text():
    from kvledger.live.view import WatchModel
    from tests.measure.recorded import measure

    reading = [reading for _, reading in measure("async", phases={"plain"}, settled=False) if reading.running][-1]
    model = WatchModel()
    model.add("server", 0, reading)
    lines = model.lines(width=100)
    assert [paint_line(line).plain for line in lines] == lines
    styles = {span.style for line in lines for span in paint_line(line).spans}
    assert {"account.used", "account.internal", "account.free"} <= styles
