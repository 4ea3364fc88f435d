"""Which column means what: the mapping a user writes, and the names that are understood without one."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace

from kvledger.errors import TraceError, UsageError
from kvledger.replay.workload import HashKind
from kvledger.traces.times import TimeUnit, parse_unit, unit_of_name

__all__ = ["ColumnMapping", "can_guess", "guess_mapping", "parse_mapping", "suggest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMapping:
    """Names of the columns of a table; a dotted name reaches into JSON objects.

    ``arrival_unit`` None: decided by the column's name or, for dates, by its values. ``first_token`` and ``end`` hold
    observed moments in the unit and on the clock of ``arrival``.
    """

    prompt: str
    output: str
    arrival: str | None = None
    arrival_unit: TimeUnit | None = None
    max_tokens: str | None = None
    shared_prefix: str | None = None
    session: str | None = None
    hash_ids: str | None = None
    block_tokens: int = 16
    hash_kind: HashKind = HashKind.CHAIN
    samples: str | None = None
    beam_width: str | None = None
    first_token: str | None = None
    end: str | None = None

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise UsageError(f"`block_tokens={self.block_tokens}` is below 1")

    def names(self, *, identity: bool) -> tuple[str, ...]:
        """Columns to read, without those that only identity needs when it is not wanted."""
        wanted = [*self.needed, self.max_tokens, self.session]
        wanted += [self.first_token, self.end, self.samples, self.beam_width]
        if identity:
            wanted += [self.shared_prefix, self.hash_ids]
        return tuple(dict.fromkeys(name for name in wanted if name is not None))

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns without whose values a row is no request."""
        return tuple(name for name in (self.arrival, self.prompt, self.output) if name is not None)

    def limited_to(self, exists: Callable[[str], bool]) -> ColumnMapping:
        """Return the mapping without those optional columns that a table does not have."""

        def there(name: str | None) -> str | None:
            return name if name is not None and exists(name) else None

        return replace(
            self,
            max_tokens=there(self.max_tokens),
            shared_prefix=there(self.shared_prefix),
            session=there(self.session),
            hash_ids=there(self.hash_ids),
            samples=there(self.samples),
            beam_width=there(self.beam_width),
            first_token=there(self.first_token),
            end=there(self.end),
        )


_KEYS = tuple(f.name for f in fields(ColumnMapping) if f.name != "arrival_unit")


def suggest(word: str, known: Iterable[str], *, what: str) -> str:
    """Write the hint for an unknown name: the nearest known one, then the list."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    start = f"did you mean `{close[0]}`? " if close else ""
    return f"{start}{what}: {', '.join(names)}"


def parse_mapping(text: str) -> ColumnMapping:
    """Read ``arrival=COLUMN[:UNIT],prompt=COLUMN,output=COLUMN,...``.

    Further keys: ``max_tokens``, ``shared_prefix``, ``session``, ``hash_ids``, ``first_token``, ``end``, ``samples``
    and ``beam_width`` name columns;
    ``block_tokens=512`` and ``hash_kind=chain|content`` say what a hash id covers. Units: s, ms, us, ns, date.

    Raises:
        UsageError: A key is unknown or given twice, a value is missing, or ``prompt`` or ``output`` is not named.

    >>> parse_mapping("arrival=timestamp:ms,prompt=in,output=out").arrival_unit.value
    'ms'
    """
    given: dict[str, str] = {}
    for part in text.split(","):
        key, sign, value = (piece.strip() for piece in part.partition("="))
        if key not in _KEYS:
            raise UsageError(
                f"`{key[:40]}` is no part of a column mapping", hint=suggest(key, _KEYS, what="the parts are")
            )
        if not sign or not value:
            raise UsageError(f"`{key}` has no column", hint=f"write `{key}=NAME`")
        if key in given:
            raise UsageError(f"`{key}` is given twice")
        given[key] = value
    missing = [key for key in ("prompt", "output") if key not in given]
    if missing:
        raise UsageError(
            f"the column mapping does not say which column is `{missing[0]}`",
            hint="write --columns arrival=...,prompt=...,output=...",
        )
    return _built(given)


def _built(given: dict[str, str]) -> ColumnMapping:
    unit = None
    arrival = given.pop("arrival", None)
    if arrival is not None and ":" in arrival:
        arrival, _, unit_text = arrival.rpartition(":")
        unit = parse_unit(unit_text)
    block = given.pop("block_tokens", "16")
    if not block.isascii() or not block.isdigit() or len(block) > 9:
        raise UsageError(f"`block_tokens={block[:20]}` is not a whole number of tokens")
    kind = given.pop("hash_kind", HashKind.CHAIN.value)
    if kind not in list(HashKind):
        raise UsageError(f"`hash_kind={kind[:20]}` is unknown", hint="write chain or content")
    return ColumnMapping(
        prompt=given["prompt"],
        output=given["output"],
        arrival=arrival,
        arrival_unit=unit,
        max_tokens=given.get("max_tokens"),
        shared_prefix=given.get("shared_prefix"),
        session=given.get("session"),
        hash_ids=given.get("hash_ids"),
        samples=given.get("samples"),
        beam_width=given.get("beam_width"),
        block_tokens=int(block),
        hash_kind=HashKind(kind),
        first_token=given.get("first_token"),
        end=given.get("end"),
    )


# Durations such as nginx's `request_time` are no arrivals, whatever their unit.
_ARRIVAL = (
    "arrival",
    "arrived_at",
    "timestamp",
    "time",
    "start_time",
    "created_at",
    "arrival_time",
    "ts",
)
_PROMPT = (
    "prompt_tokens", "input_tokens", "input_length", "num_prefill_tokens", "context_tokens", "contexttokens",
    "prompt_length", "prompt_len", "input_len", "input_toks", "num_prompt_tokens", "request_tokens", "prefill_tokens",
)  # fmt: skip
_OUTPUT = (
    "output_tokens", "completion_tokens", "output_length", "num_decode_tokens", "generated_tokens", "generatedtokens",
    "response_tokens", "output_len", "output_toks", "decode_tokens", "num_output_tokens", "generation_tokens",
)  # fmt: skip
_LIMIT = ("max_tokens", "max_new_tokens", "max_completion_tokens", "max_output_tokens")
_SAMPLES = ("samples", "num_samples", "best_of", "num_return_sequences")
_BEAM_WIDTH = ("beam_width", "num_beams")
_SHARED = ("shared_prefix_tokens",)
_SESSION = ("session", "session_id", "conversation_id", "chat_id")


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def _find(names: Iterable[str], known: tuple[str, ...]) -> str | None:
    by_plain = {_plain(name): name for name in reversed(list(names))}
    return next((by_plain[word] for word in known if word in by_plain), None)


def _find_arrival(names: Iterable[str]) -> str | None:
    known = set(_ARRIVAL)
    for name in names:
        plain = _plain(name)
        if plain in known or (unit_of_name(plain) and plain.rpartition("_")[0] in known):
            return name
    return None


def _observed_name(names: Iterable[str], known: str) -> str | None:
    """Return the column of that name where arrivals are in seconds by name, too."""
    arrival = _find_arrival(names)
    return known if known in names and arrival is not None and unit_of_name(arrival) is TimeUnit.SECONDS else None


def can_guess(names: Iterable[str]) -> bool:
    """Whether a table with these columns can be read without being told what they mean."""
    names = tuple(names)
    return _find(names, _PROMPT) is not None and _find(names, _OUTPUT) is not None


def guess_mapping(names: Iterable[str], *, source: str) -> ColumnMapping:
    """Find the columns of a table by their usual names.

    Raises:
        TraceError: No column of prompt or output lengths is known by its name; found and expected names are listed.
    """
    names = tuple(names)
    prompt, output = _find(names, _PROMPT), _find(names, _OUTPUT)
    if prompt is None or output is None:
        found = ", ".join(f"`{name[:40]}`" for name in names[:20]) or "none"
        lacking = "prompt lengths" if prompt is None else "output lengths"
        raise TraceError(
            f"{source} is a table without a known column of {lacking}; its columns are {found}",
            hint="expected for example arrival_seconds, prompt_tokens, output_tokens; "
            "name yours with --columns arrival=...,prompt=...,output=...",
            columns=list(names[:100]),
        )
    return ColumnMapping(
        prompt=prompt,
        output=output,
        arrival=_find_arrival(names),
        max_tokens=_find(names, _LIMIT),
        shared_prefix=_find(names, _SHARED),
        session=_find(names, _SESSION),
        samples=_find(names, _SAMPLES),
        beam_width=_find(names, _BEAM_WIDTH),
        first_token=_observed_name(names, "first_token_seconds"),
        end=_observed_name(names, "end_seconds"),
    )
