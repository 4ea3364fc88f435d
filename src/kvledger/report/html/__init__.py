"""Saved results in, one offline page out."""

from kvledger.report.html.page import Language, render_page
from kvledger.report.html.reading import Run, read_run, run_of

__all__ = ["Language", "Run", "read_run", "render_page", "run_of"]
