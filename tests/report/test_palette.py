"""The colours of the accounts stay apart for every kind of colour vision."""

from itertools import combinations

import numpy as np
import pytest

from kvledger.ledger import Account
from kvledger.report.palette import PALETTE

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear sRGB.
VISION = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_LMS = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
          [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
TO_OKLAB = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip


def linear(color):
    channel = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channel <= 0.04045, channel / 12.92, ((channel + 0.055) / 1.055) ** 2.4)


def oklab(rgb):
    return np.array(TO_OKLAB) @ np.cbrt(np.array(TO_LMS) @ np.clip(rgb, 0, 1))


@pytest.mark.parametrize("ground", ["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_any_two_accounts_are_apart(vision, ground):
    seen = {a: oklab(np.array(VISION[vision]) @ linear(getattr(shade, ground))) for a, shade in PALETTE.items()}
    nearest = min(np.linalg.norm(seen[a] - seen[b]) for a, b in combinations(seen, 2))
    assert nearest > 0.14


def test_every_account_has_a_colour():
    assert list(PALETTE) == list(Account)
