"""Fixtures that every test may use."""

from pathlib import Path

import pytest

from kvledger.sources.kernels import KernelCache

_SHARED = Path(__file__).resolve().parents[2] / "shared"

KernelCache().activate()


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of shared facts (traces, golden runs, cases), or skip when this clone has none beside it."""
    if not (_SHARED / "design.md").is_file():
        pytest.skip(
            "needs the folder `shared` beside the repository: traces, golden runs and cases are not in the package"
        )
    return _SHARED
