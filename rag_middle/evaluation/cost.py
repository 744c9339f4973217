"""What methods cost: time and memory next to the unmodified model, measured in one go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from rag_middle.evaluation.measurement import BASELINE, LabelledMethod
from rag_middle.generation import Prompt, RagMiddleModel

_NEW_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one prompt at a time, medians over prompts.

    Attributes:
        time_to_first_token: seconds.
        ms_per_token: of a decode step, in milliseconds; None where no answer had a second token.
        peak_memory_mib: of the GPU, weights included; None on a CPU.
        first_token_ratio: to the unmodified model on the same prompt, one right after the other.
        token_ratio: the same for decode steps.
        memory_ratio: the same for memory.
    """

    time_to_first_token: float
    ms_per_token: float | None
    peak_memory_mib: float | None
    first_token_ratio: float
    token_ratio: float | None
    memory_ratio: float | None

    def answer_seconds(self, tokens: int) -> float:
        """Time of an answer of so many tokens."""
        return self.time_to_first_token + (tokens - 1) * (self.ms_per_token or 0.0) / 1000


@dataclass(frozen=True, slots=True)
class _Sample:
    first_token: float  # seconds
    decode_step: float | None  # seconds
    memory: float | None  # MiB


def measure_costs(
    model: RagMiddleModel,
    methods: Sequence[LabelledMethod],
    prompts: Sequence[Prompt],
    **options: Any,
) -> dict[str, Cost]:
    """Cost of each method, the unmodified model among them.

    Every prompt is answered under each method in turn, so that whatever slows the machine slows
    all of them; on a GPU the first prompt is answered once more beforehand, to warm up.

    Args:
        model: on the device that matters.
        methods: ``none`` among them.
        prompts: a few, of the usual length.
        options: of the prompts, such as ``template``.
    """
    samples: dict[str, list[_Sample]] = {method.label: [] for method in methods}
    if model.device.type == "cuda":
        for method in methods:
            _sample(model, method, prompts[0], options)
    for prompt in prompts:
        for method in methods:
            samples[method.label].append(_sample(model, method, prompt, options))
    return {label: _cost(own, samples[BASELINE]) for label, own in samples.items()}


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
    timings, steps = answer.timings, answer.usage.completion_tokens - 1
    return _Sample(
        first_token=timings.tokenize + timings.prefill,
        decode_step=timings.decode / steps if steps > 0 and timings.decode > 0 else None,
        memory=torch.cuda.max_memory_allocated(device) / 2**20 if on_gpu else None,
    )


def _cost(own: list[_Sample], base: list[_Sample]) -> Cost:
    pairs = list(zip(own, base, strict=True))
    step = _median(sample.decode_step for sample in own)
    memory = [sample.memory for sample in own if sample.memory]
    return Cost(
        time_to_first_token=median(sample.first_token for sample in own),
        ms_per_token=None if step is None else 1000 * step,
        peak_memory_mib=max(memory, default=None),
        first_token_ratio=median(a.first_token / b.first_token for a, b in pairs),
        token_ratio=_median(
            a.decode_step / b.decode_step for a, b in pairs if a.decode_step and b.decode_step
        ),
        memory_ratio=_median(a.memory / b.memory for a, b in pairs if a.memory and b.memory),
    )


def _median(values: Iterable[float | None]) -> float | None:
    """Of those that were measured; None where none was."""
    measured = [value for value in values if value is not None]
    return median(measured) if measured else None
