"""Response synthesizers that keep documents apart, and a query engine with numbered ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.prompts.mixin import PromptDictType, PromptMixinType
from llama_index.core.query_engine import CitationQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.types import RESPONSE_TEXT_TYPE
from llama_index.llms.rag_middle.nodes import MarkDocuments, plain_node


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
