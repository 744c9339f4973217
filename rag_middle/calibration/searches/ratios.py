"""Ms-PoE: the range of ratios, and the layer from which it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from rag_middle.calibration.checks import require_numbers, require_several
from rag_middle.calibration.evaluator import Candidate, Evaluator
from rag_middle.calibration.examples import Example
from rag_middle.calibration.objective import Criterion
from rag_middle.calibration.searches.base import (
    Found,
    Search,
    num_layers,
    ranked,
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
        require_several(ranges=self.ranges, head_rules=self.head_rules)
        require_numbers(first_layers=self.first_layers)
        for index, ratios in enumerate(self.ranges):
            require_numbers(**{f"ranges[{index}]": ratios})
            if len(ratios) != 2:
                raise CalibrationConfigError(
                    f"ranges must hold pairs of smallest and largest ratio, got {list(ratios)}."
                )
        for (low, high), first in product(self.ranges, self.first_layers):
            MsPoE(min_ratio=low, max_ratio=high, first_layer=first)  # refused now, not in an hour
        strange = [rule for rule in self.head_rules if rule not in ("rank", "code")]
        if strange:
            raise CalibrationConfigError(f"head_rules are 'rank' and 'code', got {strange[0]!r}.")

    def most_candidates(self, model: RagMiddleModel) -> int:
        return len(self.ranges) * len(self._firsts(model)) * len(self.head_rules)

    def like_candidates(self, model: RagMiddleModel) -> Sequence[Method]:
        [(low, high), *_], first = self.ranges, min(self._firsts(model))
        return [MsPoE(min_ratio=low, max_ratio=high, first_layer=first)]

    def run(
        self,
        model: RagMiddleModel,
        examples: Sequence[Example],
        evaluator: Evaluator,
        *,
        seed: int,
        max_batch_size: int,
    ) -> Found:
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
                self.ranges, self._firsts(model), self.head_rules
            )
        ]
        return ranked(candidates, evaluator)

    def _firsts(self, model: RagMiddleModel) -> list[int]:
        found = [first for first in self.first_layers if first < num_layers(model)]
        if not found:
            raise CalibrationConfigError(
                f"first_layers {list(self.first_layers)} are beyond the model's "
                f"{num_layers(model)} layers."
            )
        return found
