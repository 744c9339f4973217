"""The engine of constrained decoding: llguidance, within its own limits."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

#: Of what the engine builds for a pattern, such as `(.{1,50} ?){50}`; lists of thousands of values
#: and long texts stay far below these. A step of an ambiguous grammar takes time by the square of
#: its items: 50,000 are ten seconds.
_LIMITS = {
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 10_000,
    "max_lexer_states": 20_000,
    "max_items_in_row": 4_000,  # four for each optional property of an object, which has 1,000
}
#: After every grammar: whatever goes on towards the form stays possible. The engine would else
#: write text without a choice as the tokenizer splits it: with control tokens where their names
#: stand there, with other characters where it normalises (NFC).
_EVERY_SPLIT = '\n%llguidance {"no_forcing": true}'
#: What the engine says where an answer cannot go on, and in other words.
_ENDS = {
    "NoExtensionBias": "nothing satisfies the form, or nothing that begins as this answer does",
    "Parser Error: Current row has": "the form has more than 4,000 ways to go on at one place: too "
    "many optional properties or alternatives",
}


class EngineError(Exception):
    """The engine refuses a form, or failed at it; says why."""


class Engine:
    """A vocabulary, and what compiles grammars for it.

    Args:
        tokenizer: the JSON of a fast tokenizer.
        entries: tokens.
        ends: those that end a text.

    Raises:
        EngineError: the engine cannot read the tokenizer.
    """

    def __init__(self, tokenizer: str, entries: int, ends: Sequence[int]) -> None:
        self._library = import_module("llguidance")
        self._ends = ends
        try:
            self._vocabulary = self._library.LLTokenizer(
                tokenizer, n_vocab=entries, eos_token=list(ends)
            )
        except ValueError as error:
            raise EngineError(
                "the engine reads tokenizers with byte-level or byte-fallback decoders, and "
                f"{error}"
            ) from error

    def compile(self, grammar: str) -> Form:
        """A grammar in the Lark dialect of llguidance.

        Raises:
            EngineError: it is wrong, or takes the engine too far.
        """
        try:
            written = self._library.LLMatcher.grammar_from_lark(grammar + _EVERY_SPLIT)
            limits = self._library.LLParserLimits(**_LIMITS)
            matcher = self._library.LLMatcher(self._vocabulary, written, log_level=0, limits=limits)
        except UnicodeEncodeError as error:  # half of a surrogate pair
            raise EngineError(f"it is no text: {error}") from error
        _check(matcher)
        return Form(matcher, self._ends)


class Form:
    """A compiled grammar."""

    def __init__(self, first: Any, ends: Sequence[int]) -> None:
        self._first = first
        self._ends = ends

    def begin(self, texts: int) -> Texts:
        """So many texts at their beginning."""
        return Texts([self._first.deep_copy() for _ in range(texts)], self._ends)


class Texts:
    """Texts that are written in one form."""

    def __init__(self, matchers: list[Any], ends: Sequence[int]) -> None:
        self._matchers: list[Any | None] = [*matchers]
        self._ends = ends

    def read(self, tokens: Sequence[Sequence[int] | None]) -> list[bool]:
        """Go on by each text's new tokens; says which texts have ended.

        Args:
            tokens: of each text; None of one that ends here, complete or not.

        Raises:
            EngineError: the engine failed.
        """
        for index, new in enumerate(tokens):
            matcher = self._matchers[index]
            if matcher is None or new is None:
                self._matchers[index] = None
                continue
            for token in new:
                if not matcher.is_stopped():  # a finished row is filled with padding
                    matcher.consume_token(token)
            _check(matcher)
        return [matcher is None or matcher.is_stopped() for matcher in self._matchers]

    def allowed(self) -> list[bytes | None]:
        """One byte per token for each text, 0 where it cannot come next; None of ended ones.

        Raises:
            EngineError: the engine failed.
        """
        return [
            None if matcher is None or matcher.is_stopped() else self._allowed(matcher)
            for matcher in self._matchers
        ]

    def _allowed(self, matcher: Any) -> bytes:
        mask = bytearray(matcher.compute_logit_bias())
        _check(matcher)  # before other texts take as long
        if not matcher.is_accepting():  # an end may be text as well
            for end in self._ends:
                mask[end] = 0
            if not any(mask):
                raise EngineError(
                    "the form can go on with no token but a token that ends answers. Pass other "
                    "ones as eos_token_id"
                )
        return bytes(mask)


def _check(matcher: Any) -> None:
    if matcher.is_error():
        said = str(matcher.get_error()).splitlines()[0]
        plain = (words for beginning, words in _ENDS.items() if said.startswith(beginning))
        raise EngineError(next(plain, said))
