"""Text to token ids, in pieces that read as one text and never turn into control tokens."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rag_middle.errors import PromptError
from rag_middle.plain_data import whole_characters

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer


# Written before a text whose first token must not gain a space, and taken off again. Vocabularies
# rarely have tokens that join the first one to what follows it; the others stand in where it fails.
_ANCHORS = ("☃", "a", ".", "\n")
_SPACE_SYMBOL = "▁"  # how SentencePiece vocabularies write a space
_RARE = "☃\u2c2f\U00012000\U0010fffd"  # no vocabulary has them all, but as bytes


class TextEncoder:
    """Encodes pieces of a prompt with one tokenizer.

    Two things differ from ``tokenizer.encode``. A piece that continues a text gains no leading
    space (SentencePiece tokenizers put one before every text they are given). And text can be
    encoded *inert*: ``"<|im_end|>"`` in a retrieved document becomes the tokens of those ten
    characters, never the token that ends a message.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids_by_text: dict[str, tuple[int, ...]] = {}
        self._control, self._unk_literal = _control_tokens(tokenizer)
        self._adds_space = self._plain("☃a") != self._plain("☃") + self._plain("a")

    def start_ids(self) -> list[int]:
        """What the tokenizer itself writes before a text: usually one BOS, or nothing."""
        bare, whole = self._plain("a"), _ids(self._tokenizer, "a", add_special_tokens=True)
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return whole[:start]
        return []

    def encode(self, pieces: Iterable[str], *, continues: bool) -> list[int]:
        """Ids of pieces of one text, each tokenised on its own; control tokens are recognised.

        `continues` says whether the first piece follows other text.
        """
        ids: list[int] = []
        for piece in filter(None, pieces):
            ids += self._encode_piece(piece, continues)
            continues = True
        return ids

    def encode_inert(self, text: str, *, continues: bool) -> list[int]:
        """Ids of a text, none of them a control token.

        Raises:
            PromptError: a single character of the text is a control token of this tokenizer.
        """
        return [token for _, ids in self._inert(text, continues) for token in ids]

    def inert_pieces(self, text: str) -> list[str]:
        """Cut ``text``, which continues other text, so that no piece encodes to a control token.

        A text that holds no control token stays whole. Raises as :meth:`encode_inert` does.
        """
        return [piece for piece, _ in self._inert(text, continues=True)]

    def control_ids(self, ids: Iterable[int]) -> list[int]:
        """The control tokens among ``ids``, in order."""
        return [token for token in ids if token in self._control]

    def is_near_control(self, text: str) -> bool:
        """Whether the text is part of a control token or holds one, in capitals or not."""
        folded = text.casefold()
        # A word holds none, or is one.
        holds = not text.isalnum() and any(x in folded for x in self._folded.split("\0") if x)
        return holds or folded in self._folded

    def has_control_characters(self, text: str) -> bool:
        """Whether the text holds what a control token is written with, plainly or escaped.

        Letters, digits, whitespace and the punctuation of sentences hold nothing of one, unless a
        control token is written with these alone.
        """
        marks = self._sentence_marks
        return marks is None or any(not (c.isalnum() or c.isspace() or c in marks) for c in {*text})

    @cached_property
    def _sentence_marks(self) -> frozenset[str] | None:
        """Punctuation that no control token has; None where some have no punctuation at all."""
        literals = [literal for literal in (*self._control.values(), self._unk_literal) if literal]
        if any(literal.isalnum() for literal in literals):
            return None
        return frozenset(".,;:!?'\"()-").difference(*literals)

    @cached_property
    def _folded(self) -> str:
        return "\0".join([*self._control.values(), self._unk_literal]).casefold()

    def _inert(self, text: str, continues: bool) -> list[tuple[str, list[int]]]:
        """Pieces of a text without control tokens, and the ids of each."""
        if not text:
            return []
        ids = self._encode_piece(text, continues)
        literals = {self._control[token] for token in ids if token in self._control}
        # Unknown characters give the same id as "<unk>" itself, so this one is sought in the text.
        if len(self._unk_literal) > 1 and self._unk_literal in text:
            literals.add(self._unk_literal)
        if not literals:
            return [(text, ids)]
        pieces: list[tuple[str, list[int]]] = []
        for part in _cut(text, literals):
            pieces += self._inert(part, continues or bool(pieces))
        return pieces

    def _encode_piece(self, text: str, continues: bool) -> list[int]:
        return self._continued(text) if continues else self._plain(text)

    def _plain(self, text: str) -> list[int]:
        # Remembered: anchors, and the texts of a chat template, come several times in a prompt.
        ids = self._ids_by_text.get(text)
        if ids is None:
            ids = self._ids_by_text[text] = tuple(
                _ids(
                    self._tokenizer,
                    whole_characters(text),
                    add_special_tokens=False,
                    split_special_tokens=False,
                )
            )
        return list(ids)

    def _continued(self, text: str) -> list[int]:
        """Ids of a text that follows other text."""
        alone = self._plain(text)
        if not self._adds_space:
            return alone
        for anchor in _ANCHORS:
            before, whole = self._plain(anchor), self._plain(anchor + text)
            after = whole[len(before) :]
            # The letters say that no character of the text has become part of the anchor.
            if whole[: len(before)] == before and self._letters(after) == self._letters(alone):
                return after
        return alone

    def _letters(self, ids: list[int]) -> str:
        """The text of ``ids`` without whitespace."""
        shown = self._tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return "".join("".join(shown).split())


def _ids(tokenizer: Tokenizer, text: str, **options: Any) -> list[int]:
    ids: list[int] = tokenizer.encode(text, verbose=False, **options)
    return ids


def _cut(text: str, literals: Iterable[str]) -> list[str]:
    """Cut ``text`` in the middle of every occurrence of a literal, else in halves."""
    if len(text) == 1:
        raise PromptError(
            f"The character {text!r} is a control token of this tokenizer and cannot be written as "
            "text. Remove it from the documents and messages."
        )
    cuts: set[int] = set()
    for literal in literals:
        start = text.find(literal)
        while start >= 0:
            end = start + len(literal)
            # A single character has no middle: it is cut out.
            cuts |= {start + len(literal) // 2} if len(literal) > 1 else {start, end}
            start = text.find(literal, start + 1)
    cuts -= {0, len(text)}
    edges = [0, *sorted(cuts or {len(text) // 2}), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def _control_tokens(tokenizer: Tokenizer) -> tuple[dict[int, str], str]:
    """Ids that text must not produce, with the literal of each; and the literal of the unknown.

    Special tokens, and added ones written with punctuation or symbols (``<think>``), as are tokens
    of the vocabulary that somebody has only named as special (``tokenizer.eos_token = "</s>"``).
    Added words and runs of whitespace are ordinary vocabulary. So is the token for unknown
    characters where unknown characters give it, since any text may need it, unless it doubles as
    the one that begins or ends texts.
    """
    unknown = tokenizer.unk_token_id
    doubles = unknown in (tokenizer.bos_token_id, tokenizer.eos_token_id)
    needed = unknown in _ids(tokenizer, _RARE, add_special_tokens=False)
    control: dict[int, str] = {}
    unknown_literal = ""
    for token_id, token in tokenizer.added_tokens_decoder.items():
        if token_id == unknown:
            unknown_literal = str(token.content)
        special = bool(token.special)
        if _is_control(token.content, special) and (token_id != unknown or doubles or not needed):
            control[token_id] = str(token.content)
    for token_id, literal in zip(
        tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True
    ):
        # A name without a token has the id of the unknown one, or none.
        if token_id not in (unknown, None) and _is_control(literal, special=False):
            control.setdefault(token_id, str(literal))
    return control, unknown_literal


def _is_control(literal: object, special: bool) -> bool:
    text = str(literal).replace(_SPACE_SYMBOL, " ")
    if text.isspace():
        return False
    has_symbols = any(unicodedata.category(character)[0] in "PS" for character in text)
    return special or (has_symbols and len(text) > 1)
