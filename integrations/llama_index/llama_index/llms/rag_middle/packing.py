"""Whole documents into as few calls as possible."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from llama_index.core.indices.prompt_helper import DEFAULT_PADDING, PromptHelper
from llama_index.core.llms import LLM
from llama_index.core.node_parser.text.token import TokenTextSplitter
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.prompts.default_prompt_selectors import (
    DEFAULT_REFINE_PROMPT_SEL,
    DEFAULT_TEXT_QA_PROMPT_SEL,
)
from llama_index.core.prompts.prompt_utils import get_empty_prompt_messages, get_empty_prompt_txt
from llama_index.llms.rag_middle.base import RagMiddleLLM
from llama_index.llms.rag_middle.errors import ContextWindowError

from rag_middle import mark
from rag_middle.integration import MarkedText

_SEPARATOR = "\n\n"


class DroppedTextWarning(UserWarning):
    """A prompt had to be shortened: the model does not see all that was retrieved."""


class DocumentPromptHelper(PromptHelper):
    """A prompt helper that packs whole documents into each call.

    ::

        Settings.prompt_helper = DocumentPromptHelper.from_llm(llm)

    LlamaIndex's own joins the texts of all nodes and cuts the result where the window ends, so a
    document may begin in one call and end in the next. This one cuts between documents, except for
    a document that is too long for any call: its parts become documents of their own. Packing what
    is packed already changes nothing.

    Prompts for a `RagMiddleLLM` are measured as they are sent, chat template included, so that a
    tight window is used to the full and not exceeded. Text without documents is split as always.

    Arguments are those of ``PromptHelper``; `from_llm` knows them.
    """

    @classmethod
    def class_name(cls) -> str:
        return "DocumentPromptHelper"

    @classmethod
    def from_llm(cls, llm: LLM, **options: Any) -> DocumentPromptHelper:
        """A helper for this LLM's window, output length and tokens.

        Args:
            llm: with a tokenizer of its own where it is a `RagMiddleLLM`.
            options: other arguments of ``PromptHelper.from_llm_metadata``.
        """
        if isinstance(llm, RagMiddleLLM):
            options.setdefault("tokenizer", llm.tokenize)
        helper = cls.from_llm_metadata(llm.metadata, **options)
        assert isinstance(helper, cls)
        return helper

    def repack(
        self,
        prompt: BasePromptTemplate,
        text_chunks: Sequence[str],
        padding: int = DEFAULT_PADDING,
        llm: LLM | None = None,
        tools: list[Any] | None = None,
    ) -> list[str]:
        """Texts for as few calls as possible, each with whole documents, in order.

        Raises:
            ContextWindowError: the prompt and the answer alone fill the window.
        """
        lacks_question = _lacks_question(prompt)
        if lacks_question and text_chunks and all(isinstance(c, _Packed) for c in text_chunks):
            return list(text_chunks)
        text = _SEPARATOR.join(chunk.strip() for chunk in text_chunks if chunk.strip())
        size = self._available(prompt, padding, llm, tools)
        pieces = _pieces(text)
        if any(piece.is_document for piece in pieces):
            pieces = [part for piece in pieces for part in self._fitting(piece, size)]
            packed = [_joined(pack) for pack in _packs(pieces, size, self._tokens)]
        else:
            packed = self._splitter(size).split_text(text)
        return packed if lacks_question else list(map(_Packed, packed))

    def truncate(
        self,
        prompt: BasePromptTemplate,
        text_chunks: Sequence[str],
        padding: int = DEFAULT_PADDING,
        llm: LLM | None = None,
        tools: list[Any] | None = None,
    ) -> list[str]:
        """Each text as far as it fits its share of the window; of documents, whole ones.

        Warns:
            DroppedTextWarning: something was left out.

        Raises:
            ContextWindowError: as `repack` does.
        """
        if not text_chunks:
            return []
        size = self._available(prompt, padding, llm, tools) // len(text_chunks)
        return _Texts(self._shortened(chunk, max(size, 1)) for chunk in text_chunks)

    def _shortened(self, text: str, size: int) -> str:
        pieces = _pieces(text)
        if not any(piece.is_document for piece in pieces):
            kept = next(iter(self._splitter(size).split_text(text)), "")  # blank text has none
            if len(kept) < len(text.strip()):
                _warn("the end of a text")
            return kept
        parts = [part for piece in pieces for part in self._fitting(piece, size)]
        kept_parts = next(_packs(parts, size, self._tokens))
        if len(kept_parts) < len(parts):
            kept_text = sum(part.is_document for part in kept_parts)
            _warn(
                f"all but the first {kept_text} of {sum(p.is_document for p in pieces)} documents"
            )
        return _joined(kept_parts)

    def _available(
        self,
        prompt: BasePromptTemplate,
        padding: int,
        llm: LLM | None,
        tools: list[Any] | None,
    ) -> int:
        """Tokens that are left for text in a call."""
        # Refine keeps 500 tokens for the answer so far, and for the question where the prompt has
        # none yet. An answer is never longer than the LLM's longest; a question may be.
        lacks_question = _lacks_question(prompt)
        longest = self.num_output + DEFAULT_PADDING
        if not isinstance(llm, RagMiddleLLM) or tools:
            padding = padding if lacks_question else min(padding, longest)
            try:
                size = self._get_available_chunk_size(prompt, padding=padding, llm=llm, tools=tools)
            except ValueError:  # no room even for the prompt
                size = 0
            used = self.context_window - self.num_output - size
        else:
            used = _prompt_tokens(prompt, llm)
            first = _asked_before(prompt)
            beside = 0 if first is None else _prompt_tokens(first, llm)
            if lacks_question:  # in a small window, 500 would leave nothing
                room = self.context_window - self.num_output - max(used, beside)
                padding = min(padding, max(longest, room // 2))
                used = max(used, beside) + padding
            else:
                used = max(used + min(padding, longest), beside + DEFAULT_PADDING)
            size = self.context_window - self.num_output - used
            if self.chunk_size_limit is not None:
                size = min(size, self.chunk_size_limit)
        if size <= 0:
            raise ContextWindowError(
                f"There is no room for documents: of a context window of {self.context_window} "
                f"tokens the prompt takes {used} and the answer up to {self.num_output}. "
                "Use a shorter prompt template, lower max_new_tokens, or a model with a longer "
                "context window.",
                prompt_tokens=used,
                max_new_tokens=self.num_output,
                context_window=self.context_window,
            )
        return size

    def _fitting(self, piece: _Piece, size: int) -> list[_Piece]:
        """The piece, in parts if it is too long for any call."""
        if self._tokens(piece) <= size:
            return [piece]
        room = max(size - len(self._token_counter.tokenizer(_SEPARATOR)), 1)
        return [_Piece(t, piece.is_document) for t in self._splitter(room).split_text(piece.text)]

    def _splitter(self, size: int) -> TokenTextSplitter:
        return TokenTextSplitter(
            separator=self.separator,
            chunk_size=size,
            chunk_overlap=int(self.chunk_overlap_ratio * size),
            tokenizer=self._token_counter.tokenizer,
        )

    def _tokens(self, piece: _Piece) -> int:
        # rag-middle writes the separator after each document, and tokenises both together.
        return len(self._token_counter.tokenizer(piece.text + _SEPARATOR))


class _Texts(list[str]):
    """Texts that stay texts in a prompt: ``simple_summarize`` writes the list itself there."""

    def __str__(self) -> str:
        return _SEPARATOR.join(self)


class _Packed(str):
    """What was packed beside its question: a call takes it whole, so it is packed no more."""

    __slots__ = ()


class _Piece(NamedTuple):
    """A document without its markers, or text beside documents."""

    text: str
    is_document: bool

    @property
    def shown(self) -> str:
        return mark(self.text) if self.is_document else self.text


def _pieces(text: str) -> list[_Piece]:
    """Documents and what is between them, in order."""
    pieces = [
        _Piece(part.strip(), False) if isinstance(part, str) else _Piece(part.text, True)
        for part in MarkedText(text).pieces()
    ]
    return [piece for piece in pieces if piece.text]


def _packs(
    pieces: Sequence[_Piece], size: int, tokens: Callable[[_Piece], int]
) -> Iterator[list[_Piece]]:
    """Pieces that fit a call together, in order, documents standing together in each.

    Text between two documents belongs to the second one ("Source 2:"), and parts them.
    """
    pack: list[_Piece] = []
    for piece in pieces:
        if piece.is_document:
            done, pack = _parted(pack)
            if done:
                yield done
        if pack and sum(map(tokens, pack)) + tokens(piece) > size:
            yield pack
            pack = []
        pack.append(piece)
    yield pack


def _parted(pack: list[_Piece]) -> tuple[list[_Piece], list[_Piece]]:
    """Up to the last document and after it, where text follows it; else nothing and all."""
    last = max((i for i, piece in enumerate(pack) if piece.is_document), default=None)
    if last is None or last == len(pack) - 1:
        return [], pack
    return pack[: last + 1], pack[last + 1 :]


def _joined(pack: Sequence[_Piece]) -> str:
    return _SEPARATOR.join(piece.shown for piece in pack)


def _asked_before(prompt: BasePromptTemplate) -> BasePromptTemplate | None:
    """The prompt that asks for the answer which this one refines, where there is none yet.

    LlamaIndex gives the longer of the two, by the characters of what models without chats read:
    of its own two for chats it is the shorter one.
    """
    is_own = prompt.get_template() == DEFAULT_REFINE_PROMPT_SEL.get_template()
    if not is_own or "existing_answer" in prompt.kwargs:
        return None
    question = {name: prompt.kwargs[name] for name in ("query_str",) if name in prompt.kwargs}
    return DEFAULT_TEXT_QA_PROMPT_SEL.partial_format(**question)


def _lacks_question(prompt: BasePromptTemplate) -> bool:
    return "query_str" in prompt.template_vars and "query_str" not in prompt.kwargs


def _prompt_tokens(prompt: BasePromptTemplate, llm: RagMiddleLLM) -> int:
    """Tokens of a prompt without what is not known yet, as the LLM sends it."""
    if hasattr(prompt, "select"):  # a SelectorPromptTemplate: one prompt for chat models, another
        prompt = prompt.select(llm=llm)
    if llm.metadata.is_chat_model:
        return llm.count_prompt_tokens(llm._extend_messages(get_empty_prompt_messages(prompt)))
    return llm.count_prompt_tokens(llm._extend_prompt(get_empty_prompt_txt(prompt)))


def _warn(left_out: str) -> None:
    warnings.warn(
        f"The context window is too small for this prompt: {left_out} had to be left out. Retrieve "
        "fewer or shorter documents, or use a response mode with several calls (compact, "
        "tree_summarize).",
        DroppedTextWarning,
        stacklevel=4,
    )
