"""Constrained decoding: only tokens that go on towards what was asked for stay possible.

The work is done by llguidance: it compiles a grammar, with JSON schemas in it, against the
tokenizer's vocabulary, and says at every step which tokens may come next. docs/tools.md says why
this engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerBase

from rag_middle.errors import UnsupportedGenerationError
from rag_middle.extras import require

#: Of what the engine builds for a pattern, such as `(.{1,50} ?){50}`; lists of thousands of values
#: and long texts stay far below these. A step of an ambiguous grammar takes time by the square of
#: its items: 50,000 are ten seconds.
_LIMITS: dict[str, Any] = {
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

_vocabularies: WeakKeyDictionary[PreTrainedTokenizerBase, dict[Any, Any]] = WeakKeyDictionary()
_lock = threading.Lock()


class Constraint:
    """A grammar compiled for a vocabulary.

    Args:
        tokenizer: a fast one.
        width: entries of the model's logits.
        ends: tokens that end a text.
        grammar: in the Lark dialect of llguidance.

    Raises:
        MissingExtraError: llguidance is not installed.
        UnsupportedGenerationError: the tokenizer is no fast one, or the grammar or a schema in it
            is wrong or says what the engine cannot check.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, width: int, ends: Sequence[int], grammar: str
    ) -> None:
        what = "Constrained decoding"
        engine = require("llguidance", package="llguidance", what=what, extra="structured")
        if not ends:
            raise UnsupportedGenerationError(
                "Answers of a given form end by a token, and there is none that ends answers. Pass "
                "eos_token_id."
            )
        self.ends = ends
        vocabulary = _vocabulary(tokenizer, max(width, len(tokenizer)), ends)
        try:
            written = engine.LLMatcher.grammar_from_lark(grammar + _EVERY_SPLIT)
            limits = engine.LLParserLimits(**_LIMITS)
            self._first = engine.LLMatcher(vocabulary, written, log_level=0, limits=limits)
            problem = _problem(self._first)
        except UnicodeEncodeError as error:  # half of a surrogate pair
            problem = f"it is no text: {error}"
        if problem:
            raise UnsupportedGenerationError(
                "response_format or the parameters of a tool hold what constrained decoding "
                f"cannot keep to: {problem}. Leave it out of the schema and check the answer for "
                "it."
            )

    def begin(self) -> Any:
        """The engine's matcher of one text, at its beginning."""
        return self._first.deep_copy()


class Constrained(LogitsProcessor):
    """Makes every token impossible that the constraint does not allow.

    Args:
        constraint: of all rows.
        rows: of the batch; each follows a text of its own.
        width: columns of the prompts.
        ended: says which texts have ended already, cancelled ones too: padding follows them.
    """

    def __init__(
        self,
        constraint: Constraint,
        rows: int,
        width: int,
        ended: Callable[[], Sequence[bool]] | None = None,
    ) -> None:
        self._ends = constraint.ends
        self._matchers = [constraint.begin() for _ in range(rows)]
        self._read = width
        self._ended = ended or (lambda: [False] * rows)

    def follow(self, input_ids: Tensor) -> list[bool]:
        """Read the tokens that are new; say which texts have ended."""
        rows = input_ids[:, self._read :].tolist()
        self._read = input_ids.shape[1]
        ended = list(self._ended())
        for index, matcher in enumerate(self._matchers):
            for token in () if ended[index] else rows[index]:
                if not matcher.is_stopped():  # a finished row is filled with padding
                    matcher.consume_token(token)
            _check(matcher)
            ended[index] = ended[index] or matcher.is_stopped()
        return ended

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """From `[b, v]` to `[b, v]`, impossible tokens at -inf."""
        width = scores.shape[1]
        mask = torch.ones(scores.shape, dtype=torch.bool, device="cpu")
        for index, has_ended in enumerate(self.follow(input_ids)):
            if not has_ended:
                mask[index] = self._allowed(self._matchers[index])[:width]
        mask = mask.to(scores.device)
        constrained = scores.masked_fill(~mask, -torch.inf)
        # Where the model's own config suppresses all that is left, the constraint counts.
        lost = constrained.isneginf().all(dim=-1, keepdim=True) & mask
        return constrained.masked_fill(lost, 0.0)

    def _allowed(self, matcher: Any) -> Tensor:
        """Which tokens may come next, boolean `[v or more]`."""
        allowed = torch.frombuffer(bytearray(matcher.compute_logit_bias()), dtype=torch.uint8) > 0
        _check(matcher)
        if not matcher.is_accepting():  # an end may be text as well
            allowed[list(self._ends)] = False
            if not allowed.any():
                raise UnsupportedGenerationError(
                    "Constrained decoding failed: the form can go on with no token but a token "
                    "that ends answers. Pass other ones as eos_token_id."
                )
        return allowed


def _vocabulary(tokenizer: PreTrainedTokenizerBase, entries: int, ends: Sequence[int]) -> Any:
    """The engine's own form of a tokenizer, which takes up to a second to make."""
    from llguidance.hf import from_tokenizer

    key = (entries, len(tokenizer), tuple(ends))
    with _lock:
        of_tokenizer = _vocabularies.setdefault(tokenizer, {})
        if key not in of_tokenizer:
            try:
                untyped: Any = tokenizer  # it refuses those that are not fast
                of_tokenizer[key] = from_tokenizer(untyped, n_vocab=entries, eos_token=[*ends])
            except ValueError as error:
                raise UnsupportedGenerationError(
                    "Constrained decoding needs a fast tokenizer with a byte-level or "
                    f"byte-fallback decoder, and of {type(tokenizer).__name__} the engine says: "
                    f"{error}. Load it with use_fast=True, or convert it."
                ) from error
        return of_tokenizer[key]


def _check(matcher: Any) -> None:
    if problem := _problem(matcher):
        raise UnsupportedGenerationError(
            f"Constrained decoding failed: {problem}. Simplify the form."
        )


def _problem(matcher: Any) -> str:
    if not matcher.is_error():
        return ""
    reason = str(matcher.get_error()).splitlines()[0]
    return next((words for begin, words in _ENDS.items() if reason.startswith(begin)), reason)
