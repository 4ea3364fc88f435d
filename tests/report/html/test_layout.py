"""Maps of the page: thinned without losing a byte, and holes counted where there are some."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.errors import SourceError
from kvledger.report.html.layout import thin_layouts
from kvledger.report.html.page import render_page
from kvledger.report.html.reading import run_of
from kvledger.report.html.saved import SavedBlocks, SavedLayout
from kvledger.report.html.sections.pool import find_holes

from .pages import with_maps, without_maps
from .results import PAGED, layout, policy, replay
from .test_page import page_of


def saved(**options):
    return msgspec.convert(layout(**options), SavedLayout)


@given(st.integers(1, 700), st.integers(1, 200))
def test_thinning_keeps_every_byte(pieces, maps):
    before = saved(pieces=pieces)
    (after,) = thin_layouts([before], of=maps)
    assert len(after.pieces.request) <= max(128, 16_000 // maps)
    for name in ("size_bytes", "used_bytes", "reserved_bytes"):
        assert sum(getattr(after.pieces, name)) == sum(getattr(before.pieces, name))
    assert after.pieces.start_bytes[0] == before.pieces.start_bytes[0]
    assert after.pieces.end_bytes[-1] == before.pieces.end_bytes[-1]


def test_cells_of_blocks_are_joined_too():
    blocks = SavedBlocks(
        blocks_per_cell=2,
        blocks=4096,
        held_bytes=[3] * 2048,
        used_bytes=[2] * 2048,
        cached_bytes=[1] * 2048,
        shared_blocks=[1] * 2048,
    )
    (after,) = thin_layouts([msgspec.structs.replace(saved(), pieces=None, blocks=blocks)], of=100)
    assert len(after.blocks.held_bytes) <= 160
    assert sum(after.blocks.held_bytes) == 3 * 2048
    assert after.blocks.blocks_per_cell == 2 * -(-2048 // len(after.blocks.held_bytes))


def test_holes_lie_between_the_pieces_and_behind_the_last():
    holes = find_holes(saved(pieces=4))
    assert holes.count == 4
    assert holes.largest_bytes == 2**28 // 4


def test_places_of_counted_blocks_are_no_holes():
    assert find_holes(msgspec.structs.replace(saved(), order="counts")) is None


@pytest.mark.parametrize(
    "change",
    [
        {"accounts_bytes": {"used": 1}},
        {"pieces": layout()["pieces"] | {"used_bytes": [1]}},
        {"pieces": layout()["pieces"] | {"start_bytes": [-1, 5]}},
    ],
)
def test_a_map_that_does_not_balance_is_refused(change):
    result = replay()
    result["policies"][0]["layouts"] = [layout() | change]
    with pytest.raises(SourceError, match=r"books do not balance|is damaged"):
        run_of(result, name="x")


def test_a_map_of_blocks_says_that_a_piece_is_a_block():
    result = replay()
    blocks = {"blocks_per_cell": 1, "blocks": 2, "shared_blocks": [0, 0]}
    blocks |= {"held_bytes": [2**29, 0], "used_bytes": [2**29, 0], "cached_bytes": [0, 0]}
    accounts = dict.fromkeys(layout()["accounts_bytes"], 0) | {"used": 2**29, "free": 2**29}
    one = layout() | {"order": "blocks", "pieces": None, "blocks": blocks, "accounts_bytes": accounts}
    result["policies"][1]["layouts"] = [one]
    page = render_page([run_of(result, name="x")])
    assert "Each block is one piece" in page
    assert "Each request is one piece" not in page


@pytest.mark.parametrize(
    ("name", "why"), [("paged:radix@16", "a radix tree holds spans"), ("paged:pools", "two pools")]
)
def test_a_policy_whose_pages_have_no_numbers_says_why_it_has_no_map(name, why):
    alone = page_of(replay(policies=[policy(name, PAGED)]))
    assert why in alone
    beside = with_maps()
    assert why not in page_of(beside)
    beside["policies"].append(policy(name, PAGED))
    assert why in page_of(beside)


def test_two_pools_show_how_full_each_was():
    page = page_of(without_maps())
    for part in ("How the two pools fill", "sliding window", "3.91\u202fMiB", "90.0\u202f%"):
        assert part in page, part


def test_without_maps_there_is_no_section_of_them():
    assert 'id="pool"' not in page_of(replay())
