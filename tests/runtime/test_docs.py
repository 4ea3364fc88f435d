"""The examples of the page run where torch is installed."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "runtime.md"


def test_the_examples_of_the_page_run_and_print_what_it_says(capsys):
    names = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        exec(compile(code, PAGE.name, "exec"), names)
    assert capsys.readouterr().out.splitlines()[:3] == ["[8, 8]", "True 0 True", "5 0"]
