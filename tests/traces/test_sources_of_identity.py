"""RAGPulse, LLMServingSim and ServeGen in miniature; all values are invented."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kvledger.errors import TraceError
from kvledger.replay.workload import HashIds, TokenIds
from kvledger.sources.files import load_trace
from kvledger.traces import ReadOptions
from kvledger.traces.prefix import prefix_share
from tests.traces.reading import read


def rag(seconds: object, length: int, **parts: list[int]) -> str:
    names = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")
    ids = {name: parts.get(name, []) for name in names}
    row = {"timestamp": str(seconds), "input_length": length, "output_length": 3, "hash_ids": ids, "session_id": "s"}
    return json.dumps(row) + "\n"


def rag_folder(folder: Path, rows: str) -> str:
    (folder / "0.jsonl").write_text(rows)
    for key, first in (("sys_prompt_id", 1), ("passage_id", 100)):
        lines = [json.dumps({key: first + i, "token_length": 10 + i}) for i in range(5)]
        (folder / f"{key}.jsonl").write_text("\n".join([*lines, "broken", '{"x":1}']))
    return str(folder)


def test_components_have_their_own_lengths_and_the_rest_of_the_prompt_is_unique(tmp_path: Path) -> None:
    rows = rag(1, 33, sys_prompt=[1], passages_ids=[101]) + rag(2, 30, sys_prompt=[1], passages_ids=[102])
    trace = load_trace(rag_folder(tmp_path, rows))
    content = trace.workload.content
    assert isinstance(content, HashIds)
    assert content.lengths is not None
    assert content.lengths.tolist() == [10, 11, 12, 10, 12, 8]
    assert len(set(content.ids.tolist())) == 5
    share = prefix_share(trace.workload)
    assert share is not None
    assert share.shared_tokens == 10


def test_components_that_do_not_fit_the_prompt_or_are_unknown_count_as_unique(tmp_path: Path) -> None:
    rows = rag(1, 5, sys_prompt=[1]) + rag(2, 50, sys_prompt=[77])
    content = load_trace(rag_folder(tmp_path, rows)).workload.content
    assert isinstance(content, HashIds)
    assert content.lengths is not None
    assert content.lengths.tolist() == [5, 50]


def test_a_clock_that_restarts_goes_on_at_the_next_full_day() -> None:
    trace = read(rag(10, 9) + rag(90_000, 9) + rag(89_990, 9) + rag(20, 9))
    assert trace.workload.arrival_seconds.tolist() == [10, 89_990, 90_000, 172_820]
    assert trace.adjusted["clock had restarted: moved behind the pass before"] == 1


def serving(**fields: object) -> str:
    return json.dumps({"input_toks": 2, "output_toks": 1, "arrival_time_ns": 1_500_000_000, **fields}) + "\n"


def test_token_ids_hold_the_prompt_and_then_the_output() -> None:
    trace = read(serving(input_tok_ids=[7, 8], output_tok_ids=[9]) + serving(input_tok_ids=[7, 8]))
    content = trace.workload.content
    assert isinstance(content, TokenIds)
    assert (content.offsets.tolist(), content.ids.tolist()) == ([0, 3, 5], [7, 8, 9, 7, 8])
    assert trace.workload.arrival_seconds.tolist() == [1.5, 1.5]


@pytest.mark.parametrize("ids", [[7], [7, -1], [7, 2**31], [7, "8"], "78", None])
def test_token_ids_that_do_not_fit_are_left_out_and_counted(ids: object) -> None:
    trace = read(serving(input_tok_ids=[7, 8]) + serving(input_tok_ids=ids))
    content = trace.workload.content
    assert isinstance(content, TokenIds)
    assert content.offsets.tolist() == [0, 2, 2]
    assert trace.adjusted == {"token ids do not fit the prompt length: left out": 1}


def test_a_workload_without_token_ids_has_no_identity() -> None:
    assert read(serving()).workload.content is None


def archive(**files: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"data/{name.replace('__', '.').replace('_', '-')}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return out.getvalue()


LAWS = json.dumps({"0": {"text_tokens": "{4: 1.0}", "image_tokens": "{100: 1.0}", "output_tokens": "{5: 1.0}"}})


def test_image_tokens_are_part_of_the_prompt() -> None:
    trace = read(archive(chunk_0_trace__csv="0,0.5,1,Gamma,1,1\n", chunk_0_dataset__json=LAWS))
    assert set(trace.workload.prompt_tokens.tolist()) == {104}
    assert trace.workload.arrival_seconds.max() < 600


def test_the_seed_decides_what_is_synthesised() -> None:
    data = archive(chunk_0_trace__csv="0,0.5,1,Gamma,1,1\n", chunk_0_dataset__json=LAWS)
    one, again, two = (read(data, options=ReadOptions(seed=seed)).workload.arrival_seconds for seed in (1, 1, 2))
    assert one.tolist() == again.tolist() != two.tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda: archive(readme__txt="hello"),
        lambda: archive(chunk_0_trace__csv="0,0.5,1,Gamma,1,1\n"),
        lambda: archive(chunk_0_trace__csv="0,0,1,Gamma,1,1\nx,y\n", chunk_0_dataset__json=LAWS),
        lambda: archive(chunk_0_trace__csv="0,0.5,1,Gamma,1,1\n", chunk_0_dataset__json="[1]"),
        lambda: archive(chunk_0_trace__csv="0,0.5,1,Gamma,1,1\n", chunk_0_dataset__json='{"0": {"output_tokens": 3}}'),
    ],
)
def test_an_archive_without_a_usable_client_is_an_error(make: Callable[[], bytes]) -> None:
    with pytest.raises(TraceError, match="holds no request"):
        read(make())


def test_rates_beyond_belief_are_refused_before_they_are_drawn() -> None:
    laws = archive(chunk_0_trace__csv="0,900000,1,Gamma,1,1\n" * 3, chunk_0_dataset__json=LAWS)
    with pytest.raises(TraceError, match="more than 20,000,000 requests"):
        read(laws)
