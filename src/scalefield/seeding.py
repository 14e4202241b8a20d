"""Random generators that depend on a seed and names only, never on the order of the work."""

from __future__ import annotations

import hashlib

import numpy as np


def seeded_rng(seed: int, *names: str) -> np.random.Generator:
    """A random generator that is a function of the seed and the names.

    Image names are typical names: each image then has its own random numbers, whatever the number
    of workers and the order of the images. Names need not be UTF-8.
    """
    key = hashlib.sha256("\0".join((str(seed), *names)).encode(errors="surrogateescape")).digest()
    return np.random.default_rng(int.from_bytes(key[:16], "little"))
