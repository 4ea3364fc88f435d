"""`kvledger replay` of a recording: the server's own limits, pool and step time where none are given."""

from dataclasses import replace

import pytest

from kvledger.engines.facts import HistogramReading
from kvledger.sources.recordings import Recorder
from tests.traces.test_recording import sample

from .calling import call

# 129 blocks, of which one is the null block; 4,128 / 2.015625 = 2,048 tokens of the longest request
POOL = {
    "block_size": "32",
    "num_gpu_blocks": "129",
    "kv_cache_size_tokens": "4128",
    "kv_cache_max_concurrency": "2.015625",
}


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "server.kvr"
    with Recorder(str(path)) as recorder:
        for second in range(5):
            taken = sample(float(second), [(40, 8)] * 3 * second)
            engine = taken.scrape.engines[0]
            steps = HistogramReading(name="h", edges=(), counts=(), count=21.0 * second, total=0.0525 * second)
            engine = replace(
                engine, cache_config=POOL, histograms={**engine.histograms, "inter_token_latency_seconds": steps}
            )
            recorder.write(replace(taken, scrape=replace(taken.scrape, engines=(engine,))))
    return path


def replayed(capsys, recording, *options):
    called = call(
        capsys, "replay", recording, "--bytes-per-token", 128, "--policy", "paged,max", "--findings", "off",
        *options, "--json",
    )  # fmt: skip
    return called.json(), called.err


def test_what_is_not_given_is_taken_from_the_recorded_server(capsys, recording):
    record, err = replayed(capsys, recording)
    assert (record["settings"]["max_model_len"], record["settings"]["max_model_len_origin"]) == (
        2048,
        "the recorded server's",
    )
    assert {policy["capacity_bytes"] for policy in record["policies"]} == {128 * 32 * 128}
    assert (
        "as recorded: max_model_len 2,048, block_size 32, a pool of 4,096 tokens (128 usable blocks), "
        "a step of 2.5 ms, the mean time between two tokens"
    ) in err
    assert "the recording does not tell max_num_seqs of its server: give --max-num-seqs as it was started" in err
    assert "warning" not in err


def test_given_options_stand_and_a_warning_names_what_differs_from_the_recorded_server(capsys, recording):
    record, err = replayed(
        capsys, recording, "--max-model-len", 4096, "--block-size", 16, "--memory", "516KiB", "--clock", "steps", "-q"
    )
    assert record["settings"]["max_model_len"] == 4096
    assert "warning" not in err
    _, err = replayed(capsys, recording, "--max-model-len", 4096, "--block-size", 16, "--memory", "516KiB")
    assert (
        "warning: this is not the server that was recorded: --max-model-len 4,096 (recorded: 2,048), "
        "--block-size 16 (recorded: 32), a pool of 4,128 tokens (recorded: 4,096 in 128 usable blocks)"
    ) in err


def test_no_finding_advises_on_a_limit_that_the_recorded_server_does_not_have(capsys, recording):
    called = call(capsys, "replay", recording, "--bytes-per-token", 128, "--policy", "paged,max", "--max-model-len", 48)
    assert "KV021" not in called.out
    called = call(capsys, "replay", recording, "--bytes-per-token", 128, "--policy", "paged,max")
    assert "max_model_len is 2,048" in called.out
