"""Response synthesizers that keep documents apart, and a query engine with numbered ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.prompts.mixin import PromptDictType, PromptMixinType
from llama_index.core.query_engine import CitationQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer, SimpleSummarize
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.types import RESPONSE_TEXT_TYPE
from llama_index.llms.rag_middle.nodes import MarkDocuments, plain_node
from llama_index.llms.rag_middle.packing import DocumentPromptHelper


class SimpleDocuments(SimpleSummarize):
    """``simple_summarize`` for documents: one call with as many of them as fit.

    ::

        index.as_query_engine(
            response_synthesizer=SimpleDocuments(llm=llm), node_postprocessors=[MarkDocuments()]
        )

    LlamaIndex's own puts a Python list into the prompt (``['...\\n...']``) and cuts the text where
    the window ends, in the middle of a document. This one puts text there, leaves out whole
    documents from the end, and warns (`DroppedTextWarning`).

    Arguments are those of ``SimpleSummarize``. Without a `DocumentPromptHelper`, given or in
    ``Settings.prompt_helper``, it makes one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not isinstance(self._prompt_helper, DocumentPromptHelper):
            self._prompt_helper = DocumentPromptHelper.from_llm(self._llm)

    def get_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        prompt, context = self._prepared(query_str, text_chunks)
        if self._streaming:
            return self._llm.stream(prompt, context_str=context, **response_kwargs)
        answer = self._llm.predict(prompt, context_str=context, **response_kwargs)
        return answer or "Empty Response"

    async def aget_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        prompt, context = self._prepared(query_str, text_chunks)
        if self._streaming:
            return await self._llm.astream(prompt, context_str=context, **response_kwargs)
        answer = await self._llm.apredict(prompt, context_str=context, **response_kwargs)
        return answer or "Empty Response"

    def _prepared(self, query_str: str, text_chunks: Sequence[str]) -> tuple[Any, str]:
        prompt = self._text_qa_template.partial_format(query_str=query_str)
        chunks = ["\n\n".join(chunk.strip() for chunk in text_chunks if chunk.strip())]
        return prompt, self._prompt_helper.truncate(prompt, chunks, llm=self._llm)[0]


class MarkedSynthesizer(BaseSynthesizer):
    """Another synthesizer whose nodes are marked as documents, whoever made them.

    For engines that make nodes after their postprocessors have run::

        SubQuestionQueryEngine.from_defaults(
            tools, response_synthesizer=MarkedSynthesizer(get_response_synthesizer())
        )

    Args:
        synthesizer: what answers.
        marker: how nodes are marked.
    """

    def __init__(self, synthesizer: BaseSynthesizer, marker: MarkDocuments | None = None) -> None:
        self._synthesizer = synthesizer
        self._marker = marker or MarkDocuments()
        super().__init__(
            llm=synthesizer._llm,
            callback_manager=synthesizer.callback_manager,
            prompt_helper=synthesizer._prompt_helper,
            streaming=synthesizer._streaming,
        )

    def synthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        marked = self._marker.postprocess_nodes(nodes)
        return self._synthesizer.synthesize(
            query, marked, additional_source_nodes, **response_kwargs
        )

    async def asynthesize(
        self,
        query: QueryType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        marked = self._marker.postprocess_nodes(nodes)
        return await self._synthesizer.asynthesize(
            query, marked, additional_source_nodes, **response_kwargs
        )

    def get_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        return self._synthesizer.get_response(query_str, text_chunks, **response_kwargs)

    async def aget_response(
        self, query_str: str, text_chunks: Sequence[str], **response_kwargs: Any
    ) -> RESPONSE_TEXT_TYPE:
        return await self._synthesizer.aget_response(query_str, text_chunks, **response_kwargs)

    def _get_prompts(self) -> PromptDictType:
        return self._synthesizer._get_prompts()

    def _update_prompts(self, prompts: PromptDictType) -> None:
        self._synthesizer._update_prompts(prompts)

    def _get_prompt_modules(self) -> PromptMixinType:
        return self._synthesizer._get_prompt_modules()


class MarkedCitationQueryEngine(CitationQueryEngine):
    """``CitationQueryEngine`` whose numbered sources are marked as documents.

    LlamaIndex's own splits what the postprocessors return into sources and numbers those, so a
    marker would be cut off its document, or the number would stand between two documents. This one
    marks the finished sources: a number is part of its document. Arguments are the same.

    ``MarkDocuments()`` is not needed among the postprocessors. ``MarkDocuments(order="fixed")``
    gives a document the same number whatever the order of the nodes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._response_synthesizer = MarkedSynthesizer(self._response_synthesizer)

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _plain(super().retrieve(query_bundle))

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _plain(await super().aretrieve(query_bundle))


def _plain(nodes: list[NodeWithScore]) -> list[NodeWithScore]:
    # A marker would be split off its document.
    return [NodeWithScore(node=plain_node(n.node), score=n.score) for n in nodes]
