"""Documents of an index that a model has read before anybody asks."""

from pathlib import Path

import pytest
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from rag_middle.answering import DEFAULT_TEMPLATE, Answerer, PromptTemplate, answerer
from rag_middle.answering.answerer import precompute, states_folder
from rag_middle.errors import PromptError
from rag_middle.generation import DocumentCache, RagMiddleModel
from tests.answering.conftest import RIVERS
from tests.retrieval.embedding import HashingEmbedder


def over(
    docs: Path, model_folder: Path, embedder: HashingEmbedder, index: Path | None, method: str
) -> Answerer:
    return Answerer.over(
        docs, model=model_folder, embedder=embedder, index_folder=index, method=method, device="cpu"
    )


@pytest.mark.parametrize("saved_index", [False, True], ids=["documents", "index"])
def test_questions_find_what_was_read_beforehand(
    saved_index: bool,
    docs: Path,
    model_folder: Path,
    llama: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    embedder: HashingEmbedder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = tmp_path / "index"
    plain = over(docs, model_folder, embedder, index, "ape")
    assert plain.model.document_cache is None
    expected = plain.ask("Where does Lyon lie?", max_new_tokens=4)

    cache = DocumentCache(max_bytes=0, directory=states_folder(index))
    reading = RagMiddleModel(plain.model.model, tokenizer, document_cache=cache)
    monkeypatch.setattr(answerer, "_AT_ONCE", 3)
    read = precompute(plain.retriever.index, reading, DEFAULT_TEMPLATE)
    assert read == len(RIVERS) + 1  # and the text before them

    source, kept = (index, None) if saved_index else (docs, index)
    quick = over(source, model_folder, embedder, kept, "ape")
    answer = quick.ask("Where does Lyon lie?", max_new_tokens=4)
    assert answer.text == expected.text
    assert quick.model.document_cache is not None
    assert quick.model.document_cache.misses == 0
    assert quick.model.document_cache.hits == len(RIVERS) + 1


def test_a_question_before_the_documents_leaves_nothing_to_read(
    answerer: Answerer, llama: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    reading = RagMiddleModel(llama, tokenizer, document_cache=DocumentCache())
    template = PromptTemplate(prefix="Question: {question}\n\n", suffix="Answer:")
    with pytest.raises(PromptError, match=r"Move \{question\} to the suffix"):
        precompute(answerer.retriever.index, reading, template)
