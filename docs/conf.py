"""Sphinx settings. What can be read off the program is generated while a page is read; see ``generated.py``."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import generated
from pygments.lexers.special import TextLexer

import kvledger

project = "kvledger"
author = "The kvledger developers"
project_copyright = "The kvledger developers"
version = release = kvledger.__version__
language = "en"

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"kvledger {release}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["page.css"]


def _fill_in(_app: object, _page: str, source: list[str]) -> None:
    source[0] = generated.fill_in(source[0])


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", _fill_in)
    app.add_lexer("console", TextLexer)  # the usual one takes a `%` in a table for the prompt of a shell
    return {"parallel_read_safe": True}
