"""Ms-PoE: the range of ratios, and the first layer that has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from rag_middle.calibration.evaluator import Candidate
from rag_middle.calibration.objective import Criterion
from rag_middle.calibration.searches.base import (
    Search,
    SearchInputs,
    SearchResult,
    num_layers,
    rank,
    require_list,
    require_numbers,
)
from rag_middle.errors import CalibrationConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import Method, MsPoE

__all__ = ["RatioSearch"]


@dataclass(frozen=True, kw_only=True)
class RatioSearch(Search):
    """Ms-PoE: ratio ranges and first layers, under the paper's head rule and the authors' code's.

    Attributes:
        ranges: ``(min_ratio, max_ratio)`` that are tried.
        first_layers: that are tried; those a model does not have are left out.
        head_rules: ``"rank"``: the paper's text, ``"code"``: the authors' code.
    """

    method: ClassVar[str] = "ms_poe"
    criterion: ClassVar[Criterion] = "log_likelihood"

    ranges: tuple[tuple[float, float], ...] = (
        (1.0, 1.2),
        (1.0, 1.5),
        (1.0, 1.8),
        (1.0, 2.0),
        (1.2, 1.5),
        (1.2, 1.8),
        (1.2, 2.2),
        (1.5, 2.0),
    )
    first_layers: tuple[int, ...] = (0, 1, 2, 4, 8)
    head_rules: tuple[str, ...] = ("rank", "code")

    def __post_init__(self) -> None:
        require_list(ranges=self.ranges, head_rules=self.head_rules)
        require_numbers(first_layers=self.first_layers)
        for index, ratios in enumerate(self.ranges):
            require_numbers(**{f"ranges[{index}]": ratios})
            if len(ratios) != 2:
                raise CalibrationConfigError(
                    f"ranges must hold pairs of smallest and largest ratio, got {list(ratios)}."
                )
        for (low, high), first in product(self.ranges, self.first_layers):
            MsPoE(min_ratio=low, max_ratio=high, first_layer=first)  # refused now, not in an hour
        for rule in self.head_rules:
            if rule not in ("rank", "code"):
                raise CalibrationConfigError(f"head_rules are 'rank' and 'code', got {rule!r}.")

    def max_candidates(self, model: RagMiddleModel) -> int:
        return len(self.ranges) * len(self._first_layers(model)) * len(self.head_rules)

    def typical_candidates(self, model: RagMiddleModel) -> Sequence[Method]:
        [(low, high), *_], first = self.ranges, min(self._first_layers(model))
        return [MsPoE(min_ratio=low, max_ratio=high, first_layer=first)]

    def run(self, inputs: SearchInputs) -> SearchResult:
        candidates = [
            Candidate(
                f"{low:g}-{high:g} from layer {first}, {rule}",
                MsPoE(
                    min_ratio=low,
                    max_ratio=high,
                    first_layer=first,
                    reference_code=rule == "code",
                ),
            )
            for (low, high), first, rule in product(
                self.ranges, self._first_layers(inputs.model), self.head_rules
            )
        ]
        return SearchResult(ranked=rank(candidates, inputs.evaluator))

    def _first_layers(self, model: RagMiddleModel) -> list[int]:
        layers = [layer for layer in self.first_layers if layer < num_layers(model)]
        if not layers:
            raise CalibrationConfigError(
                f"first_layers {list(self.first_layers)} are beyond the model's "
                f"{num_layers(model)} layers."
            )
        return layers
