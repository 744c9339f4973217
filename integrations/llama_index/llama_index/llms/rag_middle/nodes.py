"""Nodes whose text the model reads as a marked document, and their scores."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal, TypeVar

from llama_index.core.bridge.pydantic import ConfigDict, Field
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, TextNode

from rag_middle import Document, PromptError, mark, unmark
from rag_middle.integration import marked_text

N = TypeVar("N", bound=BaseNode)


class MarkDocuments(BaseNodePostprocessor):
    """Marks nodes as documents; the last of the postprocessors.

    ::

        index.as_query_engine(node_postprocessors=[LongContextReorder(), MarkDocuments()])

    Only what the model reads is marked, metadata included. ``response.source_nodes`` have their
    text, ids, metadata and scores as they were. Look-alikes of markers in a node are escaped.

    Attributes:
        order: ``"as_given"`` keeps the order of the nodes. ``"fixed"`` sorts them by score, the
            highest first, and by text where scores are equal or missing. Where an engine needs
            several calls (refine, accumulate, documents that do not fit together), order decides
            which documents come into which call; a fixed one makes the answer independent of the
            order of nodes there too.
    """

    model_config = ConfigDict(extra="forbid")

    order: Literal["as_given", "fixed"] = Field(
        default="as_given", description="Keep the order of nodes, or sort them by score."
    )

    @classmethod
    def class_name(cls) -> str:
        return "MarkDocuments"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if self.order == "fixed":
            nodes = sorted(nodes, key=_rank)
        return [
            NodeWithScore(node=marked_node(scored.node), score=scored.score) for scored in nodes
        ]


def marked_node(node: N) -> N:
    """A copy of the node that is marked where the model reads it; of a marked one, itself."""
    if issubclass(type(node), _Marked):
        return node
    copied = node.model_copy()
    copied.__class__ = _marked_class(type(node))
    return copied


def plain_node(node: N) -> N:
    """The opposite of `marked_node`."""
    if not issubclass(type(node), _Marked):
        return node
    copied = node.model_copy()
    copied.__class__ = type(node).__mro__[2]  # _marked_class put two classes before it
    return copied


def format_nodes(
    nodes: Iterable[BaseNode | NodeWithScore | str],
    *,
    numbered: bool = False,
    source: str | None = None,
    separator: str = "\n\n",
) -> str:
    """Nodes as one marked text, for prompts that are built by hand.

    ::

        context = format_nodes(retriever.retrieve(question))
        llm.complete(f"{context}\n\nQuestion: {question}\nAnswer:")

    Args:
        nodes: in the order in which the model shall read them; marked or not; strings, too.
        numbered: write ``[1]``, ``[2]``, ... into them. The order then shows in the text, so that
            a method whose answers do not depend on it (`Method.order_free`) cannot keep its
            promise: `NumberedDocumentsWarning`. Prefer `source`.
        source: metadata to write into each in parentheses, or ``"id"`` for the node's id.
        separator: between documents: whitespace or signs (``---``).

    Raises:
        PromptError: one is no node, or does not have this `source`; the separator has words.

    Warns:
        MissingDocumentsWarning: there are none.
    """
    read = [node_document(_given_node(entry)) for entry in nodes]
    return marked_text(read, "format_nodes", numbered=numbered, source=source, separator=separator)


def as_node(entry: Any) -> NodeWithScore | None:
    """A node with its score, also as `model_dump` writes them; of anything else None."""
    score = None
    if isinstance(entry, Mapping) and isinstance(entry.get("node"), Mapping):
        entry, score = entry["node"], entry.get("score")
    if isinstance(entry, Mapping) and "id_" in entry:
        entry = TextNode.model_validate(entry)
    if isinstance(entry, BaseNode):
        return NodeWithScore(node=entry, score=score)
    return entry if isinstance(entry, NodeWithScore) else None


def node_document(scored: NodeWithScore) -> Document:
    """The document that a node is, as the model reads it."""
    node, score = scored.node, {} if scored.score is None else {"score": scored.score}
    text = unmark(node.get_content(MetadataMode.LLM))
    return Document(text, id=node.node_id, metadata={**node.metadata, **score})


def passed_document(entry: object) -> Document | None:
    """The document that a node is, or what was written of one; None of anything else."""
    scored = as_node(entry)
    return None if scored is None else node_document(scored)


def _given_node(entry: object) -> NodeWithScore:
    scored = as_node(TextNode(text=entry) if isinstance(entry, str) else entry)
    if scored is None:
        raise PromptError(
            f"format_nodes takes nodes, got {type(entry).__name__}: pass what the retriever "
            "returned."
        )
    return scored


class _Marked:
    """What a marked node does differently. Its class name in storage is that of the node."""

    def get_content(self, metadata_mode: MetadataMode = MetadataMode.NONE) -> str:
        content: str = super().get_content(metadata_mode)  # type: ignore[misc]
        if metadata_mode != MetadataMode.LLM or not content.strip():
            return content
        return mark(content)

    def __reduce__(self) -> tuple[Any, ...]:
        return marked_node, (plain_node(self),)  # type: ignore[type-var]


@cache
def _marked_class(kind: type[BaseNode]) -> type[Any]:
    return type(kind.__name__, (_Marked, kind), {"__module__": kind.__module__})


def _rank(node: NodeWithScore) -> tuple[bool, float, str]:
    text = node.node.get_content(MetadataMode.LLM)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    score = node.score
    if score is None or score != score:  # NaN compares with nothing
        return True, 0.0, digest
    return False, -score, digest
