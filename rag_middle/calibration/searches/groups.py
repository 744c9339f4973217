"""Self-Extend: tokens that share a position, and the window of exact distances."""

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
    rank,
    require_list,
    require_whole,
)
from rag_middle.errors import CalibrationConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import Method, SelfExtend

__all__ = ["GroupSearch"]


@dataclass(frozen=True, kw_only=True)
class GroupSearch(Search):
    """Self-Extend: every group size under every window that it is not larger than.

    Windows that no prompt is longer than are left out: they change nothing. The grid is ours.

    Attributes:
        groups: tokens that share a position, each 2 or more.
        windows: in tokens.
    """

    method: ClassVar[str] = "self_extend"
    criterion: ClassVar[Criterion] = "log_likelihood"

    groups: tuple[int, ...] = (2, 4, 8)
    windows: tuple[int, ...] = (128, 256, 512, 1024, 2048)

    def __post_init__(self) -> None:
        require_list(groups=self.groups, windows=self.windows)
        for group in self.groups:
            require_whole(2, groups=group)
        for window in self.windows:
            require_whole(1, windows=window)
        if not self._pairs():
            raise CalibrationConfigError("No group is as small as a window: nothing can be tried.")

    def max_candidates(self, model: RagMiddleModel) -> int:
        return len(self._pairs())

    def typical_candidates(self, model: RagMiddleModel) -> Sequence[Method]:
        group, window = min(self._pairs(), key=lambda pair: pair[1])
        return [SelfExtend(group=group, window=window)]

    def run(self, inputs: SearchInputs) -> SearchResult:
        pairs, prompts = self._pairs(), [example.prompt for example in inputs.examples]
        if prompts:
            longest = max(inputs.model.count_tokens(prompt) for prompt in prompts)
            pairs = [(group, window) for group, window in pairs if window < longest]
            if not pairs:
                raise CalibrationConfigError(
                    f"The longest prompt has {longest} tokens, and Self-Extend does not change "
                    f"prompts that fit in its window: windows are {list(self.windows)}. Give "
                    "shorter windows or longer prompts."
                )
        candidates = [
            Candidate(f"group {group}, window {window}", SelfExtend(group=group, window=window))
            for group, window in pairs
        ]
        return SearchResult(ranked=rank(candidates, inputs.evaluator))

    def _pairs(self) -> list[tuple[int, int]]:
        return [pair for pair in product(self.groups, self.windows) if pair[0] <= pair[1]]
