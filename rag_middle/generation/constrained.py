"""Constrained decoding: only tokens that go on towards what was asked for stay possible.

The work is done by llguidance: it compiles a JSON schema or a grammar against the tokenizer's
vocabulary, and says at every step which tokens may come next. docs/tools.md says why this engine.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerBase

from rag_middle.errors import MissingExtraError, UnsupportedGenerationError
from rag_middle.wording import Argument

__all__ = ["Constrained", "Constraint"]

#: Of what the engine builds for a pattern. Under its own, `(a{500}){500}` takes a quarter of a
#: second at every token; lists of thousands of values and long texts stay far below these. A step
#: of an ambiguous grammar takes time by the square of its items: 50,000 are ten seconds.
_LIMITS = {
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 10_000,
    "max_lexer_states": 20_000,
}

_vocabularies: WeakKeyDictionary[PreTrainedTokenizerBase, dict[Any, Any]] = WeakKeyDictionary()
_lock = threading.Lock()


class Constraint:
    """A grammar compiled for a vocabulary.

    Args:
        tokenizer: of the model; a fast one.
        width: entries of the model's logits.
        ends: tokens that end a text.
        grammar: in the Lark dialect of llguidance.

    Attributes:
        ends: as given.

    Raises:
        MissingExtraError: llguidance is not installed.
        UnsupportedGenerationError: the tokenizer is no fast one, or the grammar or a schema in it
            is wrong or says what the engine cannot check.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, width: int, ends: Sequence[int], grammar: str
    ) -> None:
        try:
            self._engine = import_module("llguidance")
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                "Constrained decoding", package="llguidance", extra="structured"
            ) from error
        self.ends = list(ends)
        self._vocabulary = self._compiled_vocabulary(tokenizer, width, ends)
        self._first = self._compiled(grammar)

    def matcher(self) -> Any:
        """What follows one text from its beginning."""
        return self._first.deep_copy()

    def _compiled(self, grammar: str) -> Any:
        """A matcher at the beginning of a text."""
        try:
            written = self._engine.LLMatcher.grammar_from_lark(grammar)
            limits = self._engine.LLParserLimits(**_LIMITS)
            matcher = self._engine.LLMatcher(self._vocabulary, written, log_level=0, limits=limits)
        except UnicodeEncodeError as error:  # half of a surrogate pair
            raise UnsupportedGenerationError(
                Argument("response_format"), f" or the name of a tool is no text: {error}."
            ) from error
        if not matcher.is_error():
            return matcher
        reason = matcher.get_error()
        raise UnsupportedGenerationError(
            Argument("response_format"),
            " or the parameters of a tool hold what constrained decoding cannot keep to: "
            f"{reason.splitlines()[0]}. Leave it out of the schema and check the answer for it.",
        )

    def _compiled_vocabulary(
        self, tokenizer: PreTrainedTokenizerBase, width: int, ends: Sequence[int]
    ) -> Any:
        if not tokenizer.is_fast:
            raise UnsupportedGenerationError(
                f"Constrained decoding needs a fast tokenizer, and {type(tokenizer).__name__} is a "
                "slow one. Load it with use_fast=True, or convert it."
            )
        key = (width, len(tokenizer), tuple(ends))
        with _lock:  # compiling takes up to a second
            compiled = _vocabularies.setdefault(tokenizer, {})
            if key not in compiled:
                compiled[key] = import_module("llguidance.hf").from_tokenizer(
                    tokenizer,
                    n_vocab=(beyond := max(width, len(tokenizer))) + 1,
                    # The engine wants an end token. Where there is none, no logit stands for it.
                    eos_token=list(ends) or beyond,
                )
            return compiled[key]


class Constrained(LogitsProcessor):
    """Makes every token impossible that the constraint does not allow.

    Args:
        constraint: of all rows.
        rows: of the batch; each follows a text of its own.
        width: columns of the prompts.
    """

    def __init__(self, constraint: Constraint, rows: int, width: int) -> None:
        self._matchers = [constraint.matcher() for _ in range(rows)]
        self._ends = constraint.ends
        self._read = width

    def follow(self, input_ids: Tensor) -> list[bool]:
        """Read the tokens that are new; say which texts are complete and cannot go on."""
        new = input_ids[:, self._read :].tolist()
        self._read = input_ids.shape[1]
        for matcher, tokens in zip(self._matchers, new, strict=True):
            for token in tokens:
                if not matcher.is_stopped():  # a finished row is filled with padding
                    matcher.consume_token(token)
            _check(matcher)
        return [matcher.is_stopped() for matcher in self._matchers]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """From `[b, v]` to `[b, v]`, impossible tokens at -inf."""
        stopped = self.follow(input_ids)
        rows = []
        for matcher, is_stopped in zip(self._matchers, stopped, strict=True):
            if is_stopped:
                rows.append(torch.ones(scores.shape[1], dtype=torch.bool))
                continue
            # One byte per token, 0 where it is not allowed.
            bias = torch.frombuffer(bytearray(matcher.compute_logit_bias()), dtype=torch.uint8)
            _check(matcher)  # before other rows take as long
            allowed = bias[: scores.shape[1]] > 0
            if not matcher.is_accepting():  # an end may be text as well
                allowed[self._ends] = False
                if not allowed.any():
                    raise UnsupportedGenerationError(
                        "Constrained decoding failed: the form needs a token that ends answers. "
                        "Leave such text out of it, or such tokens out of ",
                        Argument("eos_token_id"),
                        " and the model's generation config.",
                    )
            rows.append(allowed)
        mask = torch.stack(rows).to(scores.device)
        constrained = scores.masked_fill(~mask, -torch.inf)
        # Where the model's own config suppresses all that is left, the constraint counts.
        lost = constrained.isneginf().all(dim=-1, keepdim=True) & mask
        return constrained.masked_fill(lost, 0.0)


def _check(matcher: Any) -> None:
    if matcher.is_error():
        raise UnsupportedGenerationError(
            f"Constrained decoding failed: {matcher.get_error().splitlines()[0]}. "
            "Simplify the schema or the grammar."
        )
