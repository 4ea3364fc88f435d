"""``--clock``: rooflines with the model's own parameters, and a clock fitted to a recorded run."""

import json

import pytest

from kvledger.cli.clocks import fit_part
from kvledger.errors import UsageError

from .calling import call
from .test_trying import MODEL

NOON = 1767607200


@pytest.fixture
def model(tmp_path):
    """Return the folder of a model that states its parameters."""
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    return tmp_path


@pytest.fixture
def run(tmp_path):
    """Return a recorded run: 40 requests, each served in 0.2 s and 0.05 s a token."""
    path = tmp_path / "requests.jsonl"
    rows = []
    for i in range(40):
        moments = {"queued_ts": 500 + i, "first_token_ts": 500.2 + i, "last_token_ts": 500.2 + i + 0.05 * 9}
        rows.append({"input_toks": 50, "output_toks": 10, "arrival_time": NOON + i, **moments})
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def clock_of(capsys, trace, *flags):
    called = call(capsys, "replay", trace, "--policy", "paged", "--capacity-tokens", "2000", "-q", "--json", *flags)
    assert called.code == 0, called.err
    return called.json()["settings"]["clock"]


def test_a_gpu_alone_takes_the_parameters_of_the_model(capsys, trace, model):
    """4 layers of (512 x 8 x 64 x 2 + 512 x 4 x 64 x 2) + 3 x 512 x 1024, and two embeddings of 512 x 1000."""
    parameters = 4 * (512 * 512 * 2 + 512 * 256 * 2 + 3 * 512 * 1024) + 2 * 512 * 1000
    clock = clock_of(capsys, trace, "--model", model, "--clock", "a100-80gb")
    assert clock["base"] == pytest.approx(1e-3 + 2 * parameters / (0.8 * 2_039e9), rel=1e-3)
    assert clock["name"].endswith("parameters in 16 bits, the model's")
    same = clock_of(capsys, trace, "--model", model, "--clock", f"a100-80gb:{parameters / 1e9}b")
    assert [same[k] for k in "abc"] == [clock[k] for k in "abc"]


def test_a_gpu_alone_needs_a_model_that_states_its_parameters(capsys, trace):
    small = ["replay", trace, "--bytes-per-token", "9", "--capacity-tokens", "200", "--json", "--clock", "h100-80gb"]
    error = call(capsys, *small).error()
    assert "needs the parameters of the model, and no model was given" in error["message"]
    assert error["hint"] == "write them: h100-80gb:8b"


@pytest.mark.parametrize("clock", ["h100-80gb:", "h100-80gb:x", "h100-80gb:0b", "no-such-gpu:8b", "1,2", "1", ""])
def test_a_clock_that_is_none_is_refused(capsys, trace, clock):
    called = call(
        capsys, "replay", trace, "--bytes-per-token", "9", "--capacity-tokens", "200", "--json", "--clock", clock
    )
    assert called.code == 2
    assert called.error()["hint"]


def test_a_fitted_clock_says_how_good_it_is(capsys, run):
    clock = clock_of(capsys, run, "--bytes-per-token", "9", "--clock", "fit:1/2")
    assert clock["name"] == "fitted to the first 19.83 s of the recorded run"
    fit = clock["fit"]
    assert fit["part_ratio"] == 0.5
    assert fit["until_seconds"] == pytest.approx(39.65 / 2)
    assert (fit["moments_inside"], fit["moments_outside"]) == (40, 40)
    assert fit["error_inside_seconds"] < 0.01
    assert fit["error_outside_seconds"] < 0.01
    assert abs(fit["latency_error_ratio"]) < 0.02


def test_a_clock_fitted_to_the_whole_run_has_no_rest_to_be_tried_on(capsys, run):
    flags = ["--bytes-per-token", "9", "--clock", "fit:1"]
    assert clock_of(capsys, run, *flags)["fit"]["error_outside_seconds"] is None
    called = call(capsys, "replay", run, "--policy", "max,paged@8", "--capacity-tokens", "2000", *flags)
    text = " ".join(called.out.split())
    assert "the clock was fitted under `paged@8`" in text
    assert "nothing was left to try it on" in text
    assert "fitting the clock to 80 observed moments" in called.err


def test_a_trace_that_observed_nothing_is_refused_with_what_would_do(capsys, trace, run):
    small = ["--bytes-per-token", "9", "--capacity-tokens", "2000", "--clock", "fit", "--json"]
    error = call(capsys, "replay", trace, *small).error()
    assert "it does not say when requests got their tokens" in error["message"]
    assert "--clock h100-80gb:8b" in error["hint"]
    assert "drawn anew" in call(capsys, "replay", run, *small, "--rate", "3").error()["message"]


@pytest.mark.parametrize(("text", "part"), [("fit", 1 / 3), ("fit:1/4", 0.25), ("fit:1", 1.0), ("steps", None)])
def test_parts_are_read(text, part):
    assert fit_part(text) == part


@pytest.mark.parametrize("text", ["fit:", "fit:0", "fit:2", "fit:1/0", "fit:x", "fit:nan"])
def test_parts_that_are_none_are_refused(text):
    with pytest.raises(UsageError, match="is not a part of a run"):
        fit_part(text)
