"""The committed script and style are what the sources build."""

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FRONTEND = ROOT / "frontend"
ASSETS = ROOT / "src" / "kvledger" / "report" / "html" / "assets"
needs_sources = pytest.mark.skipif(not FRONTEND.is_dir(), reason="needs the folder `frontend` of the repository")


def digest_of_sources():
    digest = hashlib.sha256()
    for name in [
        "build.mjs",
        "package-lock.json",
        *sorted(f"src/{path.name}" for path in (FRONTEND / "src").iterdir()),
    ]:
        digest.update(f"{name}\n".encode() + (FRONTEND / name).read_bytes())
    return digest.hexdigest()


@needs_sources
@pytest.mark.parametrize("name", ["page.js", "page.css"])
def test_the_bundle_was_built_from_these_sources(name):
    first = (ASSETS / name).read_text("utf-8").splitlines()[0]
    assert first == f"/*! sources {digest_of_sources()} */", "run `make frontend`"


@needs_sources
def test_building_again_gives_the_same_bundle(tmp_path):
    if shutil.which("node") is None:
        pytest.skip("needs node")
    if not (FRONTEND / "node_modules" / "esbuild").is_dir():
        pytest.skip("needs what `npm ci` installs in frontend/")
    subprocess.run(["node", "build.mjs", str(tmp_path)], cwd=FRONTEND, check=True)
    for name in ("page.js", "page.css"):
        assert (tmp_path / name).read_bytes() == (ASSETS / name).read_bytes(), "run `make frontend`"


def test_neither_can_be_closed_or_fetch_anything():
    script, style = ((ASSETS / name).read_text("utf-8") for name in ("page.js", "page.css"))
    for text in (script, style):
        assert not re.search(r"</(script|style)|<!--", text, re.IGNORECASE)
    assert "@import" not in style
    assert not re.search(r"url\((?!#)", style)
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|EventSource|sendBeacon|importScripts|eval)\b", script)
    assert "innerHTML" not in script.replace("legend", "") or script.count("innerHTML") <= 2  # uPlot's own legend
    assert len(script) + len(style) < 150_000
