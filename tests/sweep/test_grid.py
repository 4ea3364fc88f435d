"""From a grid file to its cells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.errors import UsageError
from kvledger.sweep.grid import MOST_BYTES, read_grid

_WIDE = "{from = 1, to = 9999, step = 1}"
NAMES = ("trace", "memory", "block-size", "policy")


def read(text, names=NAMES):
    return read_grid(text.encode(), names=names, read=lambda name, value: value, source="`g.toml`")


def test_every_combination_is_a_cell_in_the_order_of_the_file():
    found = read("""
        [settings]
        trace = "t"
        [grid]
        memory = ["1GiB", "2GiB"]
        block-size = { from = 16, to = 32, times = 2 }
    """)
    assert found.cells == [
        {"trace": "t", "memory": memory, "block-size": block} for memory in ("1GiB", "2GiB") for block in (16, 32)
    ]
    assert found.varying == ("memory", "block-size")


def test_single_cells_come_after_the_grid_and_may_change_a_shared_setting():
    found = read("""
        settings.memory = "1GiB"
        grid.block-size = [8]
        [[cells]]
        memory = "3GiB"
        [[cells]]
        block-size = 8
    """)
    assert found.cells == [{"memory": "1GiB", "block-size": 8}, {"memory": "3GiB"}]
    assert found.repeated == 1


def test_without_a_grid_only_the_single_cells_are_run():
    assert read('settings.trace = "t"\n[[cells]]\nmemory = "1GiB"').cells == [{"trace": "t", "memory": "1GiB"}]
    assert read('settings.trace = "t"').cells == [{"trace": "t"}]


def test_an_exclusion_takes_out_what_has_all_of_its_values():
    found = read("""
        grid.memory = [1, 2]
        grid.block-size = [8, 16, 32]
        [[exclude]]
        memory = 1
        block-size = [8, 16]
        [[exclude]]
        memory = 3
    """)
    assert [tuple(cell.values()) for cell in found.cells] == [(1, 32), (2, 8), (2, 16), (2, 32)]
    assert found.excluded == 2
    assert found.notes == ("exclusion 2 matches no cell",)


def test_values_are_read_before_they_are_compared():
    found = read_grid(
        b'grid.memory = [1, "1", 2]\n[[exclude]]\nmemory = "2"',
        names=NAMES,
        read=lambda name, value: str(value),
        source="`g`",
    )
    assert found.cells == [{"memory": "1"}]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("grid.memry = [1]", "`memry`, which is no setting"),
        ("settings.block_size = 1", "`block_size`, which is no setting"),
        ("[[cells]]\nx = 1", r"\[\[cells\]\] 1 of `g.toml` names `x`"),
        ("[[exclude]]", "empty and would exclude everything"),
        ("[[exclude]]\nmemory = {}", "`memory` in .*exclude.* is not a value"),
        ("grid.memory = 1", "`memory` in .grid. of `g.toml` is not a list or a range"),
        ("grid.memory = { from = 1, to = 2, by = 3 }", "unknown field `by`"),
        ("grid.memory = [[1]]", "not a list or a range"),
        ("settings.memory = 1979-05-27", "not a value"),
        ("settings.memory = [1]", "not a value"),
        ("sizes = 1", "unknown field `sizes`"),
        ("grid = 1", "is no grid"),
        ("a = ", "is no TOML"),
        ("settings.memory = 1\ngrid.memory = [1]", r"in \[settings\] and in \[grid\]"),
        ("grid.memory = [1]\n[[exclude]]\nmemory = 1", "no cell left"),
        (
            "grid.memory = {from = 1, to = 9999, step = 1}\ngrid.block-size = {from = 1, to = 9999, step = 1}",
            "more than",
        ),
        (" " * (MOST_BYTES + 1), "bytes, more than"),
    ],
)
def test_a_bad_grid_is_refused_with_what_is_wrong(text, says):
    with pytest.raises(UsageError, match=says):
        read(text)


def test_a_misspelt_setting_is_guessed():
    with pytest.raises(UsageError) as caught:
        read("settings.block_size = 1")
    assert caught.value.hint.startswith("did you mean `block-size`?")


@given(st.binary(max_size=200) | st.text(alphabet='[]{}=.,"ab1\n# ', max_size=80).map(str.encode))
def test_any_bytes_are_cells_or_a_usage_error(text):
    try:
        found = read_grid(text, names=("a", "b"), read=lambda name, value: value, source="`g`")
    except UsageError:
        return
    assert found.cells
