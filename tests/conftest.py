"""Fixtures that every test may use."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from kvledger.sources.kernels import KernelCache

_SHARED = Path(__file__).resolve().parents[2] / "shared"

KernelCache().activate()

# How long an example takes says something of the machine, not of the code. CI tries the same examples every time.
settings.register_profile("kvledger", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "kvledger")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of shared facts (traces, golden runs, cases), or skip when this clone has none beside it."""
    if not (_SHARED / "design.md").is_file():
        pytest.skip(
            "needs the folder `shared` beside the repository: traces, golden runs and cases are not in the package"
        )
    return _SHARED
