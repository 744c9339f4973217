"""Answers with numbered sources, each of them a document."""

from __future__ import annotations

from typing import Any

from llama_index.core.query_engine import CitationQueryEngine
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.llms.rag_middle.nodes import plain_node
from llama_index.llms.rag_middle.synthesizers import MarkedSynthesizer

__all__ = ["MarkedCitationQueryEngine"]


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
    return [NodeWithScore(node=plain_node(each.node), score=each.score) for each in nodes]
