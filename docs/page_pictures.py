"""Photograph the pages of the documentation: ``python docs/page_pictures.py`` writes ``docs/pictures/report-*.png``.

The pages are made by the commands that readers type. It needs Chromium, Node.js and what ``npm ci`` installs in
``frontend/``; ``make pictures`` does all of it, and draws the others with ``pictures.py``.
"""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "pictures"
REPLAY = (
    "replay synthetic:chat,requests=3000,rate=inf --model llama-3-8b --memory 20GiB --max-model-len 4096 "
    "--policy max,paged"
)
GRID = """\
[settings]
trace = "synthetic:chat,requests=600,rate=inf"
model = "llama-3-8b"
memory = "8GiB"
max-model-len = 4096

[grid]
policy = ["max", "paged"]
max-num-seqs = [32, 64, 128, 256]
block-size = [16, 64, 256]
"""
PAGES = {
    "demo": ("demo -q --html {page}",),
    "compared": (
        f"{REPLAY} --json -q -o {{folder}}/bf16.json",
        f"{REPLAY} --kv-dtype fp8 --json -q -o {{folder}}/fp8.json",
        "report {folder}/bf16.json {folder}/fp8.json -o {page}",
    ),
    "sweep": ("sweep {folder}/grid.toml -q --html {page}",),
    "size": ("size gpt-oss-20b --gpu H100-80GB --tp 2 --length 2000 --concurrency 50 -q --html {page}",),
}
"""The commands that make each page, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One view of a page: ``top`` is what the picture begins with, ``cursor`` where the pointer rests in a chart."""

    page: str
    width: int = 1180
    height: int = 800
    hash: str = ""
    top: str = ""
    cursor: float | None = None


PICTURES = {
    "report-answer": Picture(page="demo", height=850),
    "report-time": Picture(page="demo", top="#time", height=830, cursor=0.5),
    "report-map": Picture(page="demo", top="#pool", height=620, hash="#theme=dark"),
    "report-zh": Picture(page="demo", height=850, hash="#lang=zh"),
    "report-phone": Picture(page="demo", width=390),
    "report-compared": Picture(page="compared"),
    "report-sweep": Picture(page="sweep", top="#trade-0", height=560),
    "report-size": Picture(page="size", height=1060),
}
"""By the name of the picture."""


def make_pages(folder: Path) -> None:
    """Run the commands of all pages."""
    (folder / "grid.toml").write_text(GRID, "utf-8")
    for name in {picture.page for picture in PICTURES.values()}:
        for line in PAGES[name]:
            command = line.format(page=folder / f"{name}.html", folder=folder).split()
            subprocess.run([sys.executable, "-m", "kvledger", *command], check=True, stdout=subprocess.DEVNULL)


def photograph(folder: Path) -> None:
    """Open the pages in a browser and write the pictures."""
    jobs = [
        asdict(picture) | {"page": str(folder / f"{picture.page}.html"), "file": str(FOLDER / f"{name}.png")}
        for name, picture in PICTURES.items()
    ]
    subprocess.run(["node", "photograph.mjs"], cwd=ROOT / "frontend", input=json.dumps(jobs), text=True, check=True)


if __name__ == "__main__":
    with TemporaryDirectory() as made:
        make_pages(Path(made))
        photograph(Path(made))
