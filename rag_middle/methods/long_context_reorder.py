"""Long-context reorder: the best documents at both ends of the context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rag_middle.methods.base import Method, MethodInfo
from rag_middle.methods.ranking import best_first
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from rag_middle.methods.base import Runner


@dataclass(frozen=True, kw_only=True)
class LongContextReorder(Method):
    """Documents at ranks 1, 3, 5, ... from the front, ranks 2, 4, 6, ... from the back.

    Ranks are those of the retriever's scores; without scores, of the prompt: first is best. The
    least relevant documents end up in the middle, where models read them least.

    References:
        The reordering that LangChain has as ``LongContextReorder``, after the measurements of Liu
        et al., Lost in the Middle, arXiv:2307.03172. The best document comes first here whether
        the number of documents is odd or even; LangChain's has it last where it is even.
    """

    name: ClassVar[str] = "long_context_reorder"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Long-context reorder",
        paper="arXiv:2307.03172",
        idea="The most relevant documents stand at both ends, the least relevant in the middle.",
        cost="none",
        requires="documents marked in the prompt, with a retriever's scores or in its order",
        can_hurt_when="order carries meaning, the ranking is poor, or one end is read badly",
    )
    needs_documents = True

    def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
        """Odd ranks forwards, then even ranks backwards."""
        ranked = best_first(prompt)
        return ranked[::2] + ranked[1::2][::-1]
