"""Maps with fewer pieces, so that many of them fit one page: neighbours are joined, and sums are kept."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from kvledger.report.html.saved import SavedBlocks, SavedLayout, SavedPieces

__all__ = ["thin_layouts"]

_ALL_PIECES = 16_000
_LEAST = 128


def thin_layouts(layouts: Sequence[SavedLayout], *, of: int) -> list[SavedLayout]:
    """Return the maps of one book, with as many pieces as its share of a page that has ``of`` maps."""
    most = max(_LEAST, _ALL_PIECES // max(1, of))
    return [
        replace(
            layout,
            pieces=None if layout.pieces is None else _join_pieces(layout.pieces, most),
            blocks=None if layout.blocks is None else _join_blocks(layout.blocks, most),
        )
        for layout in layouts
    ]


def _join_pieces(pieces: SavedPieces, most: int) -> SavedPieces:
    every = max(1, -(-len(pieces.request) // most))
    if every == 1:
        return pieces
    return SavedPieces(
        joined=pieces.joined * every,
        request=pieces.request[::every],
        start_bytes=pieces.start_bytes[::every],
        end_bytes=[max(pieces.end_bytes[at : at + every]) for at in range(0, len(pieces.end_bytes), every)],
        size_bytes=_sums(pieces.size_bytes, every),
        used_bytes=_sums(pieces.used_bytes, every),
        reserved_bytes=_sums(pieces.reserved_bytes, every),
    )


def _join_blocks(blocks: SavedBlocks, most: int) -> SavedBlocks:
    every = max(1, -(-len(blocks.held_bytes) // most))
    if every == 1:
        return blocks
    return SavedBlocks(
        blocks_per_cell=blocks.blocks_per_cell * every,
        blocks=blocks.blocks,
        held_bytes=_sums(blocks.held_bytes, every),
        used_bytes=_sums(blocks.used_bytes, every),
        cached_bytes=_sums(blocks.cached_bytes, every),
        shared_blocks=_sums(blocks.shared_blocks, every),
    )


def _sums(column: Sequence[int], every: int) -> list[int]:
    return [sum(column[at : at + every]) for at in range(0, len(column), every)]
