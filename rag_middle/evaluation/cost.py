"""What methods cost: time and memory next to the unmodified model, measured in one go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from rag_middle.evaluation.measurement import BASELINE, LabelledMethod
from rag_middle.generation import Generation, Prompt, RagMiddleModel

__all__ = ["Cost", "measure_costs"]

_NEW_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one prompt at a time, medians over prompts.

    Attributes:
        time_to_first_token: seconds.
        ms_per_token: milliseconds for each further token; None where no answer had one.
        peak_memory_mib: of the GPU, weights included; None on a CPU.
        first_token_ratio: to the unmodified model on the same prompt, one right after the other.
        token_ratio: the same for further tokens.
        memory_ratio: the same for memory.
    """

    time_to_first_token: float
    ms_per_token: float | None
    peak_memory_mib: float | None
    first_token_ratio: float
    token_ratio: float | None
    memory_ratio: float | None

    def answer_ratio(self, tokens: int, base: Cost) -> float:
        """Time of an answer of so many tokens, as a ratio to `base`'s."""
        return self._seconds(tokens) / base._seconds(tokens)

    def _seconds(self, tokens: int) -> float:
        return self.time_to_first_token + (tokens - 1) * (self.ms_per_token or 0.0) / 1000

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Sample:
    first: float
    each: float | None
    memory: float | None


def measure_costs(
    model: RagMiddleModel,
    methods: Sequence[LabelledMethod],
    prompts: Sequence[Prompt],
    **options: Any,
) -> dict[str, Cost]:
    """Cost of each method, the unmodified model among them.

    Every prompt is answered under each method in turn, so that whatever slows the machine slows
    all of them; the first prompt is answered once more beforehand, to warm up.

    Args:
        model: on the device that matters.
        methods: ``none`` among them.
        prompts: a few, of the usual length.
        options: of the prompts, such as ``template``.
    """
    samples: dict[str, list[_Sample]] = {each.label: [] for each in methods}
    for index, prompt in enumerate([prompts[0], *prompts]):
        for each in methods:
            sample = _sample(model, each, prompt, options)
            if index:
                samples[each.label].append(sample)
    base = samples[BASELINE]
    return {label: _cost(own, base) for label, own in samples.items()}


def _sample(
    model: RagMiddleModel, method: LabelledMethod, prompt: Prompt, options: dict[str, Any]
) -> _Sample:
    device = model.device
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    [answer] = model.batch(
        [prompt],
        method=method.method,
        max_new_tokens=_NEW_TOKENS,
        on_missing_documents="ignore",
        **options,
    )
    memory = torch.cuda.max_memory_allocated(device) / 2**20 if on_gpu else None
    return _Sample(answer.timings.tokenize + answer.timings.prefill, _each_token(answer), memory)


def _each_token(answer: Generation) -> float | None:
    further = answer.usage.completion_tokens - 1
    return answer.timings.decode / further if further > 0 and answer.timings.decode > 0 else None


def _cost(own: list[_Sample], base: list[_Sample]) -> Cost:
    pairs = list(zip(own, base, strict=True))
    each = [s.each for s in own if s.each is not None]
    memory = [s.memory for s in own if s.memory is not None]
    token_ratios = [s.each / b.each for s, b in pairs if s.each and b.each]
    memory_ratios = [s.memory / b.memory for s, b in pairs if s.memory and b.memory]
    return Cost(
        time_to_first_token=median(s.first for s in own),
        ms_per_token=1000 * median(each) if each else None,
        peak_memory_mib=max(memory) if memory else None,
        first_token_ratio=median(s.first / b.first for s, b in pairs),
        token_ratio=median(token_ratios) if token_ratios else None,
        memory_ratio=median(memory_ratios) if memory_ratios else None,
    )
