"""The page in a real browser without network: no request, no error, keyboard, accessibility, speed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .pages import write_pages

FRONTEND = Path(__file__).resolve().parents[3] / "frontend"


@pytest.mark.live
def test_the_pages_in_a_browser(tmp_path):
    if shutil.which("node") is None:
        pytest.skip("needs node")
    if not (FRONTEND / "node_modules" / "playwright-core").is_dir():
        pytest.skip("needs what `npm ci` installs in frontend/")
    browser = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    if not Path(browser).exists():
        pytest.skip(f"needs a browser: there is none at {browser}; set CHROMIUM")
    write_pages(tmp_path)
    done = subprocess.run(
        ["node", "--test", "test/page.test.mjs"],
        cwd=FRONTEND,
        env=os.environ | {"PAGES": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert "# skipped 0" in done.stdout
