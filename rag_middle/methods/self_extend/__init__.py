"""Self-Extend (arXiv:2401.01325): exact positions nearby, grouped positions beyond."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from rag_middle.attention import AttentionContext
from rag_middle.errors import MethodConfigError
from rag_middle.methods.base import Method, MethodInfo
from rag_middle.methods.document_method import Attention, AttentionMethod
from rag_middle.methods.rules import INDICES, number, option, whole

#: Model types whose authors' code divides the window by the group size without rounding.
_FRACTIONAL = ("gemma", "llama")


@dataclass(frozen=True, kw_only=True)
class SelfExtend(AttentionMethod):
    r"""Keys beyond a window are seen at distances that several tokens share.

    A query at position ``i`` and a key at ``j`` are rotated at ``i`` and ``j`` where
    ``i - j < w``, and otherwise at

    .. math:: \lfloor i/G \rfloor + w - \lfloor w/G \rfloor \quad\text{and}\quad \lfloor j/G \rfloor

    under one softmax. Distances up to ``w + (l - w) / G`` then serve a prompt of ``l`` tokens.

    Attributes:
        group: ``G``, tokens that share a position beyond the window; 1 is neutral.
        window: ``w``, distances below it stay exact. Prompts that fit in it are not changed.
        log_scale_base: multiply the query at position ``i`` by
            ``max(1, ln(i + 1) / ln(log_scale_base))`` (the code's option for very long texts);
            ``None`` for not.
        layers: 0-based layers to change; ``None`` for all with rotary positions.
        reference_code: compute as the authors' code does on LLaMA and Gemma: ``w / G`` is not
            rounded down there. It matters where `group` does not divide `window`.

    References:
        Jin et al., LLM Maybe LongLM: Self-Extend LLM Context Window Without Tuning,
        arXiv:2401.01325, equations 3 and 4. Differs from the authors' code: batches with left
        padding get the positions of their tokens, and sliding windows of the model stay in force,
        counted in tokens.
    """

    name: ClassVar[str] = "self_extend"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Self-Extend",
        paper="arXiv:2401.01325",
        idea="Tokens far from the query share positions in groups, near ones keep their own.",
        cost="a second rotation, a second attention call, keys cached twice",
        requires="rotary position embedding (RoPE)",
        can_hurt_when="the prompt fits the trained length, or distant order matters",
    )
    claims = frozenset({"positions"})
    defers_rotation = has_kernels = True
    conflicts: ClassVar[Mapping[str, str]] = {
        "positional_hidden_states": "Self-Extend rotates keys twice, and scaled channels are "
        "worked into keys rotated once. Use one of them"
    }

    group: int = option(2, whole(1), neutral=1)
    window: int = option(1024, whole(1))
    log_scale_base: float | None = option(None, number(above=1), neutral=None)
    layers: tuple[int, ...] | None = option(None, INDICES)
    reference_code: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group > self.window:
            raise MethodConfigError(
                f"SelfExtend: group must not be larger than window, got {self.group} and "
                f"{self.window}: far keys would come out nearer than near ones."
            )

    def attend(self, context: AttentionContext) -> Attention:
        """Rotates queries and keys twice, and attends with both."""
        from rag_middle.methods.self_extend.attention import attend_grouped

        return attend_grouped(self, context)

    def query_shift(self, model_type: str) -> float:
        """What is added to a query's grouped position."""
        if self.reference_code and model_type in _FRACTIONAL:
            return self.window - self.window / self.group
        return self.window - self.window // self.group

    def for_self_check(self) -> Method:
        """The same with the smallest window."""
        return replace(self, window=self.group)
