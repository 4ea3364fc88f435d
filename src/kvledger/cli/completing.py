"""What a scrape leaves out of a pool: the price of a block and the longest request, from options and the server."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvledger.engines.facts import Engine, StartupFacts
from kvledger.engines.vllm.metrics import VllmEngine
from kvledger.errors import Error, ModelError, UsageError
from kvledger.ledger import Accuracy
from kvledger.measure.background import Background
from kvledger.measure.groups import price_by_plan
from kvledger.measure.meter import shown_name
from kvledger.measure.pool import PoolShape
from kvledger.measure.pricing import (
    count_fitting_blocks,
    keeps_every_token,
    price_by_bytes,
    price_by_model,
    price_by_token,
)
from kvledger.measure.served_name import explain_difference
from kvledger.measure.slots import Layout
from kvledger.model.catalogue import catalogue, find_model
from kvledger.model.formats import find_dtype, find_kv_format
from kvledger.sources.http import Access, fetch, parse_address
from kvledger.sources.startup_log import read_startup
from kvledger.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from kvledger.model.spec import ModelSpec

__all__ = ["Completer", "PoolFacts", "read_background", "read_facts"]

_WIDEST = "float32"
_MOST_NAMES = 100
"""Served names that are compared with the model given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFacts:
    """What the options say about the pool."""

    model: ModelSpec | None
    kv_dtype: str | None
    bytes_per_token: int | None
    kv_memory: int | None
    max_model_len: int | None
    startup: StartupFacts | None = None
    """The last start in the log, where one was given."""


class Completer:
    """Completes the pools of one source, or of several that are alike; calling it may ask the server once.

    Args:
        facts: What the options say.
        access: How a server may be asked.
        server: The server whose list of models tells the longest request; None when none can be asked.
    """

    def __init__(self, facts: PoolFacts, *, access: Access, server: str | None) -> None:
        self._facts = facts
        self._access = access
        self._server = server
        self._served: dict[str, ModelSpec | None] = {}
        self._compared: set[str] = set()
        self._hints: list[str] = []
        self._notes: dict[str, None] = {}
        self._told_length: int | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, and what would make the numbers better; each once."""
        return tuple(self._notes)

    def take_hints(self) -> list[str]:
        """Return what came up since the last call and should be said at once."""
        hints, self._hints = self._hints, []
        return hints

    def __call__(self, shape: PoolShape, engine: VllmEngine) -> PoolShape:
        """Return the pool with its price and its longest request, as far as they are known."""
        facts = self._facts
        if engine.count_config("num_gpu_blocks") is None:
            self._note("the number of blocks was taken from the start-up log: the metrics do not tell it")
        if facts.max_model_len is not None:
            shape = replace(shape, max_model_len=facts.max_model_len, max_model_len_source="--max-model-len")
        elif shape.max_model_len is None:
            shape = self._ask_length(shape)
        if facts.bytes_per_token is not None:
            return price_by_token(shape, facts.bytes_per_token)
        if facts.kv_memory is not None:
            return price_by_bytes(shape, facts.kv_memory, source="--kv-memory", accuracy=Accuracy.DERIVED)
        self.compare_names(engine.model)
        model = facts.model or self.find_served(engine.model)
        if model is not None:
            dtype = facts.kv_dtype or _served_dtype(engine) or self._logged_kv_dtype()
            price = _pricing_of(model)
            try:
                started = self._as_started(model)
                priced = price(shape, started, dtype)
                fitting = count_fitting_blocks(shape, priced)
                if fitting is not None:
                    return self._settle_price(shape, priced, fitting, started, dtype)
                assumed = "" if dtype is not None else self._explain_dtype(model)
                return _assume(priced, assumed) if assumed else priced
            except (ModelError, UsageError) as error:
                self._note(error.message)
        if shape.pricing is None:
            self._note("what a token costs is not known: give --model, --bytes-per-token or --kv-memory")
        return shape

    def _settle_price(
        self, shape: PoolShape, priced: PoolShape, fitting: int, model: ModelSpec, dtype: str | None
    ) -> PoolShape:
        """Return the price in float32 where that is what the server's bytes were divided by, else say what is wrong."""
        size = 0 if shape.pricing is None else shape.pricing.capacity_bytes or 0
        wider = _pricing_of(model)(shape, model, _WIDEST).pricing if dtype is None else None
        if wider is not None and size // wider.block_bytes == shape.blocks:
            source = f"{wider.source}, as the bytes of the pool and its blocks tell"
            return priced.price(replace(wider, source=source))
        text = (
            f"the server's pool of {format_bytes(size)} would hold {fitting:,} blocks of {model.name}, but has "
            f"{shape.blocks:,}: another model is served, or keys and values in another dtype; check --model, or "
            "give --kv-dtype"
        )
        if text not in self._notes:
            self._note(text)
            self._hints.append(text)
        return priced

    def compare_names(self, served: str | None) -> None:
        """Note once for each served name that another model is served than the one given."""
        model = self._facts.model
        if model is None or served is None or served in self._compared or len(self._compared) >= _MOST_NAMES:
            return
        self._compared.add(served)
        why = explain_difference(served, model, self.find_served(served), families=catalogue())
        if why is not None:
            text = f"the server serves `{shown_name(served)[:80]}`, but --model is {model.name}: {why}"
            self._note(text)
            self._hints.append(text)

    def find_served(self, name: str | None) -> ModelSpec | None:
        """Return the model of the catalogue that is served under a name."""
        if name is None:
            return None
        if name not in self._served:
            self._served[name] = None
            with suppress(UsageError):
                self._served[name] = find_model(name)
        return self._served[name]

    def _logged_kv_dtype(self) -> str | None:
        start = self._facts.startup
        told = start.kv_dtype if start is not None and start.engine is Engine.VLLM else None
        return None if told is None or told.value == "auto" else told.value

    def _as_started(self, model: ModelSpec) -> ModelSpec:
        """Return the model in the dtype that the log says it is served in: what ``auto`` stores keys and values in."""
        start = self._facts.startup
        told = start.dtype if start is not None and start.engine is Engine.VLLM else None
        return model if told is None else replace(model, dtype=find_dtype(told.value))

    def _explain_dtype(self, model: ModelSpec) -> str:
        """Return why the dtype of keys and values is an assumption, noting what settles it; empty when it is none.

        vLLM stores what the model is served in, and lowers float32 configs to 16 bits unless ``--dtype`` says float32.
        """
        start = self._facts.startup
        told = start is not None and start.engine is Engine.VLLM and start.dtype is not None
        if told or model.declared_kv_format is not None or not _is_lowered(model):
            return ""
        why = f"served in {model.dtype}, as vLLM does by default with a float32 config"
        self._note(
            f"{model.name} is taken to be {why}; the scrape does not tell (cache_dtype is auto): "
            "give --kv-dtype, or the start-up log with --log"
        )
        return why

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _ask_length(self, shape: PoolShape) -> PoolShape:
        """Ask the server's list of models once for the longest request; nothing is lost when it does not answer."""
        server, self._server = self._server, None
        if server is not None:
            with suppress(Error, ValueError, LookupError, TypeError, RecursionError):
                address = replace(parse_address(server, default_path="/v1/models"), path="/v1/models")
                length = json.loads(fetch(address, self._access).content)["data"][0]["max_model_len"]
                if isinstance(length, int) and 0 < length <= 2**40:
                    self._told_length = length
        if self._told_length is None:
            return shape
        return replace(shape, max_model_len=self._told_length, max_model_len_source="the server's list of models")


def _pricing_of(model: ModelSpec) -> Callable[[PoolShape, ModelSpec, str | None], PoolShape]:
    return price_by_model if keeps_every_token(model) else price_by_plan


def _is_lowered(model: ModelSpec) -> bool:
    """Tell whether the config names another dtype than the one the model is served in."""
    origin = next((one for one in model.provenance if one.name == "dtype"), None)
    if origin is None:
        return False
    try:
        named = find_dtype(origin.source.rpartition(" = ")[2])
    except UsageError:
        return False
    return named.served is not named


def _assume(shape: PoolShape, why: str) -> PoolShape:
    """Return a pool whose price rests on an assumption."""
    if shape.pricing is None:
        return shape
    source = f"{shape.pricing.source}; assumed: {why}"
    return shape.price(replace(shape.pricing, accuracy=Accuracy.MODELLED, source=source))


def _served_dtype(engine: VllmEngine) -> str | None:
    told = engine.cache_config.get("cache_dtype", "auto")
    return None if told in ("auto", "None", "") else told


def read_facts(options: dict[str, Any]) -> PoolFacts:
    """Read what the options say about the pool.

    Raises:
        UsageError: The price of a token was given twice.
    """
    given = [name for name in ("model", "bytes_per_token", "kv_memory") if options[name] is not None]
    if len(given) > 1:
        names = " and ".join("--" + name.replace("_", "-") for name in given)
        raise UsageError(f"what a token costs was given twice: {names}", hint="give one of them")
    if options["kv_dtype"] not in (None, "auto"):
        find_kv_format(options["kv_dtype"])  # a name that is not known is refused at once
    model = None
    if options["model"] is not None:
        from kvledger.sources.models import load_model

        model = load_model(options["model"])
    return PoolFacts(
        model=model,
        kv_dtype=options["kv_dtype"],
        bytes_per_token=options["bytes_per_token"],
        kv_memory=None if options["kv_memory"] is None else parse_bytes(options["kv_memory"]),
        max_model_len=options["max_model_len"],
        startup=None if options["log"] is None else read_startup(options["log"]),
    )


def read_background(options: dict[str, Any], facts: PoolFacts, complete: Completer) -> Background:
    """Read what the options say about pools of engines other than vLLM."""
    unified = options["kv_unified"]
    return Background(
        layout=Layout.UNKNOWN if unified is None else Layout.SHARED if unified else Layout.STRIPS,
        bytes_per_token=facts.bytes_per_token,
        kv_memory=facts.kv_memory,
        model=facts.model,
        kv_dtype=facts.kv_dtype,
        find_served=complete.find_served,
        startup=facts.startup,
    )
