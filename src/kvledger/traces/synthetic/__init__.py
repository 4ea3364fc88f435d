"""Seeded workloads shaped to published figures: ``synthetic:NAME[,key=value...]``."""

from kvledger.traces.synthetic.catalogue import CATALOGUE
from kvledger.traces.synthetic.draw import draw, synthesise
from kvledger.traces.synthetic.recipe import PREFIX, Recipe, parse_recipe

__all__ = ["CATALOGUE", "PREFIX", "Recipe", "draw", "parse_recipe", "synthesise"]
