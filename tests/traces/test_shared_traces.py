"""Every number in the table of the shared traces, read from the files themselves."""

from pathlib import Path

import numpy as np
import pytest

from kvledger.replay.workload import HashIds, HashKind, TokenIds
from kvledger.sources.files import load_trace
from kvledger.traces.prefix import prefix_share
from kvledger.traces.statistics import describe

# file, format, rows, span, prompt (mean, median, p95, max), output (mean, median, p95, max); 0: not stated
MEASURED = {
    "azure2023/AzureLLMInferenceTrace_conv.csv": (
        "azure", 19366, 3501.7, (1154.7, 1020, 4083, 14050), (211.1, 129, 451, 1000)),
    "azure2023/AzureLLMInferenceTrace_code.csv": (
        "azure", 8819, 3435.9, (2047.8, 1469, 7302, 7437), (27.9, 13, 90, 1899)),
    "mooncake/conversation_trace.jsonl.gz": (
        "mooncake", 12031, 3537.0, (12035.1, 6909, 39552, 126195), (342.6, 350, 698, 2000)),
    "mooncake/synthetic_trace.jsonl.gz": (
        "mooncake", 3993, 1022.0, (15325.5, 11587, 48835, 191378), (149.1, 69, 519, 893)),
    "ragpulse/0_trace.jsonl.gz": (
        "ragpulse", 7106, 0, (2943.6, 3140, 4425, 7712), (283.2, 234, 670, 2183)),
    "llmservingsim/sharegpt-llama-3.1-8b-300-sps10.jsonl.gz": (
        "llmservingsim", 300, 29.1, (857.5, 733, 1747, 0), (652.5, 633, 773, 0)),
    "llmservingsim/sharegpt-qwen3-32b-300-sps10.jsonl.gz": (
        "llmservingsim", 300, 29.1, (862.3, 729, 1813, 0), (665.0, 641, 814, 0)),
    "llmservingsim/sharegpt-qwen3-30b-a3b-300-sps10.jsonl.gz": (
        "llmservingsim", 300, 29.1, (862.3, 729, 1813, 0), (665.0, 641, 814, 0)),
    "vattention/arxiv_long_offline.csv": (
        "lengths", 427, 0, (87426, 78967, 139531, 0), (428, 345, 920, 0)),
    "vattention/arxiv_long_online.csv": (
        "lengths", 10111, 0, (29568, 27843, 41732, 0), (363, 318, 675, 0)),
    "vattention/arxiv_sample.csv": (
        "lengths", 2895, 0, (10041, 7958, 20671, 0), (471, 332, 905, 0)),
    "vattention/sync_vs_async_trace.csv": (
        "lengths", 3965, 0, (1800, 1800, 1981, 0), (749, 744, 977, 0)),
    "vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv": (
        "lengths", 28257, 0, (2588, 2730, 3813, 0), (291, 167, 736, 0)),
}  # fmt: skip


@pytest.mark.parametrize("file", MEASURED)
def test_a_published_trace_has_the_rows_and_lengths_that_were_counted_on_it(shared: Path, file: str) -> None:
    name, rows, span, prompt, output = MEASURED[file]
    trace = load_trace(str(shared / "traces" / file), identity=False)
    assert (trace.format.name, trace.rows_read, len(trace), dict(trace.dropped)) == (name, rows, rows, {})
    if span:
        assert trace.workload.span_seconds == pytest.approx(span, abs=0.06)
    for column, (mean, median, p95, longest) in (
        (trace.workload.prompt_tokens, prompt),
        (trace.workload.output_tokens, output),
    ):
        assert float(column.mean()) == pytest.approx(mean, abs=0.55 if float(mean).is_integer() else 0.051)
        ranked = np.sort(column)  # the table takes the upper of two middle values, and rounds 0.95 n either way
        assert median in (ranked[rows // 2], ranked[(rows - 1) // 2])
        assert p95 in ranked[int(0.95 * (rows - 1)) : int(0.95 * (rows - 1)) + 2]
        if longest:
            assert int(column.max()) == longest


@pytest.mark.parametrize(("file", "share"), [("conversation", 37.4), ("synthetic", 65.1)])
def test_an_infinite_cache_serves_the_published_share_of_mooncakes_prompts(
    shared: Path, file: str, share: float
) -> None:
    trace = load_trace(str(shared / "traces" / "mooncake" / f"{file}_trace.jsonl.gz"))
    found = prefix_share(trace.workload)
    assert found is not None
    assert 100 * found.ratio == pytest.approx(share, abs=0.05)


def test_mooncakes_ids_cover_the_prompts_block_by_block(shared: Path) -> None:
    workload = load_trace(str(shared / "traces" / "mooncake" / "conversation_trace.jsonl.gz")).workload
    content = workload.content
    assert isinstance(content, HashIds)
    assert (content.kind, content.block_tokens, len(content.ids)) == (HashKind.CHAIN, 512, 288_500)
    assert len(np.unique(content.ids)) == 182_790
    assert (np.diff(content.offsets) == -(-workload.prompt_tokens // 512)).all()


def test_token_ids_of_sharegpt_text_share_what_an_unbounded_vllm_cache_finds(shared: Path) -> None:
    trace = load_trace(str(shared / "traces" / "llmservingsim" / "sharegpt-llama-3.1-8b-300-sps10.jsonl.gz"))
    assert isinstance(trace.workload.content, TokenIds)
    found = prefix_share(trace.workload)
    assert found is not None
    assert 100 * found.ratio == pytest.approx(7.59, abs=0.005)


def test_the_ragpulse_folder_gives_ids_whose_lengths_sum_to_the_prompts(shared: Path) -> None:
    trace = load_trace(str(shared / "traces" / "ragpulse"))
    content = trace.workload.content
    assert isinstance(content, HashIds)
    assert content.kind is HashKind.CONTENT
    assert content.lengths is not None
    sums = np.add.reduceat(content.lengths, content.offsets[:-1])
    assert (sums == trace.workload.prompt_tokens).all()
    assert describe(trace.workload).sessions == 3990


def test_the_second_pass_of_ragpulse_goes_on_a_week_later(shared: Path) -> None:
    trace = load_trace(str(shared / "traces" / "ragpulse" / "0_trace.jsonl.gz"))
    assert trace.adjusted == {"clock had restarted: moved behind the pass before": 7106 - 3800}
    assert trace.workload.arrival_seconds[3800] == 7 * 86_400


def test_a_recorded_run_has_the_arrivals_of_its_workload(shared: Path) -> None:
    folder = shared / "traces" / "llmservingsim"
    run = load_trace(str(folder / "vllm_runs" / "RTX4090" / "Llama-3.1-8B"))
    workload = load_trace(str(folder / "sharegpt-llama-3.1-8b-300-sps10.jsonl.gz"), identity=False).workload
    assert run.format.name == "llmservingsim-run"
    assert "the run had 2588 blocks of 16 tokens" in run.notes
    assert (run.workload.prompt_tokens == workload.prompt_tokens).all()
    drift = run.workload.arrival_seconds - (workload.arrival_seconds - workload.arrival_seconds[0])
    assert abs(drift).max() < 0.1


@pytest.mark.parametrize("name", ["plain-a", "plain-b", "prefix-a", "prefix-b"])
def test_golden_requests_are_read_with_their_shared_prefixes(shared: Path, name: str) -> None:
    trace = load_trace(str(shared / "golden" / "vllm-0.32.0" / name / "requests.csv"))
    assert (trace.format.name, trace.workload.span_seconds) == ("columns", 0.0)
    assert (trace.workload.content is not None) == name.startswith("prefix")


def test_a_folder_with_several_traces_asks_for_one_of_them(shared: Path) -> None:
    from kvledger.errors import TraceError

    with pytest.raises(TraceError, match=r"holds 2 traces: .*_code\.csv"):
        load_trace(str(shared / "traces" / "azure2023"))


@pytest.mark.slow
def test_agent_sessions_keep_their_ids_apart(shared: Path) -> None:
    trace = load_trace(str(shared / "traces" / "kv-cache-tester"))
    workload, content = trace.workload, trace.workload.content
    assert (trace.rows_read, dict(trace.dropped)) == (7296, {"output below 1 token": 8})
    assert describe(workload).sessions == 146
    assert isinstance(content, HashIds)
    assert workload.session is not None
    assert (np.diff(content.offsets) == -(-workload.prompt_tokens // 64)).all()
    owner = np.repeat(workload.session, np.diff(content.offsets))
    order = np.lexsort((owner, content.ids))
    same = content.ids[order][1:] == content.ids[order][:-1]
    assert not (same & (owner[order][1:] != owner[order][:-1])).any()
    # over all 7,296 rows the mean is 145,049; the 8 rows without output are 0.2 % of the tokens
    assert float(workload.prompt_tokens.mean()) == pytest.approx(145_049, rel=0.003)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "clients", "expected"),
    [("reason-deepseek-r1", 73, 1_383_669), ("multimodal-mm-image", 35, 818_610)],
)
def test_a_workload_made_of_client_statistics_has_their_number_of_requests(
    shared: Path, file: str, clients: int, expected: int
) -> None:
    trace = load_trace(str(shared / "traces" / "servegen" / f"{file}.tar.gz"))
    assert f"of {clients} clients" in trace.notes[-1]
    assert len(trace) == pytest.approx(expected, rel=0.01)  # the sum of rate x 600 s over all windows
