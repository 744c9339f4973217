"""Prompt repetition (arXiv:2512.14982): the model reads the prompt, or its documents, twice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import PromptError
from rag_middle.methods.base import AnyPrompt, Method, MethodInfo
from rag_middle.methods.rules import one_of, option, text, whole
from rag_middle.tokens import TokenizedPrompt

Part = Literal["prompt", "documents"]


@dataclass(frozen=True, kw_only=True)
class PromptRepetition(Method):
    """The prompt is written `times` times before the model answers it.

    A decoder reads from left to right: documents are read before the question is known, and early
    documents before later ones. In a second copy every token sees the whole of the first one.

    ==============  ===================================================
    ``prompt``      prefix documents suffix, prefix documents suffix
    ``documents``   prefix documents documents suffix
    ==============  ===================================================

    The documents of every copy are marked, so that other methods see where they lie, and what a
    generation reports of documents counts all copies, in the order in which they were sent. Suffix
    and prefix between two copies belong to the document before them.

    Attributes:
        what: ``"prompt"``, the message that holds the documents, or ``"documents"``.
        times: copies; 1 is neutral.
        between: text between two copies of a prompt.

    References:
        Leviathan et al., Prompt Repetition Improves Non-Reasoning LLMs, arXiv:2512.14982: the query
        is sent as query and query again (``between=""``), in one of its variants with "Let me
        repeat that:" between them. Xu et al., Re-Reading Improves Reasoning in Large Language
        Models, arXiv:2309.06275, repeats the question alone. Repeating only the documents is ours.
        No authors' code is known to us.

    Raises:
        PromptError: a prompt in tokens where its text has to be repeated.
    """

    name: ClassVar[str] = "prompt_repetition"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Prompt repetition",
        paper="arXiv:2512.14982",
        idea="The model reads the prompt twice; in the second copy every token sees all of it.",
        cost="a prefill and a cache of twice the length",
        requires="any model with room for twice the prompt",
        can_hurt_when="the doubled prompt leaves the length that the model reads well",
    )

    what: Part = option("prompt", one_of(Part))
    times: int = option(2, whole(1), neutral=1)
    between: str = option("\n\n", text)

    def rewrite(self, prompt: AnyPrompt) -> AnyPrompt:
        """The prompt with every copy in it."""
        if self.times == 1:
            return prompt
        if isinstance(prompt, TokenizedPrompt):
            if self.what == "prompt":
                raise PromptError(
                    "prompt_repetition repeats the caller's text without the chat template around "
                    "it, and this prompt is in tokens already: pass the text, a ContextPrompt or "
                    "messages, or repeat what='documents' only."
                )
            return TokenizedPrompt.assembled(
                prefix=prompt.prefix_ids,
                documents=prompt.documents_ids * self.times,
                suffix=prompt.suffix_ids,
                document_ids=prompt.document_ids * self.times,
                scores=None if prompt.scores is None else prompt.scores * self.times,
                shows_tools=prompt.shows_tools,
            )
        if self.what == "documents":
            return prompt.with_documents(prompt.documents * self.times)
        if not prompt.documents:
            return ContextPrompt(self.between.join([prompt.text] * self.times))
        *others, last = prompt.documents
        first: tuple[Document, ...] = (*others, self._with_question(last, prompt))
        return prompt.with_documents((*first * (self.times - 1), *prompt.documents))

    def _with_question(self, last: Document, prompt: ContextPrompt) -> Document:
        """The last document of a copy, up to where the next copy's documents begin."""
        around = f"{prompt.suffix}{self.between}{prompt.prefix}"
        text = f"{last.render()}{prompt.separator}{around}"
        # The separator comes again after every document.
        return replace(last, text=text.removesuffix(prompt.separator), title=None)

    @property
    def needs_documents(self) -> bool:
        """True where only they are repeated."""
        return self.what == "documents"
