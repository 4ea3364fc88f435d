"""The pictures of the documentation are what their script draws."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_pictures_are_what_the_replay_gives():
    spec = importlib.util.spec_from_file_location("pictures", DOCS / "pictures.py")
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    drawn = pictures.draw_all()
    committed = {path.name: path.read_text("utf-8") for path in (DOCS / "pictures").glob("*.svg")}
    assert sorted(drawn) == sorted(committed)
    assert [name for name in drawn if drawn[name] != committed[name]] == [], "run `python docs/pictures.py`"
