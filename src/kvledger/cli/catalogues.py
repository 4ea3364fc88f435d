"""The lists behind ``size --list``: what is known by name."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from rich.console import RenderableType

from kvledger.model.catalogue import catalogue, find_model
from kvledger.model.gpus import gpus
from kvledger.report.catalogues import gpus_json, gpus_text, models_json, models_text

__all__ = ["Known", "known_json", "known_text"]


class Known(StrEnum):
    """What can be listed."""

    MODELS = "models"
    GPUS = "gpus"


def known_text(known: Known) -> RenderableType:
    """Return a list as a table."""
    match known:
        case Known.MODELS:
            return models_text([find_model(name) for name in catalogue()])
        case Known.GPUS:
            return gpus_text(list(gpus().values()))


def known_json(known: Known) -> dict[str, Any]:
    """Return a list as the object that ``--json`` prints."""
    match known:
        case Known.MODELS:
            return models_json([find_model(name) for name in catalogue()], list(catalogue().values()))
        case Known.GPUS:
            return gpus_json(list(gpus().values()))
