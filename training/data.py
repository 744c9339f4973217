"""Rows of training: token ids, and how much each token's loss weighs.

Four kinds of rows. Questions about documents, several to a row, in the reader's chat format, are
what it is for. Repeated random tokens teach it to copy. The other two teach it to bind a value to
what it belongs to, without which the reader copies titles and picks values at random: recall rows
are records of a key and a value with constant tokens between them, so that only the key, some
tokens back, tells one value from another; restated rows are facts, then the same facts in another
order and other words.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from transformers import PreTrainedTokenizerFast

from rag_middle.reader.facts import Entry, Fact, draw_entries
from rag_middle.reader.names import Split
from training.tokenizer import ASSISTANT, BOS, END, SYSTEM, USER
from training.wording import ASKING, FORMS, INSTRUCTIONS, PLAIN_FORM, filler

# The first tokens of a value decide; what follows is copying on. The weight tells what a token is.
VALUE, TITLE, RECALLED, ANSWER, COPIED, OTHER = 3.0, 2.5, 2.0, 1.0, 0.5, 0.1
_FIRST_PLAIN = 6  # ids below are special tokens
_OTHER_SHARE = 0.15  # of the tokens that are not answers, how many count at all

Piece = tuple[str, str]  # text, and its role: "text", "title", "value", "restated", "end"
_TOKENS_OF_A_FACT = 40  # about: stated twice


@dataclass(frozen=True)
class Stage:
    """A step of the curriculum.

    Attributes:
        length: tokens of a row.
        documents: fewest and most documents of a prompt.
        facts: how many facts a document may have.
        copying: share of rows that only teach copying and recall of random tokens.
        repeats: share of repeated runs among these.
        restated: share of rows of facts that are stated twice.
        phrasings: in how many ways a fact may be stated, at most.
        key_tokens: fewest and most tokens of a key in recall rows.
        between: most constant tokens before, between and after key and value there.
        alphabet: how many different tokens those rows use. Few make recall quick to learn.
        plain: share of prompts without instructions, headings and other noise.
        questions: how many questions follow the documents, at most.
        names: share of prompts that are about names and codes on purpose.
        judged_by: whether the stage ends by the share of values found in documents or of values
            recalled in the other rows,
        learnt_at: and the share at which it does.
    """

    length: int
    documents: tuple[int, int]
    facts: tuple[int, ...] = (1,)
    copying: float = 0.2
    repeats: float = 0.2
    restated: float = 0.0
    phrasings: int = 4
    key_tokens: tuple[int, int] = (1, 4)
    between: int = 2
    alphabet: int = 3000
    plain: float = 0.8
    questions: int = 6
    names: float = 0.5
    judged_by: Literal["right", "recalled"] = "right"
    learnt_at: float = 0.93


class Rows:
    """Draws batches of one stage."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, seed: int | str, split: Split = "train"
    ) -> None:
        self._tokenizer = tokenizer
        self._split = split
        self._rng = random.Random(seed)
        # The same order for every seed: an alphabet is the same tokens at every step.
        self._alphabet = list(range(_FIRST_PLAIN, len(tokenizer)))
        random.Random(0).shuffle(self._alphabet)
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
            drawn = rng.random()
            if drawn < stage.copying:
                make = self._repeats if rng.random() < stage.repeats else self._recall
                row_ids, row_weights = make(stage)
                ids[row, : len(row_ids)] = row_ids
                weights[row, : len(row_ids)] = row_weights
                pieces.append([])
            elif drawn < stage.copying + stage.restated:
                pieces.append(_restated(rng, stage, self._split))
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

    def _repeats(self, stage: Stage) -> tuple[list[int], list[float]]:
        """A run of random tokens, again and again: only the repeats count."""
        rng, length = self._rng, stage.length
        period = rng.randrange(8, min(64, length // 2))
        # Few tokens come again within a period: what follows one depends on those before it.
        pool = rng.sample(self._alphabet[: stage.alphabet], rng.randint(period // 3, period))
        ids = [self._special[BOS], *(rng.choices(pool, k=period) * (length // period + 1))][:length]
        return ids, [0.0] * (period + 4) + [COPIED] * (length - period - 4)

    def _recall(self, stage: Stage) -> tuple[list[int], list[float]]:
        """Records of key and value, then every key again in another order and other words."""
        rng = self._rng
        key, value = rng.randint(*stage.key_tokens), rng.randint(1, 3)
        # A token is either of keys, of values or of what is between them: nothing else matches.
        of_keys, of_values, fixed = (self._alphabet[i : stage.alphabet : 3] for i in range(3))
        stated = [rng.choices(fixed, k=rng.randint(0, stage.between)) for _ in range(3)]
        asked = [rng.choices(fixed, k=rng.randint(0, stage.between)) for _ in range(3)]
        if rng.random() < 0.4:
            asked = stated
        record = 2 * (key + value) + sum(map(len, (*stated, *asked)))
        most = min((stage.length - 1) // record, len(of_keys) - 1)
        count = rng.randint(min(4, most), min(most, 16))
        # Few different tokens, so that keys share some and one token does not tell them apart.
        pool = rng.sample(of_keys, min(len(of_keys), 2 * count))
        records: dict[tuple[int, ...], list[int]] = {}
        while len(records) < count:
            records[tuple(rng.choices(pool, k=key))] = rng.choices(of_values, k=value)
        ids, weights = [self._special[BOS]], [0.0]
        for k, v in records.items():
            ids += [*stated[0], *k, *stated[1], *v, *stated[2]]
        weights += [0.0] * (len(ids) - 1)
        for k in rng.sample(list(records), count):
            ids += [*asked[0], *k, *asked[1], *records[k], *asked[2]]
            weights += [0.0] * (len(asked[0]) + key + len(asked[1]))
            weights += [RECALLED] + [ANSWER] * (value - 1) + [0.0] * len(asked[2])
        return ids, weights


def _weights(rng: random.Random, role: str, count: int) -> list[float]:
    if role in ("title", "value"):
        deciding = TITLE if role == "title" else VALUE
        return [deciding] * min(2, count) + [ANSWER] * max(0, count - 2)
    if role == "restated":
        return [RECALLED] * min(2, count) + [ANSWER] * max(0, count - 2)
    if role == "end":
        return [ANSWER] * count
    return [OTHER / _OTHER_SHARE if rng.random() < _OTHER_SHARE else 0.0 for _ in range(count)]


def _restated(rng: random.Random, stage: Stage, split: Split) -> list[Piece]:
    """Facts as documents state them, then again in another order: their values count."""
    most = max(2, stage.length // _TOKENS_OF_A_FACT)
    entries = _entries(rng, stage, split, rng.randint(2, most), facts_each=(1,))
    titled = "({title}) " if rng.random() < 0.35 else ""
    row: list[Piece] = [(BOS, "text")]
    facts = [fact for entry in entries for fact in entry.facts]
    for fact in facts:
        before, after = _sentence(rng, fact, stage)
        row.append((f"{titled.format(title=fact.title)}{before} {fact.value}{after}\n\n", "text"))
    for fact in rng.sample(facts, len(facts)):
        before, after = _sentence(rng, fact, stage)
        if rng.random() < 0.7:
            before, after = rng.choice(("{}:", "{}:", "{}:", "({})")).format(fact.title), ""
        row += [(before, "text"), *_value(fact, "restated"), (f"{after}\n\n", "text")]
    return row


def _entries(
    rng: random.Random, stage: Stage, split: Split, count: int, *, facts_each: tuple[int, ...]
) -> list[Entry]:
    """Documents, more often than chance would have it with values that are names and codes.

    These begin with the same token, a space, so that they are told apart one token later than
    others, which takes longer to learn.
    """
    names = rng.random() < stage.names
    while True:
        same = rng.random() < 0.85
        entries = draw_entries(rng, split, count, facts_each=facts_each, same_attribute=same)
        if not names or entries[0].facts[0].value[0].isupper():
            return entries


def _sentence(rng: random.Random, fact: Fact, stage: Stage) -> tuple[str, str]:
    """What stands before and after the value in one of the ways to state the fact."""
    phrasing = rng.choice(fact.attribute.sentences[: stage.phrasings])
    before, after = phrasing.format(name=fact.title, value="\0").split(" \0")
    return before, after


def _conversation(rng: random.Random, stage: Stage, split: Split) -> list[Piece]:
    """Documents, then several questions about them, each about another fact."""
    plain = rng.random() < stage.plain
    entries = _entries(rng, stage, split, rng.randint(*stage.documents), facts_each=stage.facts)
    instruction = "" if plain else rng.choice((rng.choice(INSTRUCTIONS), filler(rng, 12)))
    lead = [(instruction + rng.choice("\n ") * rng.randint(1, 2), "text")] if instruction else []
    form = PLAIN_FORM if plain else rng.choice(FORMS)
    documents = [(f"{_document(rng, entry, form, stage)}\n\n", "text") for entry in entries]
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


def _document(rng: random.Random, entry: Entry, form: str, stage: Stage) -> str:
    stated = [(_sentence(rng, fact, stage), fact.value) for fact in entry.facts]
    body = " ".join(f"{before} {value}{after}" for (before, after), value in stated)
    return form.format(title=entry.title, text=body, source=f"{rng.randrange(1000)}.md")


def _exchange(rng: random.Random, fact: Fact, asking: tuple[str, str]) -> list[Piece]:
    before, after = asking
    return [
        (f"{before}{fact.question(rng)}{after}", "text"),
        (END, "text"),
        (ASSISTANT, "text"),
        (fact.title, "title"),
        (":", "end"),
        *_value(fact, "value"),
        (END, "end"),
    ]


def _value(fact: Fact, role: str) -> list[Piece]:
    """The value after a space, which is a token of its own before a capital and decides nothing."""
    if fact.value[0].isupper():
        return [(" ", "end"), (fact.value, role)]
    return [(f" {fact.value}", role)]
