"""What a grid may set: the options of ``replay``, as they are declared there."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import click

from kvledger.cli.question import Question
from kvledger.cli.replay import command as replay_command
from kvledger.errors import UsageError
from kvledger.sweep.axis import Scalar
from kvledger.sweep.columns import Column, Kind
from kvledger.sweep.grid import Values
from kvledger.sweep.inputs import place_of

__all__ = ["SweepSettings"]

_OFF = {"quiet": True, "findings": "off", "layout": False}
_NOT_SWEPT = {"defaulted", "tries", "mitigations", "series", "force", *_OFF}
_FILES = ("trace", "content", "model")


class SweepSettings:
    """The settings by the names that a grid uses: those of the options, without dashes in front."""

    def __init__(self) -> None:
        swept = set(Question.__slots__) - _NOT_SWEPT
        self._options = {_name_of(option): option for option in replay_command.params if option.name in swept}

    @property
    def names(self) -> tuple[str, ...]:
        """Every setting, in the order of the options."""
        return tuple(self._options)

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        return replay_command.make_context("replay", ["a trace"], resilient_parsing=False).params

    def read(self, name: str, value: Scalar) -> Scalar:
        """Read a value as the command line would.

        Raises:
            UsageError: The option does not take it.
        """
        option = self._options[name]
        text = ("true" if value else "false") if isinstance(value, bool) else str(value)
        if name == "trace" and text == "-":
            raise UsageError("a sweep reads its traces several times, so none can be standard input")
        try:
            read: Scalar = option.type.convert(text, option, None)
        except click.BadParameter as error:
            raise UsageError(f"`{name}` cannot be `{text[:40]}`: {error.message}") from None
        return read

    def question(self, values: Values, *, folder: Path) -> Question:
        """Return what ``replay`` would be asked; files are looked for beside the grid, in ``folder``."""
        given: dict[str, Any] = {self._options[name].name or "": value for name, value in values.items()}
        for name in _FILES:
            text = given.get(name)
            if isinstance(text, str) and (place := place_of(text, folder=folder)) is not None:
                given[name] = str(place)
        asked: dict[str, Any] = {slot: self._defaults.get(slot) for slot in Question.__slots__}
        return Question(**asked | given | _OFF)

    def files(self, values: Values, *, folder: Path) -> dict[str, Path]:
        """Return the files that settings name, by what the grid calls them."""
        found = {}
        for name in _FILES:
            text = values.get(name)
            if isinstance(text, str) and (place := place_of(text, folder=folder)) is not None:
                found[text] = place
        return found

    @property
    def columns(self) -> tuple[Column, ...]:
        """One column for each setting but the policy, which every row has of its own."""
        return tuple(
            Column(
                name=name.replace("-", "_"),
                kind=_kind_of(option),
                meaning=f"`{name}`, as set, else the default of `replay`",
            )
            for name, option in self._options.items()
            if name != "policy"
        )

    def cells_of(self, values: Values) -> dict[str, Scalar | None]:
        """Return the settings of a cell as columns, with the defaults of what it does not set."""
        return {
            name.replace("-", "_"): values[name] if name in values else self._defaults[option.name or ""]
            for name, option in self._options.items()
            if name != "policy"
        }


def _name_of(option: click.Parameter) -> str:
    return (option.name or "") if isinstance(option, click.Argument) else option.opts[0].lstrip("-")


def _kind_of(option: click.Parameter) -> Kind:
    match option.type:
        case click.IntRange():
            return Kind.WHOLE
        case click.FloatRange() | click.types.FloatParamType():
            return Kind.NUMBER
        case click.types.BoolParamType():
            return Kind.FLAG
        case _:
            return Kind.TEXT
