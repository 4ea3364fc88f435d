"""What the metadata of an installation says."""

import pytest

from kvledger.sources import installation
from kvledger.sources.installation import Requirement, find_version, is_older, read_requirements


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("numpy>=2.0", Requirement(name="numpy", least="2.0", extra="")),
        ("huggingface-hub>=0.30; extra == 'hub'", Requirement(name="huggingface-hub", least="0.30", extra="hub")),
        ('torch>=2.6,<3 ; extra == "transformers"', Requirement(name="torch", least="2.6", extra="transformers")),
        ("click", Requirement(name="click", least="", extra="")),
        ("x>=1; python_version < '4' and extra == 'y'", Requirement(name="x", least="1", extra="y")),
    ],
)
def test_a_requirement_is_read_with_its_least_version_and_its_extra(monkeypatch, line, expected):
    monkeypatch.setattr(installation, "requires", lambda name: [line])
    assert read_requirements() == (expected,)


def test_what_is_not_installed_has_no_requirements_and_no_version():
    assert read_requirements("no-such-distribution") is None
    assert find_version("no-such-distribution") is None


@pytest.mark.parametrize(
    ("found", "least", "older"),
    [
        ("2.10.1", "2.9", False),
        ("2.9", "2.10", True),
        ("2.0", "2.0.0", False),
        ("2.13.0+cpu", "2.13", False),
        ("1!1.0", "2.0", True),
        ("unknown", "1.0", True),
    ],
)
def test_versions_are_compared_by_their_numbers(found, least, older):
    assert is_older(found, least) is older
