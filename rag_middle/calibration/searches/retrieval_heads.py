"""DySCO: the model's retrieval heads, how many of them, and how strongly they act."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from rag_middle.attention import model_traits
from rag_middle.calibration.evaluator import Candidate
from rag_middle.calibration.objective import Criterion
from rag_middle.calibration.searches.base import (
    Search,
    SearchInputs,
    SearchResult,
    rank,
    require_list,
    require_numbers,
    require_whole,
)
from rag_middle.errors import CalibrationConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import DySCO, Method
from rag_middle.methods.dysco.detection import retrieval_heads

__all__ = ["RetrievalHeadSearch"]

#: Of detection: tokens of a random prompt at most, needles, and tokens of each.
_PROMPT, _NEEDLES, _NEEDLE = 512, 8, 8


@dataclass(frozen=True, kw_only=True)
class RetrievalHeadSearch(Search):
    """DySCO: numbers of the best retrieval heads, times strengths, times most tokens selected.

    Heads are detected on random tokens (`retrieval_heads`). The grid is ours.

    Attributes:
        counts: of heads; where fewer are found, those.
        strengths: that are tried.
        top_ks: most tokens that are selected.
    """

    method: ClassVar[str] = "dysco"
    #: Tokens attend otherwise one after the other, as they are generated.
    criterion: ClassVar[Criterion] = "generated_answer"

    counts: tuple[int, ...] = (4, 16)
    strengths: tuple[float, ...] = (1.5, 2.0, 3.0)
    top_ks: tuple[int, ...] = (64, 4096)

    def __post_init__(self) -> None:
        require_list(counts=self.counts, top_ks=self.top_ks)
        require_numbers(strengths=self.strengths)
        for name in ("counts", "top_ks"):
            for value in getattr(self, name):
                require_whole(1, **{name: value})
        for strength in self.strengths:  # refused now, not after an hour
            if DySCO(heads=((0, 0),), strength=strength).is_neutral:
                raise CalibrationConfigError("A strength of 1 changes nothing: leave it out.")

    def max_candidates(self, model: RagMiddleModel) -> int:
        return len(self.counts) * len(self.strengths) * len(self.top_ks)

    def typical_candidates(self, model: RagMiddleModel) -> Sequence[Method]:
        layers = model_traits(model.model).layers
        if not layers:
            raise CalibrationConfigError(
                "None of this model's layers has heads that can be reached."
            )
        return [DySCO(heads=((max(layers), 0),))]  # every token passes all layers twice

    def preparation_tokens(self, model: RagMiddleModel) -> int:
        return _NEEDLES * (_NEEDLE - 1) * (_prompt_tokens(model) + _NEEDLE)

    def run(self, inputs: SearchInputs) -> SearchResult:
        heads = retrieval_heads(
            inputs.model.model,
            max(self.counts),
            prompt_tokens=_prompt_tokens(inputs.model),
            needle_tokens=_NEEDLE,
            needles=_NEEDLES,
            seed=inputs.seed,
        )
        counts = dict.fromkeys(min(count, len(heads)) for count in self.counts)
        candidates = [
            Candidate(
                f"{count} heads, strength {strength:g}, {top_k} tokens",
                DySCO(heads=heads[:count], strength=strength, top_k=top_k),
            )
            for count, strength, top_k in product(counts, self.strengths, self.top_ks)
        ]
        return SearchResult(
            ranked=rank(candidates, inputs.evaluator),
            details={"retrieval_heads": [list(head) for head in heads]},
        )


def _prompt_tokens(model: RagMiddleModel) -> int:
    """Of a prompt that the needle's repetition fits behind."""
    return min(_PROMPT, (model.context_window or _PROMPT + _NEEDLE) - _NEEDLE)
