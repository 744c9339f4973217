"""What the layers have to know of one step of the engine: where in it documents are read.

A step holds tokens of several requests, one behind the other: whole prompts, ends of prompts whose
beginning is cached, and generated tokens. Neither runner of vLLM tells its attention layers which
request a token is of, so its hook says it here (see `rag_middle_vllm.documents.runners`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

from torch import Tensor

from rag_middle.errors import RagMiddleError
from rag_middle_vllm.documents.admission import carried
from rag_middle_vllm.documents.methods import DocumentSpans, ServedMethod


class PartlyReadError(RagMiddleError, RuntimeError):
    """Documents come without what is before them: something let the scheduler split a prompt."""


class PromptRow(NamedTuple):
    """A prompt whose documents are read in this step.

    Attributes:
        start: its first token among those of the step.
        spans: its documents, counted from there.
    """

    start: int
    spans: DocumentSpans


class DocumentBatch:
    """The step that is running; shared by all layers of a model.

    Attributes:
        rows: prompts whose documents are read in it.
    """

    def __init__(self, methods: Mapping[str, ServedMethod]) -> None:
        self.rows: tuple[PromptRow, ...] = ()
        # The same documents come again with every generated token.
        self._spans = lru_cache(maxsize=4096)(
            lambda name, bounds: DocumentSpans.of_bounds(methods[name], bounds)
        )

    @contextmanager
    def step(
        self, params: Sequence[Any], computed: Any, scheduled: Any, positions: Tensor
    ) -> Iterator[None]:
        """For the time of a block, note where documents are read, and put tokens in their places.

        Args:
            params: `SamplingParams` of each request of the step, in its order.
            computed: how many tokens of each are in the cache.
            scheduled: how many of each follow in this step.
            positions: of all tokens, `[n]` or longer, as vLLM counts them; changed in place.

        Raises:
            PartlyReadError: a prompt comes in pieces that cut through its documents.
        """
        rows, start = [], 0
        for request, before, count in zip(params, computed, scheduled, strict=False):
            name_and_bounds = carried(request)
            if name_and_bounds is not None:
                spans = self._spans(*name_and_bounds)
                if self._place(spans, int(before), positions[start : start + int(count)]):
                    rows.append(PromptRow(start, spans))
            start += int(count)
        self.rows = tuple(rows)
        try:
            yield
        finally:
            self.rows = ()

    def _place(self, spans: DocumentSpans, computed: int, positions: Tensor) -> bool:
        """Set the positions of one request's tokens; whether its documents are among them."""
        end = spans.layout.length
        if computed >= end:
            if spans.later_shift:
                positions += spans.later_shift
            return False
        if computed > 0 or len(positions) < end:
            raise PartlyReadError(
                f"Tokens {computed} to {computed + len(positions)} of a prompt whose documents "
                f"end at {end} are read at once, and the method needs all of them: the engine's "
                "scheduler splits prompts or reuses parts of them. Please report the engine's "
                "options."
            )
        if spans.method.placement != "kept":
            positions[:end] = spans.positions.to(positions.device)
            positions[end:] += spans.later_shift
        return True
