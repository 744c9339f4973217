"""Rows of training: token ids, and how much each token's loss weighs.

Three kinds of rows. Questions about documents, several to a row, in the reader's chat format, are
what it is for. Repeated random tokens and key-value listings teach it to copy, early on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerFast

from rag_middle.reader.facts import Entry, Fact, draw_entries
from rag_middle.reader.names import Split, code, name_word
from training.tokenizer import ASSISTANT, BOS, END, SYSTEM, USER
from training.wording import ASKING, FORMS, INSTRUCTIONS, PLAIN_FORM, filler

# The first tokens of title and value decide; what follows is copying on.
DECIDING, ANSWER, OTHER = 3.0, 1.0, 0.1
LISTED = 2.0  # values of key-value listings: not counted when a stage is judged
_OTHER_SHARE = 0.15  # of the tokens that are not answers, how many count at all

Piece = tuple[str, str]  # text, and its role: "text", "title", "value", "end", "listed"


@dataclass(frozen=True)
class Stage:
    """A step of the curriculum.

    Attributes:
        length: tokens of a row.
        documents: fewest and most documents of a prompt.
        facts: how many facts a document may have.
        copying: share of rows that only teach copying.
        plain: share of prompts without instructions, headings and other noise.
    """

    length: int
    documents: tuple[int, int]
    facts: tuple[int, ...] = (1,)
    copying: float = 0.2
    plain: float = 0.8
    questions: int = 6


class Rows:
    """Draws batches of one stage."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, seed: int | str, split: Split = "train"
    ) -> None:
        self._tokenizer = tokenizer
        self._split = split
        self._rng = random.Random(seed)
        self._special = {
            text: tokenizer.convert_tokens_to_ids(text)
            for text in (BOS, END, USER, SYSTEM, ASSISTANT)
        }

    def batch(self, stage: Stage, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Token ids ``[b, n]`` and weights ``[b, n]`` of predicting each token."""
        rng = self._rng
        ids = np.zeros((rows, stage.length), np.int64)
        weights = np.zeros((rows, stage.length), np.float32)
        pieces: list[list[Piece]] = []
        for row in range(rows):
            if rng.random() < stage.copying:
                if rng.random() < 0.5:
                    ids[row], weights[row] = self._repeats(stage.length)
                    pieces.append([])
                    continue
                pieces.append(_listing(rng, stage.length))
            else:
                pieces.append(_conversation(rng, stage, self._split))
        encoded = self._encode([text for row in pieces for text, _ in row])
        at = 0
        for row, its in enumerate(pieces):
            if not its:
                continue
            row_ids: list[int] = []
            row_weights: list[float] = []
            for _, role in its:
                tokens = encoded[at]
                at += 1
                row_ids += tokens
                row_weights += _weights(rng, role, len(tokens))
            length = min(len(row_ids), stage.length)
            ids[row, :length] = row_ids[:length]
            weights[row, :length] = row_weights[:length]
        return ids, weights

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        plain = [text for text in texts if text not in self._special]
        encoded = iter(self._tokenizer.backend_tokenizer.encode_batch(plain))
        return [
            [self._special[text]] if text in self._special else next(encoded).ids for text in texts
        ]

    def _repeats(self, length: int) -> tuple[list[int], list[float]]:
        """A run of random tokens, again and again: only the repeats count."""
        rng = self._rng
        period = rng.randrange(8, min(96, length // 2))
        block = [rng.randrange(6, len(self._tokenizer)) for _ in range(period)]
        ids = [self._special[BOS], *(block * (length // period + 1))][:length]
        return ids, [0.0] * (period + 2) + [0.5] * (length - period - 2)


def _weights(rng: random.Random, role: str, count: int) -> list[float]:
    if role in ("title", "value"):
        return [DECIDING] * min(2, count) + [ANSWER] * max(0, count - 2)
    if role == "listed":
        return [LISTED] * count
    if role == "end":
        return [ANSWER] * count
    return [OTHER / _OTHER_SHARE if rng.random() < _OTHER_SHARE else 0.0 for _ in range(count)]


def _conversation(rng: random.Random, stage: Stage, split: Split) -> list[Piece]:
    """Documents, then several questions about them, each about another fact."""
    plain = rng.random() < stage.plain
    entries = draw_entries(
        rng,
        split,
        rng.randint(*stage.documents),
        facts_each=stage.facts,
        same_attribute=rng.random() < 0.85,
    )
    instruction = "" if plain else rng.choice((rng.choice(INSTRUCTIONS), filler(rng, 12)))
    lead = [(instruction + rng.choice("\n ") * rng.randint(1, 2), "text")] if instruction else []
    form = PLAIN_FORM if plain else rng.choice(FORMS)
    documents = [(f"{_document(rng, entry, form)}\n\n", "text") for entry in entries]
    if not plain and rng.random() < 0.3:
        documents.append((rng.choice((rng.choice(INSTRUCTIONS), filler(rng, 8))) + "\n", "text"))
    in_system = not plain and rng.random() < 0.4
    asking = ASKING[0] if plain else rng.choice(ASKING)
    facts = rng.sample(
        [fact for entry in entries for fact in entry.facts],
        min(stage.questions, sum(len(entry.facts) for entry in entries)),
    )
    row: list[Piece] = [(BOS, "text"), (SYSTEM if in_system else USER, "text"), *lead, *documents]
    if in_system:
        row += [(END, "text"), (USER, "text")]
    for index, fact in enumerate(facts):
        if index:
            row.append((USER, "text"))
        row += _exchange(rng, fact, asking)
    return row


def _document(rng: random.Random, entry: Entry, form: str) -> str:
    return form.format(title=entry.title, text=entry.body, source=f"{rng.randrange(1000)}.md")


def _exchange(rng: random.Random, fact: Fact, asking: tuple[str, str]) -> list[Piece]:
    before, after = asking
    return [
        (f"{before}{fact.question(rng)}{after}", "text"),
        (END, "text"),
        (ASSISTANT, "text"),
        ("(", "end"),
        (f"{fact.title}", "title"),
        (")", "end"),
        (f" {fact.value}", "value"),
        (END, "end"),
    ]


def _listing(rng: random.Random, length: int) -> list[Piece]:
    """Keys and values, then several keys asked for."""
    count = rng.randint(3, max(3, length // 28))
    pairs = {}
    while len(pairs) < count:
        key = name_word(rng, "train") if rng.random() < 0.5 else code(rng)
        pairs[key] = name_word(rng, "train") if rng.random() < 0.3 else code(rng)
    row: list[Piece] = [(BOS, "text"), (USER, "text")]
    row += [(f"{key}: {value}\n", "text") for key, value in pairs.items()]
    for key in rng.sample(list(pairs), min(6, count)):
        row += [(f"{key}:", "text"), (f" {pairs[key]}", "listed"), ("\n", "text")]
    return row
