"""Opening a model: files, folders, GGUF, the catalogue and the hub."""

import json
import os
import sys
import types

import pytest

from kvledger.errors import MissingExtra, ModelError, SourceError, UsageError
from kvledger.sources import models
from kvledger.sources.models import load_model
from tests.model.gguf_file import gguf_bytes

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
QUANT = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}


@pytest.fixture
def folder(tmp_path):
    home = tmp_path / "my-model"
    home.mkdir()
    (home / "config.json").write_text(json.dumps(CONFIG))
    return home


def test_a_catalogue_name_is_found():
    assert load_model("llama-3.1-8b").bytes_per_token() == 131_072


def test_a_folder_is_read_and_gives_its_name(folder):
    spec = load_model(str(folder))
    assert (spec.name, spec.bytes_per_token()) == ("my-model", 131_072)


@pytest.mark.parametrize("path", ["", "config.json"])
def test_the_quantisation_beside_a_config_counts(folder, path):
    (folder / "hf_quant_config.json").write_text(json.dumps(QUANT))
    assert load_model(str(folder / path)).bytes_per_token() == 65_536


def test_a_config_of_another_name_gives_its_own(folder):
    (folder / "config.json").rename(folder / "org--model_config.json")
    assert load_model(str(folder / "org--model_config.json")).name == "org--model"


def test_a_gguf_file_is_read(tmp_path):
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.embedding_length": 64,
        "llama.attention.head_count": 2,
    }
    (tmp_path / "tiny.gguf").write_bytes(gguf_bytes(metadata))
    spec = load_model(str(tmp_path / "tiny.gguf"))
    assert (spec.name, spec.bytes_per_token()) == ("tiny", 2 * 2 * 2 * 32 * 2)


def test_a_home_directory_is_expanded(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))
    assert load_model("~/my-model").name == "my-model"


@pytest.mark.parametrize("spec", ["./nowhere", "/nowhere/at/all", "nowhere.gguf", "config.json", "~/nowhere"])
def test_a_path_that_is_not_there_is_a_source_error(spec, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match="there is no file or folder"):
        load_model(spec)


@pytest.mark.parametrize("spec", ["no-such-model", "~nobody-here/x", "a\0b", "x" * 5000])
def test_a_name_that_is_neither_path_nor_model_is_a_usage_error(spec):
    with pytest.raises(UsageError, match="the catalogue has no model"):
        load_model(spec)


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(SourceError, match=r"has no config\.json"):
        load_model(str(tmp_path))


def test_a_config_that_is_too_large_is_not_read(folder, monkeypatch):
    monkeypatch.setattr(models, "MAX_CONFIG_BYTES", 5)
    with pytest.raises(SourceError, match="more than the 5 a config may have"):
        load_model(str(folder))


def test_a_config_that_is_no_json_is_a_model_error(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="is not JSON"):
        load_model(str(folder))


@pytest.mark.parametrize("name", ["config.json", "model.gguf"])
def test_a_file_that_cannot_be_opened_is_a_source_error(folder, name, monkeypatch):
    (folder / name).write_bytes(b"{}")

    def fail(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", fail)
    with pytest.raises(SourceError, match="cannot be read: Permission denied"):
        load_model(str(folder / name))


def test_the_hub_needs_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra) as caught:
        load_model("hf:org/model")
    assert caught.value.hint == "pip install 'kvledger[hub]'"


@pytest.mark.parametrize("name", ["model", "org/../../etc", "org/model/extra", "", "-x/y", "org/mo del"])
def test_a_hub_name_of_another_shape_is_refused(name):
    with pytest.raises(UsageError, match="is not a repository"):
        load_model(f"hf:{name}")


@pytest.fixture
def hub(monkeypatch, folder):
    """Stand in for huggingface_hub: serve files of a folder, fail as the real one does."""
    package, errors = types.ModuleType("huggingface_hub"), types.ModuleType("huggingface_hub.errors")
    errors.EntryNotFoundError = type("EntryNotFoundError", (Exception,), {})
    errors.HfHubHTTPError = type("HfHubHTTPError", (OSError,), {})

    def hf_hub_download(repository, filename):
        if repository == "gated/model":
            raise errors.HfHubHTTPError("401 Client Error")
        if not (folder / filename).is_file():
            raise errors.EntryNotFoundError(filename)
        return str(folder / filename)

    package.hf_hub_download = hf_hub_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", package)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
    return folder


def test_the_hub_gives_config_and_quantisation(hub):
    assert load_model("hf:org/model").bytes_per_token() == 131_072
    (hub / "hf_quant_config.json").write_text(json.dumps(QUANT))
    spec = load_model("hf:org/model")
    assert (spec.name, spec.bytes_per_token()) == ("model", 65_536)


def test_a_repository_without_a_config_is_refused(hub):
    (hub / "config.json").unlink()
    with pytest.raises(SourceError, match=r"has no config\.json"):
        load_model("hf:org/model")


def test_a_refusal_of_the_hub_is_passed_on_with_what_to_do(hub):
    with pytest.raises(SourceError, match="401 Client Error") as caught:
        load_model("hf:gated/model")
    assert "hf auth login" in (caught.value.hint or "")


def test_a_pipe_given_as_a_model_is_called_what_it_is(tmp_path):
    os.mkfifo(tmp_path / "m.json")
    with pytest.raises(SourceError, match=r"`m.json` is a named pipe \(FIFO\), neither a file nor a folder"):
        load_model(str(tmp_path / "m.json"))
    with pytest.raises(SourceError, match="`null` is a device"):
        load_model("/dev/null")
