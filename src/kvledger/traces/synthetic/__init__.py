"""Seeded workloads shaped to published figures: ``synthetic:NAME[,key=value...]``."""

from kvledger.traces.synthetic.catalogue import CATALOGUE, PREFIX, Recipe, parse_recipe
from kvledger.traces.synthetic.draw import draw, synthesise

__all__ = ["CATALOGUE", "PREFIX", "Recipe", "draw", "parse_recipe", "synthesise"]
