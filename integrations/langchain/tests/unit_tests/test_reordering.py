"""The baseline: best documents at both ends."""

from __future__ import annotations

import pytest
from langchain_core.documents import Document

from langchain_rag_middle import LongContextReorder
from rag_middle import PromptError


def numbered(count: int) -> list[Document]:
    return [Document(str(n), metadata={"score": -n}) for n in range(1, count + 1)]


@pytest.mark.parametrize(
    ("count", "order"), [(0, ""), (1, "1"), (2, "12"), (5, "13542"), (6, "135642")]
)
def test_the_best_stand_at_both_ends(count: int, order: str) -> None:
    reordered = LongContextReorder().transform_documents(numbered(count))
    assert "".join(document.page_content for document in reordered) == order


def test_documents_can_be_sorted_by_score_first() -> None:
    shuffled = [numbered(5)[index] for index in (3, 0, 4, 2, 1)]
    reordered = LongContextReorder(score_key="score").transform_documents(shuffled)
    assert "".join(document.page_content for document in reordered) == "13542"
    assert shuffled[0].page_content == "4"  # the list given is left alone


@pytest.mark.parametrize("score", [None, float("nan"), True])
def test_a_missing_score_is_named(score: object) -> None:
    document = Document("a", metadata={"score": score})
    with pytest.raises(PromptError, match=rf"no number in metadata\['score'\], got {score}"):
        LongContextReorder(score_key="score").transform_documents([document])
