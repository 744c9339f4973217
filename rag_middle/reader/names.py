"""Invented words and names, cut into splits that share none.

A word belongs to exactly one split, by a hash of its letters: whoever draws names for training
cannot meet one of the test's by accident, whatever the seeds.
"""

from __future__ import annotations

import hashlib
import random
from typing import Literal, get_args

__all__ = ["SPLITS", "Split", "code", "name_word", "split_of"]

Split = Literal["train", "validation", "test", "demo"]
SPLITS: tuple[Split, ...] = get_args(Split)

_ONSETS = "b br c ch d dr f fl g gr h j k kl l m n p pl qu r s sh st t tr v w y z".split()
_VOWELS = "a e i o u".split()
_CODAS = "n r s l x m d ng th".split()
# Of 16 residues three are held out, one for each of the other splits.
_SPLIT_OF_RESIDUE: dict[int, Split] = {0: "validation", 1: "test", 2: "demo"}


def split_of(word: str) -> Split:
    """The split an invented word belongs to; upper and lower case count as one."""
    digest = hashlib.sha256(word.lower().encode()).digest()
    return _SPLIT_OF_RESIDUE.get(digest[0] % 16, "train")


def name_word(rng: random.Random, split: Split) -> str:
    """An invented capitalised word of two or three syllables, such as "Grewo"."""
    while True:
        syllables = [_syllable(rng) for _ in range(rng.choice((2, 2, 2, 3)))]
        word = "".join(syllables).capitalize()
        if 4 <= len(word) <= 9 and split_of(word) == split:
            return word


def code(rng: random.Random) -> str:
    """Letters and digits as on a form or a machine, such as "KT-4071"."""
    letters = "".join(rng.choices("ABCDEFGHJKLMNPRSTUVWXYZ", k=2))
    return f"{letters}-{rng.randrange(1000, 10000)}"


def _syllable(rng: random.Random) -> str:
    coda = rng.choice(_CODAS) if rng.random() < 0.4 else ""
    return rng.choice(_ONSETS) + rng.choice(_VOWELS) + coda
