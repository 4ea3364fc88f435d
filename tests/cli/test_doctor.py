"""`kvledger doctor`: what it finds in a whole installation, and in broken ones."""

import pytest

from kvledger.cli import examining
from kvledger.report.doctor import State
from kvledger.sources.installation import Requirement
from tests.cli.calling import call


def state_of(found, name):
    return next(check for check in found["checks"] if check["name"] == name)


def test_a_whole_installation_has_no_problem_and_runs_its_kernels(capsys):
    called = call(capsys, "doctor")
    assert called.code == 0
    assert "Nothing is wrong" in called.out
    assert "and ran in" in called.out


def test_json_says_the_same_with_a_version_of_every_package(capsys):
    found = call(capsys, "doctor", "--json", "--no-compile").json()
    assert found["schema"] == "kvledger/doctor"
    assert {"numba", "numpy", "prometheus-client"} <= set(found["packages"])
    assert None not in found["packages"].values()
    assert "kernels" not in [check["name"] for check in found["checks"]]
    assert {check["state"] for check in found["checks"]} <= set(State)


def test_what_is_missing_of_an_extra_is_told_with_the_command_that_installs_it(capsys, monkeypatch):
    asked = (Requirement(name="no-such-package", least="1.0", extra="nothing"),)
    monkeypatch.setattr(examining, "read_requirements", lambda: asked)
    assert "pip install 'kvledger[nothing]'" in call(capsys, "doctor", "--no-compile").out
    (extra,) = call(capsys, "doctor", "--no-compile", "--json").json()["extras"]
    assert extra == {"name": "nothing", "complete": False, "packages": {"no-such-package": None}}


@pytest.mark.parametrize(
    ("requirement", "told"),
    [
        (Requirement(name="no-such-package", least="1.0", extra=""), "no-such-package is missing"),
        (Requirement(name="numpy", least="999.0", extra=""), "but at least 999.0 is needed"),
    ],
)
def test_a_package_that_is_missing_or_too_old_is_a_problem(capsys, monkeypatch, requirement, told):
    monkeypatch.setattr(examining, "read_requirements", lambda: (requirement,))
    called = call(capsys, "doctor", "--no-compile")
    assert called.code == 1
    assert told in called.out
    assert "pip install . (in a clone" in called.out
    assert "1 problem found" in called.out


def test_a_tree_that_is_not_installed_is_told(capsys, monkeypatch):
    monkeypatch.setattr(examining, "read_requirements", lambda: None)
    assert "runs from a folder" in call(capsys, "doctor", "--no-compile").out


def test_a_cache_that_cannot_be_written_is_told_with_the_variable_to_set(capsys, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/proc/nowhere")
    check = state_of(call(capsys, "doctor", "--no-compile", "--json").json(), "kernel cache")
    assert check["state"] == "note"
    assert "NUMBA_CACHE_DIR" in check["advice"]


def test_the_home_is_shown_as_a_tilde(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    check = state_of(call(capsys, "doctor", "--no-compile", "--json").json(), "kernel cache")
    assert check["found"].startswith("~/c/kvledger/kernels-")
    assert check["found"].endswith("nothing yet")
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_fails_is_a_problem_and_not_a_crash(capsys, monkeypatch):
    def fail():
        raise RuntimeError("no\nsuch processor")

    monkeypatch.setattr(examining, "_replay_three", fail)
    called = call(capsys, "doctor", "--json")
    assert called.code == 1
    assert state_of(called.json(), "kernels")["found"] == "RuntimeError: no such processor"


def test_kernels_that_lose_a_request_are_a_problem(capsys, monkeypatch):
    monkeypatch.setattr(examining, "_replay_three", lambda: 2)
    assert state_of(call(capsys, "doctor", "--json").json(), "kernels")["state"] == "problem"


def test_variables_that_change_something_are_named_without_their_values(capsys, monkeypatch):
    monkeypatch.setenv("KVLEDGER_TOKEN", "secret")
    monkeypatch.setenv("NO_COLOR", "1")
    out = call(capsys, "doctor", "--no-compile").out
    assert "NO_COLOR" in out
    assert "KVLEDGER_TOKEN is set" in out
    assert "secret" not in out
