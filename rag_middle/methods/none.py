"""No method: the model as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rag_middle.methods.base import Method, MethodInfo


@dataclass(frozen=True, kw_only=True)
class NoMethod(Method):
    """The unmodified model, and the baseline of every comparison.

    Works with every causal language model, also those that no other method supports.
    """

    name: ClassVar[str] = "none"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="None",
        paper="",
        idea="The model as it is: the baseline, and often the right choice.",
        cost="none",
        requires="any causal language model",
        can_hurt_when="the model reads some positions worse: it leaves that as it is",
    )

    @property
    def is_neutral(self) -> bool:
        """Always."""
        return True
