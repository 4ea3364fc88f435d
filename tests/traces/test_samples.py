"""How many answers each request asks for, as traces say it."""

import io
import json

import numpy as np
import pytest

from kvledger.replay import Beams
from kvledger.sources.files import load_trace
from kvledger.traces.formats.own import write_trace


def answers(tmp_path, text, **options):
    path = tmp_path / "t"
    path.write_text(text)
    trace = load_trace(str(path), **options)
    workload = trace.workload
    beams = None if workload.beams is None else workload.beams.mask.tolist()
    return trace, None if workload.samples is None else workload.samples.tolist(), beams


def vllm(params):
    return f"INFO 01-05 10:00:00 [l.py:39] Received request a: prompt: 'n=7, best_of=9', params: {params}.\n"


@pytest.mark.parametrize(
    ("params", "samples", "searches"),
    [
        ("SamplingParams(n=1, max_tokens=20)", None, None),
        ("SamplingParams(n=3, max_tokens=20)", [3, 1], None),
        ("SamplingParams(n=2, best_of=5, use_beam_search=False, max_tokens=20)", [5, 1], None),
        ("SamplingParams(n=2, best_of=None, max_tokens=20)", [2, 1], None),
        ("SamplingParams(n=4, best_of=4, use_beam_search=True, max_tokens=20)", [4, 1], [True, False]),
        ("BeamSearchParams(beam_width=6, max_tokens=20, ignore_eos=False)", [6, 1], [True, False]),
    ],
)
def test_a_vllm_log_says_how_many_answers_a_request_samples(tmp_path, params, samples, searches):
    text = vllm(params) + vllm("SamplingParams(max_tokens=4)")
    assert answers(tmp_path, text)[1:] == (samples, searches)


def test_columns_are_known_by_name_or_by_mapping(tmp_path):
    text = "prompt_tokens,output_tokens,best_of,mine\n5,5,2,3\n5,5,,1\n"
    assert answers(tmp_path, text)[1] == [2, 1]
    assert answers(tmp_path, text, columns="prompt=prompt_tokens,output=output_tokens,samples=mine")[1] == [3, 1]


def test_the_width_of_a_beam_search_is_its_number_of_answers(tmp_path):
    text = "prompt_tokens,output_tokens,samples,beam_width\n5,5,2,4\n5,5,2,0\n5,5,2,\n5,5,1,1\n"
    assert answers(tmp_path, text)[1:] == ([4, 2, 2, 1], [True, False, False, False])


def test_numbers_that_no_server_accepts_are_cut_and_counted(tmp_path):
    trace, samples, _ = answers(tmp_path, "prompt_tokens,output_tokens,samples\n5,5,1e9\n5,5,-3\n5,5,2\n5,5,x\n")
    assert samples == [1024, 1, 2, 1]
    assert trace.adjusted["more than 1,024 answers to a prompt: cut"] == 1
    assert trace.adjusted["less than 1 answer to a prompt: taken as 1"] == 1


def test_choices_of_a_span_share_its_output_tokens(tmp_path):
    def span(**attributes):
        values = [
            {"key": f"gen_ai.{k.replace('__', '.')}", "value": {"intValue": str(v)}} for k, v in attributes.items()
        ]
        return json.dumps({"startTimeUnixNano": "5", "attributes": values})

    many = span(usage__input_tokens=9, usage__output_tokens=10, request__choice__count=4)
    one = span(usage__input_tokens=9, usage__output_tokens=10, request__choice__count=1)
    text = "\n".join([many, one])
    trace, samples, _ = answers(tmp_path, text)
    assert samples == [4, 1]
    assert trace.workload.output_tokens.tolist() == [3, 10]
    assert trace.adjusted["output tokens of several choices: shared out evenly"] == 1


def test_a_written_trace_keeps_its_answers(tmp_path):
    trace, samples, searches = answers(tmp_path, "prompt_tokens,output_tokens,samples,beam_width\n5,5,2,\n5,5,1,3\n")
    out = io.BytesIO()
    write_trace(trace, out)
    (tmp_path / "t.parquet").write_bytes(out.getvalue())
    again = load_trace(str(tmp_path / "t.parquet")).workload
    assert again.samples.tolist() == samples == [2, 3]
    assert again.beams.mask.tolist() == searches == [False, True]
    assert isinstance(again.beams, Beams)
    assert again.samples.dtype == np.int32
