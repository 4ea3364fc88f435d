"""Class defaults: the values a ``config.json`` may leave out, because the model's config class supplies them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import msgspec

__all__ = ["find_class_defaults"]


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    source: str
    classes: dict[str, dict[str, int | float | bool | str]]


@cache
def _load_table() -> _Table:
    data = files("kvledger.model").joinpath("data", "class_defaults.json").read_bytes()
    return msgspec.json.decode(data, type=_Table)


def find_class_defaults(model_type: str) -> Mapping[str, object]:
    """Return the defaults of a config class (Transformers 5.24.0); empty for a type without one.

    >>> find_class_defaults("gemma3_text")["num_key_value_heads"]
    4
    """
    return _load_table().classes.get(model_type, {})
