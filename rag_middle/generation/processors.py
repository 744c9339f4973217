"""What runs inside transformers' generation loop: drawing tokens, combining branches, stopping.

A method that combines several forward passes per prompt (`Method.combine`) has one row of the batch
per *branch*; the branches of a prompt follow one another. They all get the combined logits, so they
go on with the same token and stay in step, beams included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    StoppingCriteria,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from rag_middle.errors import MethodConfigError, UnsupportedGenerationError
from rag_middle.generation.results import TokenLogProbability
from rag_middle.generation.text import Decode, first_stop
from rag_middle.methods import Method
from rag_middle.options import GenerationOptions

_LEAST = -9999.0  # JSON has no infinity: what cannot be generated


class FiniteCheck(LogitsProcessor):
    """Notes on the device whether scores were NaN or infinite; asked where it is waited for anyway.

    Greedy generation would go on with token 0 and say nothing.
    """

    def __init__(self, method: Method) -> None:
        self._method = method
        self._finite: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """`[rows, v]` scores, as they came."""
        # Of the largest: tokens that are ruled out have -inf, and NaN is larger than all.
        finite = scores.amax(dim=-1).isfinite().all()
        self._finite = finite if self._finite is None else self._finite & finite
        return scores

    def check(self) -> None:
        """Refuse what came so far.

        Raises:
            MethodConfigError: scores were NaN or infinite.
            UnsupportedGenerationError: they were, without any method.
        """
        if self._finite is not None and not self._finite.item():
            refuse_not_finite(self._method)


def refuse_not_finite(method: Method) -> NoReturn:
    """Refuse a request in which logits were NaN or infinite; raises as `FiniteCheck.check`."""
    formats = "the weights are damaged, or too large for the number format: load the model "
    formats += "with dtype='float32'"
    if method.is_neutral:
        raise UnsupportedGenerationError(
            f"The logits of this model are NaN or infinite: {formats}."
        )
    raise MethodConfigError(
        f"{method!r} leaves the logits of this model NaN or infinite. A parameter is too "
        "large or too close to 0 for the model's number format: choose a less extreme one. If "
        f"method='none' fails as well, {formats}."
    )


class LogProbabilities(LogitsProcessor):
    """Remembers how probable each row's next token was before one was chosen.

    Of the distribution that a temperature, `top_k` and `top_p` have not changed yet.
    """

    def __init__(self) -> None:
        self._rows: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """`[b, v]` scores, as they came."""
        self._rows = scores.float().log_softmax(dim=-1).clamp(min=_LEAST)
        return scores

    def of(self, row: int, token_id: int, alternatives: int) -> TokenLogProbability:
        """The token that a row got in the last step."""
        assert self._rows is not None, "a step was made"
        log_probabilities = self._rows[row]
        values, ids = log_probabilities.topk(min(alternatives, len(log_probabilities)))
        return TokenLogProbability(
            token_id=token_id,
            log_probability=float(log_probabilities[token_id]),
            alternatives=tuple(zip(ids.tolist(), values.tolist(), strict=True)),
        )


class NoRepeatedNGrams(LogitsProcessor):
    """Rules out tokens that would repeat `size` tokens of prompt or answer; padding is neither.

    `paddings` are the columns before each prompt, one number per row (of beams, per `k` rows).
    """

    def __init__(self, size: int, paddings: Sequence[int]) -> None:
        self._inner = NoRepeatNGramLogitsProcessor(size)
        self._paddings = torch.tensor(paddings, device="cpu")

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """From `[rows, v]` to `[rows, v]` with -inf for what is ruled out."""
        self._paddings = self._paddings.to(input_ids.device)  # once
        beams = len(input_ids) // len(self._paddings)
        columns = torch.arange(input_ids.shape[1], device=input_ids.device)
        padded = columns < self._paddings.repeat_interleave(beams)[:, None]
        # As a token after the vocabulary, which is ruled out in a column of its own.
        tokens = input_ids.masked_fill(padded, scores.shape[1])
        allowed: Tensor = self._inner(tokens, torch.nn.functional.pad(scores, (0, 1)))
        return allowed[:, :-1]


class Sampler(LogitsProcessor):
    """Draws each row's next token and leaves only that one possible.

    Greedy generation then takes it. Every row has its own source of random numbers, one number per
    token: the text of a seed does not depend on the rest of the batch, on the device's generator,
    on other threads, and the global generators are neither read nor moved.

    Args:
        seeds: one per row.
        options: of the request; `typical_p` chooses among what `top_k` and `top_p` leave.
    """

    def __init__(self, seeds: Sequence[int], options: GenerationOptions) -> None:
        self._sources = [Random(seed) for seed in seeds]
        self._temperature = options.temperature
        self._warpers: list[LogitsProcessor] = []
        if options.top_k > 0:
            self._warpers.append(TopKLogitsWarper(options.top_k))
        if options.top_p < 1:
            self._warpers.append(TopPLogitsWarper(options.top_p))
        if options.typical_p < 1:
            self._warpers.append(TypicalLogitsWarper(options.typical_p))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """From `[b, v]` logits to `[b, v]` with 0 for the drawn tokens and -inf elsewhere."""
        # Centred first: a tiny temperature must not turn the largest logit into infinity. One that
        # this number format rounds to 0 would make it no number, and a huge one all logits equal.
        temperature = min(max(self._temperature, torch.finfo(scores.dtype).tiny), 1e30)
        scores = (scores - scores.amax(dim=-1, keepdim=True)) / temperature
        for warper in self._warpers:
            scores = warper(input_ids, scores)
        drawn = self._draw(scores)
        return torch.full_like(scores, -torch.inf).scatter_(1, drawn[:, None], 0.0)

    def _draw(self, scores: Tensor) -> Tensor:
        """Token ids `[b]`, by inverting the cumulative distribution."""
        # float64: over a large vocabulary, float32 sums would lose the rare tokens.
        wide = torch.float32 if scores.device.type == "mps" else torch.float64
        cumulative = scores.to(wide).softmax(dim=-1).cumsum(dim=-1)
        total = cumulative[:, -1:]
        uniform = torch.tensor(
            [[source.random()] for source in self._sources], dtype=wide, device=scores.device
        )
        below_total = torch.nextafter(total, torch.zeros_like(total))
        # The first token whose cumulative probability exceeds the number: never an impossible one.
        number = torch.minimum(uniform * total, below_total)
        tokens = torch.searchsorted(cumulative, number, right=True)[:, 0]
        return tokens.clamp(max=scores.shape[1] - 1)  # logits that are not numbers


def combined(method: Method, logits: Tensor, branches: Sequence[int]) -> Tensor:
    """One row per prompt, `[b, ..., v]`, from one row per branch, float32 `[rows, ..., v]`.

    `branches` says how many rows each prompt has. Where the method combines nothing, the logits
    stay as they are.
    """
    if not method.combines:
        return logits
    prompts = [method.combine(rows.movedim(0, -2)) for rows in logits.split(list(branches))]
    return torch.stack(prompts)


@dataclass(eq=False)
class Combined(LogitsProcessor):
    """Gives the branches of a prompt the scores that come from all of them.

    Attributes:
        method: that combines.
        branches: of each prompt.
        beams: rows that each branch takes.
        inner: applied to the combined scores, one row per prompt and beam.
    """

    method: Method
    branches: Sequence[int]
    beams: int
    inner: Sequence[LogitsProcessor]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """From `[rows, v]` to `[rows, v]`."""
        by_branch = scores.float().view(-1, self.beams, scores.shape[-1])
        of_prompts = combined(self.method, by_branch, self.branches)  # [b, beams, v]
        first = input_ids.view(-1, self.beams, input_ids.shape[-1])[first_rows(self.branches)]
        flat = of_prompts.flatten(0, 1).log_softmax(dim=-1)
        for processor in self.inner:
            flat = processor(first.flatten(0, 1), flat)
        counts = torch.tensor(self.branches, device=scores.device)
        return flat.view_as(of_prompts).repeat_interleave(counts, dim=0).flatten(0, 1)


def first_rows(branches: Sequence[int]) -> list[int]:
    """Index of the first row of each prompt."""
    return list(accumulate(branches, initial=0))[:-1]


@dataclass(eq=False)
class BeamStops(StoppingCriteria):
    """Stop strings in a beam search, where rows are hypotheses that come, go and move."""

    decode: Decode
    stops: Sequence[str]
    width: int  # columns of the prompt

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Which hypotheses hold a stop string, boolean `[rows]`."""
        rows = input_ids[:, self.width :].tolist()
        done = [first_stop(self.decode(row), self.stops) is not None for row in rows]
        return torch.tensor(done, device=input_ids.device, dtype=torch.bool)
