"""Constrained decoding: only tokens that go on towards what was asked for stay possible.

The work is done by llguidance: it compiles a JSON schema or a grammar against the tokenizer's
vocabulary, and says at every step which tokens may come next. docs/tools.md says why this engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import copy
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import LogitsProcessor, PreTrainedTokenizerBase

from rag_middle.errors import MissingExtraError, UnsupportedGenerationError
from rag_middle.tools.engine import Engine, EngineError, Texts

_engines: WeakKeyDictionary[PreTrainedTokenizerBase, dict[Any, Engine]] = WeakKeyDictionary()
_lock = threading.Lock()


class Constraint:
    """A grammar, in the Lark dialect of llguidance, compiled for a vocabulary.

    The model's logits have `width` entries; `ends` are the tokens that end a text.

    Raises:
        MissingExtraError: llguidance is not installed.
        UnsupportedGenerationError: the tokenizer is no fast one, or the grammar or a schema in it
            is wrong or says what the engine cannot check.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, width: int, ends: Sequence[int], grammar: str
    ) -> None:
        for package in ("llguidance", "jsonschema"):
            if find_spec(package) is None:
                raise MissingExtraError("Constrained decoding", package=package, extra="structured")
        try:
            self._form = _engine(tokenizer, width, ends).compile(grammar)
        except EngineError as error:
            raise UnsupportedGenerationError(
                "response_format or the parameters of a tool hold what constrained decoding "
                f"cannot keep to: {error}. Leave it out of the schema and check the answer for "
                "it."
            ) from error

    def begin(self, texts: int) -> Texts:
        """So many texts from their beginning."""
        return self._form.begin(texts)


def _engine(tokenizer: PreTrainedTokenizerBase, width: int, ends: Sequence[int]) -> Engine:
    if not tokenizer.is_fast:
        raise UnsupportedGenerationError(
            f"Constrained decoding needs a fast tokenizer, and {type(tokenizer).__name__} is a "
            "slow one. Load it with use_fast=True, or convert it."
        )
    if not ends:
        raise UnsupportedGenerationError(
            "Answers of a given form end by a token, and there is none that ends answers. Pass "
            "eos_token_id."
        )
    key = (width, len(tokenizer), tuple(ends))
    with _lock:  # a vocabulary takes up to a second
        engines = _engines.setdefault(tokenizer, {})
        if key not in engines:
            backend = copy(tokenizer.backend_tokenizer)
            backend.no_padding()
            backend.no_truncation()
            beyond = max(width, len(tokenizer))
            engines[key] = Engine(backend.to_str(), beyond, list(ends))
        return engines[key]


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
        self._texts = constraint.begin(rows)
        self._read = width
        self._ended = ended or (lambda: [False] * rows)

    def follow(self, input_ids: Tensor) -> list[bool]:
        """Read the tokens that are new; say which texts have ended."""
        rows = input_ids[:, self._read :].tolist()
        new = [None if end else row for row, end in zip(rows, self._ended(), strict=True)]
        self._read = input_ids.shape[1]
        try:
            return self._texts.read(new)
        except EngineError as error:
            raise _failed(error) from error

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """From `[b, v]` to `[b, v]`, impossible tokens at -inf."""
        self.follow(input_ids)
        try:
            allowed = self._texts.allowed()
        except EngineError as error:
            raise _failed(error) from error
        width = scores.shape[1]
        everything = torch.ones(width, dtype=torch.bool, device="cpu")
        rows = [
            everything
            if row is None
            else torch.frombuffer(bytearray(row), dtype=torch.uint8)[:width] > 0
            for row in allowed
        ]
        mask = torch.stack(rows).to(scores.device)
        constrained = scores.masked_fill(~mask, -torch.inf)
        # Where the model's own config suppresses all that is left, the constraint counts.
        lost = constrained.isneginf().all(dim=-1, keepdim=True) & mask
        return constrained.masked_fill(lost, 0.0)


def _failed(error: EngineError) -> UnsupportedGenerationError:
    advice = "" if "eos_token_id" in str(error) else " Simplify the schema or the grammar."
    return UnsupportedGenerationError(f"Constrained decoding failed: {error}.{advice}")
