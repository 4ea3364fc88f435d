import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.replay.workload import Content, HashIds, HashKind, SharedPrefix, TokenIds, Workload
from kvledger.traces.prefix import prefix_share


def of(prompts: list[int], content: Content | None) -> Workload:
    count = len(prompts)
    return Workload(
        arrival_seconds=np.arange(count, dtype=float),
        prompt_tokens=np.array(prompts, dtype=np.int32),
        output_tokens=np.ones(count, dtype=np.int32),
        content=content,
    )


def hashes(rows: list[list[int]], kind: HashKind, *, block: int = 4, lengths: list[int] | None = None) -> HashIds:
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    return HashIds(
        offsets=offsets,
        ids=np.array([i for row in rows for i in row], dtype=np.int64),
        block_tokens=block,
        kind=kind,
        lengths=None if lengths is None else np.array(lengths, dtype=np.int32),
    )


def shared(prompts: list[int], content: Content | None) -> int | None:
    share = prefix_share(of(prompts, content))
    return None if share is None else share.shared_tokens


def test_without_identity_there_is_no_share() -> None:
    assert shared([5, 5], None) is None


def test_the_partial_last_block_counts_with_the_tokens_it_covers() -> None:
    assert shared([6, 6], hashes([[1, 2], [1, 2]], HashKind.CHAIN)) == 6


def test_a_run_ends_at_the_first_unknown_block() -> None:
    assert shared([12, 12], hashes([[1, 2, 3], [1, 9, 3]], HashKind.CHAIN)) == 4


def test_a_request_never_shares_with_itself() -> None:
    assert shared([8, 4], hashes([[1, 1], [1]], HashKind.CONTENT)) == 4


def test_content_ids_count_only_behind_the_same_content() -> None:
    assert shared([8, 8], hashes([[1, 2], [3, 2]], HashKind.CONTENT)) == 0
    assert shared([8, 8, 8], hashes([[1, 2], [3, 2], [3, 2]], HashKind.CONTENT)) == 8


def test_blocks_of_different_lengths_count_with_their_own() -> None:
    assert shared([10, 10], hashes([[1, 2], [1, 3]], HashKind.CONTENT, lengths=[7, 3, 7, 3])) == 7


def test_shared_prefixes_reach_as_far_as_the_longest_before() -> None:
    assert shared([9, 9, 9], SharedPrefix(tokens=np.array([3, 8, 5], dtype=np.int32))) == 3 + 5


def test_token_ids_share_full_blocks_of_the_prompt_only() -> None:
    ids = list(range(40))
    content = TokenIds(offsets=np.array([0, 40, 80]), ids=np.array(ids + ids, dtype=np.int32))
    assert shared([35, 35], content) == 32


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=8),
    st.sampled_from(list(HashKind)),
)
def test_the_share_equals_that_of_a_plain_cache_of_prefixes(rows: list[list[int]], kind: HashKind) -> None:
    if kind is HashKind.CHAIN:  # chain ids: number every prefix
        table: dict[tuple[int, ...], int] = {}
        ids = [[table.setdefault(tuple(row[: j + 1]), len(table)) for j in range(len(row))] for row in rows]
    else:
        ids = rows
    prompts = [4 * len(row) - 1 for row in rows]
    seen: set[tuple[int, ...]] = set()
    expected = 0
    for row, prompt in zip(rows, prompts):
        prefixes = [tuple(row[: j + 1]) for j in range(len(row))]
        run = next((j for j, prefix in enumerate(prefixes) if prefix not in seen), len(row))
        expected += min(4 * run, prompt)
        seen.update(prefixes)
    assert shared(prompts, hashes(ids, kind)) == expected


@pytest.mark.parametrize("rows", [[[]], [[], [1], []]])
def test_requests_without_ids_share_nothing(rows: list[list[int]]) -> None:
    assert shared([3] * len(rows), hashes(rows, HashKind.CHAIN)) == 0
