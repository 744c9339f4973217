"""Invented names that read like English ones: words that the reader was not trained on.

A word is a stem and an ending of English place and family names, such as "Har" and "wick". By a
hash of its letters one in sixteen was held out of the training.
"""

from __future__ import annotations

import hashlib
import random
from functools import cache

__all__ = ["code", "ending_of", "name_word"]

_STEMS = """
    Ab Ad Al Ald Alder Am An Ap Ar Arm Ash As At Ayl Bal Ban Bar Bark Barn Bart Bas Beck Bed Bel
    Ben Ber Berk Beth Bex Bin Birk Black Blake Bol Bor Bos Brad Brain Bram Bran Bray Brent Brid
    Brin Bris Brom Brook Brough Buck Bur Burn But Cal Cam Car Carl Cas Chal Chap Char Chat Chel
    Cher Chil Chip Clay Cleve Clif Clin Cob Col Colt Con Cor Cran Craw Cres Crom Cros Croy Cul
    Dag Dal Dan Dar Daw Dean Del Den Der Dev Dil Don Dor Drax Dray Dud Dun Dur East Ed El Elder
    Elm Ems En Ep Es Eve Ex Fair Fal Far Farn Fel Fen Fern Fin Fir Flax Flet For Fos Fox Fram
    Frin Ful Gains Gal Gan Gar Gil Glas Glen Glos God Gor Gran Gray Green Grim Grin Guil Had Hal
    Ham Hamp Han Har Hart Has Hat Haw Hay Haz Heath Hed Hel Hem Hen Her Hex High Hil Hin Hol
    Holm Hop Horn Hors Hoy Hud Hul Hun Hux Il In Ips Ir Is Ive Jar Jes Kel Kem Ken Kent Kes Kil
    Kin Kings Kir Kirk Knar Lam Lan Lang Lark Lat Law Led Leigh Lex Lin Lind Lit Lock Long Lud
    Lul Lum Lyd Lym Lyn Mal Man Mans Mar Mark Marl Mat May Mel Mer Mid Mil Min Mit Mor Mul Nant
    Nar Nel Nes New Nor North Nun Oak Old Ol Or Os Ot Ox Pad Pal Par Pem Pen Per Pet Pick Pil
    Pin Pres Prin Quen Rad Rams Raw Ray Red Ren Rich Rip Rock Rom Ros Roth Row Rug Run Rush Rye
    Sal San Sax Scar Sea Sed Sel Sev Shal Shef Shel Shep Sher Ship Shore Sid Sil Skel Sker Slan
    Sol Som South Staf Stam Stan Sten Stir Stoke Stone Stow Strat Stret Sud Sum Sun Sut Swan
    Swin Tal Tam Tan Tar Tat Taun Ted Tel Ten Thal Thet Thorn Thur Til Tin Tol Tor Tot Trent Tru
    Tun Twick Ul Up Ut Ux Ver Vin Wad Wake Wal Walt Wan War Ware Wat Way Wel Wem Wen Wes West
    Wet Whar Whit Wick Wil Win Wind Wing Wins Wit Wood Wool Wor Wych Wyn Yar Yel Yeo York
""".split()
_ENDINGS = """
    beck bell berg bourne bridge brook burn bury by castle cliffe combe cote cott croft dale
    dean den don fell field fleet fold ford gate grave grove ham hampton hill hithe hollow holme
    hope house hurst ing ington ker land ley light ling lock low mead mere minster moor more
    mouth ness over pool port ridge ring row sands sea set shaw side sley smith son stall stead
    sted stock stoke stone stow thorpe ton tree vale view wall ward water way well wick win wood
    worth wright yard
""".split()
_LONGEST = 10  # letters


@cache
def _words() -> tuple[str, ...]:
    """The held-out words, in alphabetical order."""
    words = {stem + ending for stem in _STEMS for ending in _ENDINGS if _reads_well(stem, ending)}
    return tuple(sorted(word for word in words if _is_held_out(word)))


def _is_held_out(word: str) -> bool:
    return hashlib.sha256(word.lower().encode()).digest()[0] % 16 == 1


def ending_of(word: str) -> str:
    """The ending that a word of a name is made with; the word where it is made otherwise."""
    return max((ending for ending in _ENDINGS if word.endswith(ending)), key=len, default=word)


def name_word(rng: random.Random) -> str:
    """An invented capitalised word, such as "Harwick"."""
    return rng.choice(_words())


def code(rng: random.Random) -> str:
    """Letters and digits as on a form or a machine, such as "KT-4071"."""
    letters = "".join(rng.choices("ABCDEFGHJKLMNPRSTUVWXYZ", k=2))
    return f"{letters}-{rng.randrange(1000, 10000)}"


def _reads_well(stem: str, ending: str) -> bool:
    doubled = (
        stem[-1] == ending[0] or stem.lower().endswith(ending) or ending.startswith(stem.lower())
    )
    return not doubled and len(stem) + len(ending) <= _LONGEST
