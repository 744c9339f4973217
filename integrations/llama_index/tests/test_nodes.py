"""MarkDocuments: what the model reads is marked, and nothing else."""

import math
import pickle
from typing import Any

import pytest
from llama_index.core.postprocessor import LongContextReorder
from llama_index.core.schema import (
    Document,
    ImageNode,
    IndexNode,
    MetadataMode,
    NodeWithScore,
    TextNode,
)
from llama_index.llms.rag_middle import MarkDocuments, format_nodes

from rag_middle import PromptError, mark, parse

Nodes = list[NodeWithScore]


def read(node: NodeWithScore) -> str:
    return node.node.get_content(metadata_mode=MetadataMode.LLM)


def test_only_what_the_model_reads_is_marked_metadata_included(nodes: Nodes) -> None:
    for before, after in zip(nodes, MarkDocuments().postprocess_nodes(nodes), strict=True):
        assert read(after) == mark(read(before))
        assert "file: " in read(after)
        assert after.node.get_content(MetadataMode.LLM) == read(after)
        for mode in (MetadataMode.NONE, MetadataMode.ALL, MetadataMode.EMBED):
            assert after.node.get_content(metadata_mode=mode) == before.node.get_content(mode)
        assert after.get_content() == before.get_content()
        assert (after.node_id, after.score, after.metadata) == (
            before.node_id,
            before.score,
            before.metadata,
        )
        assert after.to_dict() == before.to_dict()
        assert before.node.get_content(MetadataMode.LLM) == read(before)  # left as it was


@pytest.mark.parametrize(
    "node",
    [
        TextNode(text="Lyon."),
        Document(text="Lyon."),
        IndexNode(text="Lyon.", index_id="i"),
        ImageNode(text="Lyon.", image_url="file:///x.png"),
    ],
    ids=lambda node: type(node).__name__,
)
def test_nodes_keep_their_type(node: Any) -> None:
    [marked] = MarkDocuments().postprocess_nodes([NodeWithScore(node=node)])
    assert isinstance(marked.node, type(node))
    assert marked.node.class_name() == node.class_name()
    assert read(marked) == mark("Lyon.")
    assert read(NodeWithScore(node=pickle.loads(pickle.dumps(marked.node)))) == mark("Lyon.")


def test_the_fixed_order_does_not_depend_on_the_order_of_nodes(nodes: Nodes) -> None:
    tied = [*nodes, NodeWithScore(node=TextNode(text="Tied."), score=nodes[2].score)]
    texts = ("No score.", "None either.", "Half a character: \ud83d")
    tied += [NodeWithScore(node=TextNode(text=text)) for text in texts]
    tied.insert(1, NodeWithScore(node=TextNode(text="No number."), score=math.nan))
    marker = MarkDocuments(order="fixed")
    expected = [read(n) for n in marker.postprocess_nodes(tied)]
    assert [read(n) for n in marker.postprocess_nodes(tied[::-1])] == expected
    reordered = LongContextReorder().postprocess_nodes(tied)
    assert [read(n) for n in marker.postprocess_nodes(reordered)] == expected
    assert expected[:2] == [mark(read(n)) for n in nodes[:2]]  # the best come first


def test_nodes_of_a_hand_made_prompt_are_marked_and_called_by_their_source(nodes: Nodes) -> None:
    plain = parse(format_nodes(nodes)).documents
    assert [document.text for document in plain] == [read(node) for node in nodes]
    assert format_nodes(MarkDocuments().postprocess_nodes(nodes)) == format_nodes(nodes)
    node = TextNode(text="a", id_="7", metadata={})
    assert parse(format_nodes([node], source="id", numbered=True)).documents[0].text == "[1] (7) a"


def test_nodes_of_a_hand_made_prompt_come_in_other_forms() -> None:
    node = TextNode(text="a")
    scored = NodeWithScore(node=node, score=0.5)
    forms: list[Any] = ["a", node, node.model_dump(), scored, scored.model_dump()]
    read = parse(format_nodes(iter(forms), separator="\n---\n")).documents
    assert [document.text for document in read] == ["a"] * len(forms)
    with pytest.raises(PromptError, match="takes nodes, got dict"):
        format_nodes([{"a": 1}])
    with pytest.raises(PromptError, match="separated by whitespace or signs"):
        format_nodes(["a", "b"], separator="Next:")
