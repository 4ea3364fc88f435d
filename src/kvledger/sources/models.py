"""Models: open a config file, a folder, a GGUF file, a catalogue name or a hub repository."""

from __future__ import annotations

import re
from pathlib import Path

from kvledger.errors import MissingExtra, SourceError, UsageError
from kvledger.model.catalogue import find_model
from kvledger.model.gguf_header import read_gguf_header
from kvledger.model.gguf_reader import read_gguf
from kvledger.model.reader import MAX_CONFIG_BYTES, parse_config, read_config
from kvledger.model.spec import ModelSpec

__all__ = ["load_model"]

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def load_model(spec: str) -> ModelSpec:
    """Load a model from a ``config.json`` file, a folder, a ``.gguf`` file, ``hf:org/name`` or a catalogue name.

    Raises:
        SourceError: A file cannot be read.
        ModelError: A config was read and cannot be priced without guessing.
        UsageError: The text is no path and no known model.
        MissingExtra: A package is needed that is not installed.

    Examples: ``load_model("llama-3.1-8b")``, ``load_model("./config.json")``, ``load_model("~/models/qwen3")``.
    """
    if spec.startswith("hf:"):
        return _load_hub(spec.removeprefix("hf:"))
    try:
        path = Path(spec).expanduser()
        is_folder, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError, RuntimeError):
        return find_model(spec)
    if is_folder:
        return _load_folder(path)
    if is_file:
        return _load_file(path)
    if path.exists():
        raise SourceError(
            f"`{path.name[:200]}` is {_kind(path)}, neither a file nor a folder",
            hint="write its content to a file and give that",
            path=spec[:200],
        )
    if spec.endswith((".json", ".gguf")) or spec.startswith((".", "/", "~")):
        raise SourceError(f"there is no file or folder `{spec[:200]}`", hint="check the path", path=spec[:200])
    return find_model(spec)


def _kind(path: Path) -> str:
    """Say what lies at a path that is no file and no folder."""
    kinds = (
        (path.is_fifo, "a named pipe (FIFO)"),
        (path.is_socket, "a socket"),
        (path.is_char_device, "a device"),
        (path.is_block_device, "a device"),
    )
    return next((name for is_it, name in kinds if is_it()), "something else")


def _load_folder(folder: Path) -> ModelSpec:
    config = folder / "config.json"
    if not config.is_file():
        raise SourceError(
            f"the folder `{folder.name}` has no config.json", hint="give the folder of a model in Hugging Face layout"
        )
    quant = folder / "hf_quant_config.json"
    quant_config = parse_config(_read(quant)) if quant.is_file() else None
    return read_config(parse_config(_read(config)), name=folder.resolve().name, quant_config=quant_config)


def _load_file(path: Path) -> ModelSpec:
    if path.name == "config.json":
        return _load_folder(path.resolve().parent)
    if path.suffix == ".gguf":
        return _load_gguf(path)
    name = path.stem.removesuffix("_config")
    return read_config(parse_config(_read(path)), name=name)


def _load_gguf(path: Path) -> ModelSpec:
    try:
        with path.open("rb") as stream:
            return read_gguf(read_gguf_header(stream), name=path.stem)
    except OSError as error:
        raise SourceError(f"`{path.name}` cannot be read: {error.strerror}", hint="check the path") from error


def _load_hub(repository: str) -> ModelSpec:
    """Fetch the two small config files of a repository on the Hugging Face hub; nothing else is downloaded."""
    if not _REPOSITORY.fullmatch(repository):
        raise UsageError(f"`hf:{repository[:80]}` is not a repository", hint="write `hf:organisation/name`")
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError
    except ImportError:
        raise MissingExtra.for_package("huggingface_hub", extra="hub") from None
    found: dict[str, dict[str, object]] = {}
    for filename in ("config.json", "hf_quant_config.json"):
        try:
            found[filename] = parse_config(_read(Path(hf_hub_download(repository, filename))))
        except EntryNotFoundError:
            continue
        except (HfHubHTTPError, OSError) as error:
            raise SourceError(
                f"the hub did not give `{filename}` of `{repository}`: {str(error)[:200]}",
                hint="check the name and the network; gated models need `hf auth login`",
                repository=repository,
            ) from error
    if "config.json" not in found:
        raise SourceError(f"`{repository}` has no config.json", hint="give a repository of a model in this format")
    name = repository.rpartition("/")[2]
    return read_config(found["config.json"], name=name, quant_config=found.get("hf_quant_config.json"))


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise SourceError(
                f"`{path.name}` has {size} bytes, more than the {MAX_CONFIG_BYTES} a config may have",
                hint="is this the model's config.json?",
                path=path.name,
            )
        with path.open("rb") as stream:
            return stream.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise SourceError(f"`{path.name}` cannot be read: {error.strerror}", hint="check the path") from error
