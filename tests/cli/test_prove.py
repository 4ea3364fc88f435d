"""``kvledger prove`` on a small random model: all ways really run, and their numbers hang together."""

import json
import os
from unittest.mock import Mock

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvledger.cli import proof as proof_module
from kvledger.report.schema import make_schema, read_fields
from tests.runtime.small_models import small_model
from tests.test_docs import documented_fields, fields_of, leaves, page

from .calling import call

TOKEN_BYTES = 2 * 2 * 2 * 8 * 4
"""Keys and values, 2 layers, 2 heads of 8 numbers of 4 bytes."""
LONGEST = 128
FLAGS = ("--trace", "synthetic:uniform,prompt_min=3,prompt_max=30,output_min=2,output_max=20", "--requests", "14")
FLAGS += ("--max-model-len", LONGEST, "--block-size", "4", "-q")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "small-llama"
    small_model("llama").save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def proof(folder):
    """One run of every way in the memory of four reservations of the longest sequence."""
    from click.testing import CliRunner

    from kvledger.cli.prove import command

    flags = [str(flag) for flag in (folder, *FLAGS, "--kv-memory", 4 * LONGEST * TOKEN_BYTES, "--json")]
    result = CliRunner().invoke(command, flags, catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout)


def side(proof, way):
    return next(side for side in proof["sides"] if side["way"] == way)


def test_every_way_runs_and_gives_the_same_tokens(proof):
    assert [s["failure"] for s in proof["sides"] if s["way"] != "generate-batch"] == [None] * 5
    for one in proof["sides"][1:]:
        if one["failure"] is None:
            assert one["agreement"]["different"] == one["agreement"]["missing"] == 0
            assert one["agreement"]["same"] + one["agreement"]["tie"] == proof["requests"] == 14


def test_a_reservation_of_the_longest_runs_four_and_blocks_run_more(proof):
    assert proof["token_bytes"] == TOKEN_BYTES
    assert side(proof, "max")["peak_running"] == side(proof, "generate-static")["peak_running"] == 4
    assert side(proof, "blocks")["peak_running"] == 14
    assert "requests at a time" in proof["answer"]


def test_the_shares_of_every_way_make_up_its_memory(proof):
    for one in proof["sides"]:
        for name in ("mean_ratio", "saturated_ratio", "full_ratio"):
            if one[name] is not None:
                assert sum(one[name].values()) == pytest.approx(1)
    assert side(proof, "max")["saturated_ratio"]["reserved"] > 0.5
    assert side(proof, "exact")["saturated_ratio"] is None or side(proof, "exact")["saturated_ratio"]["internal"] == 0
    assert side(proof, "blocks")["mean_ratio"]["reserved"] == 0


def test_every_prompt_token_is_computed_once(proof):
    for way in ("generate-static", "generate-dynamic", "max", "exact", "blocks"):
        assert side(proof, way)["prefill_tokens"] == proof["prompt_tokens"], way


def test_every_field_is_documented_and_the_schema_says_so(proof):
    assert leaves(fields_of(proof)) <= documented_fields("prove")
    schema = make_schema("prove", read_fields(page("json.md")))
    assert set(proof) == set(schema["properties"])


def test_the_text_says_what_was_proved(capsys, folder):
    printed = call(capsys, "prove", folder, *FLAGS, "--kv-memory", 4 * LONGEST * TOKEN_BYTES, "--ways", "max,blocks")
    assert printed.code == 0
    assert "Block tables ran" in printed.out
    assert "Every way gave the same tokens" in " ".join(printed.out.split())
    assert "small-llama" in printed.out
    assert str(folder.parent) not in printed.out


@pytest.mark.parametrize(("quiet", "hidden"), [(True, "1"), (False, None)])
def test_loading_draws_no_bars_where_none_are_asked_for(monkeypatch, quiet, hidden):
    seen = []
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    monkeypatch.setattr(proof_module, "load_transformers", lambda: seen.append(os.environ.get("TQDM_DISABLE")))
    monkeypatch.setattr(proof_module, "load_model", lambda *_, **__: seen.append(os.environ.get("TQDM_DISABLE")))
    monkeypatch.setattr(proof_module.sys, "stderr", Mock(isatty=lambda: True))
    proof_module._load(Mock(), quiet=quiet)
    assert seen == ([hidden] if quiet else []) + [None]


def test_a_way_that_does_not_fit_is_said_and_the_others_run(capsys, folder):
    memory = 2 * LONGEST * TOKEN_BYTES
    printed = call(capsys, "prove", folder, *FLAGS, "--kv-memory", memory, "--ways", "generate-batch,blocks", "--json")
    found = json.loads(printed.out)
    assert side(found, "generate-batch")["failure"]["code"] == "KVE005"
    assert side(found, "blocks")["failure"] is None


def test_an_unknown_way_is_refused_with_the_list(capsys, folder):
    printed = call(capsys, "prove", folder, "--ways", "best")
    assert printed.code == 2
    assert "the ways are generate-static" in printed.err


def test_a_model_that_is_not_there_is_a_source_error(capsys, tmp_path):
    printed = call(capsys, "prove", tmp_path / "none", *FLAGS)
    assert printed.code == 2
    assert "cannot be loaded" in printed.err
    assert str(tmp_path) not in printed.err


def test_a_model_is_served_under_a_name_that_clients_can_spell(capsys, monkeypatch):
    pytest.importorskip("starlette")
    from kvledger.runtime import serve as serve_module
    from kvledger.runtime.load import Loaded

    def serve(_engine, *, model_name, ready, **_):
        names.append(model_name)
        ready("http://127.0.0.1:1")

    names = []
    loaded = Loaded(model=small_model("llama"), tokenizer=None, name="Small (Q4_1 weights, unpacked)")
    monkeypatch.setattr(proof_module, "_load", Mock(return_value=loaded))
    monkeypatch.setattr(serve_module, "serve", serve)
    found = call(capsys, "prove", "demo", "--serve", "0", "--max-model-len", str(LONGEST))
    assert names == ["Small"]
    assert "serving Small (Q4_1 weights, unpacked) as `Small` on http://127.0.0.1:1" in found.err
