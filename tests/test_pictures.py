"""The pictures of the documentation are what their scripts draw."""

import importlib.util
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def load(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_are_what_the_replay_gives():
    drawn = load("pictures").draw_all()
    committed = {path.name: path.read_text("utf-8") for path in (DOCS / "pictures").glob("*.svg")}
    assert sorted(drawn) == sorted(committed)
    assert [name for name in drawn if drawn[name] != committed[name]] == [], "run `make pictures`"


def test_every_photograph_is_one_that_the_script_takes_and_a_page_shows():
    pictures = load("page_pictures")
    taken = {f"{name}.png" for name in pictures.PICTURES}
    shown = {
        name for path in DOCS.rglob("*.md") for name in re.findall(r"pictures/([\w-]+\.png)", path.read_text("utf-8"))
    }
    assert taken == {path.name for path in (DOCS / "pictures").glob("*.png")} == shown
    assert {picture.page for picture in pictures.PICTURES.values()} == set(pictures.PAGES)
