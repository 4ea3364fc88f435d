"""Code as users write it, under `mypy --strict`."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """Return (file, line, code) of every error that mypy finds in the examples of this folder."""
    api = pytest.importorskip("mypy.api")
    files = [FOLDER / "replay_as_a_user_writes_it.py", FOLDER / "mistakes.py"]
    out, err, code = api.run(
        ["--strict", "--no-incremental", "--follow-imports=silent", "--cache-dir", str(tmp_path_factory.mktemp("mypy")),
         "--config-file", "", "--explicit-package-bases", *map(str, files)]
    )  # fmt: skip
    assert code in (0, 1), err
    found = re.findall(r"(?m)^.*?([a-z_]+\.py):(\d+): error: .*\[([a-z-]+)\]$", out)
    assert found or "Success" in out, out
    return [(file, int(line), code) for file, line, code in found]


@pytest.mark.slow
def test_code_as_users_write_it_has_no_type_error(errors):
    assert [error for error in errors if error[0] == "replay_as_a_user_writes_it.py"] == []


@pytest.mark.slow
def test_mistakes_are_found_where_they_are_made(errors):
    expected = [
        (number, line.rpartition("# error: ")[2])
        for number, line in enumerate((FOLDER / "mistakes.py").read_text().splitlines(), 1)
        if "# error: " in line
    ]
    assert sorted((line, code) for file, line, code in errors if file == "mistakes.py") == expected


def test_the_package_says_that_it_is_typed():
    import kvledger

    assert (Path(kvledger.__file__).parent / "py.typed").is_file()
