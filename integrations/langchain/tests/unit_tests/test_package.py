"""The package from outside."""

import asyncio
import copy
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from langchain_core.vectorstores import InMemoryVectorStore

import langchain_rag_middle
from langchain_rag_middle import RagMiddleEmbeddings
from rag_middle.options import OPTIONS
from tests.reader import reader_path


def test_options_are_those_of_the_library() -> None:
    settings = langchain_rag_middle.ChatRagMiddle.model_fields
    names = {"max_new_tokens": "max_tokens"}
    others = {"allow_control_tokens", "cancel", "missing_documents_hint", "system"}
    others |= {"tools", "tool_choice", "response_format"}
    for name, declaration in OPTIONS.items():
        field = settings.get(names.get(name, name))
        assert (field is None) == (name in others)
        if field is not None:
            assert field.description == declaration.help
            assert (field.default or None) == (declaration.default or None)


@pytest.mark.slow  # imports LangChain in another process
def test_importing_loads_no_deep_learning_library() -> None:
    code = (
        "import sys, langchain_rag_middle;"
        "print([m for m in ('torch', 'transformers', 'faiss') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


# -- embeddings ------------------------------------------------------------------------------------


def test_a_vector_store_finds_documents_by_meaning() -> None:
    embeddings = RagMiddleEmbeddings()
    texts = ["Lyon lies on the Rhône.", "The cat sleeps on the sofa.", "Nantes lies on the Loire."]
    store = InMemoryVectorStore.from_texts(texts, embeddings)
    assert (
        store.similarity_search("On which river does Nantes lie?", k=1)[0].page_content
        == (texts[2])
    )
    vector = embeddings.embed_query(texts[0])
    assert len(vector) == embeddings.dimension
    assert sum(x * x for x in vector) == pytest.approx(1.0, abs=1e-5)
    assert asyncio.run(embeddings.aembed_documents(texts))[0] == pytest.approx(vector, abs=1e-5)
    assert embeddings.embed_documents([]) == []


def test_copies_and_other_processes_load_the_same_embedder() -> None:
    embeddings = RagMiddleEmbeddings()
    vector = embeddings.embed_query("Nantes")
    for copied in (pickle.loads(pickle.dumps(embeddings)), copy.deepcopy(embeddings)):
        assert copied.embed_query("Nantes") == vector


# -- the page for LangChain's documentation -------------------------------------------------------


PAGE = Path(__file__).parents[2] / "docs" / "rag_middle.mdx"


def test_the_page_shows_what_its_code_prints(capsys: pytest.CaptureFixture[str]) -> None:
    pattern = r"(\{/\* not run: .+? \*/\}\n\n)?```(python|plaintext) .*?\n(.*?)```"
    text = PAGE.read_text(encoding="utf-8")
    text = text.replace("Qwen/Qwen2.5-7B-Instruct", str(reader_path()))
    names: dict[str, object] = {}
    shown = []
    for excuse, language, block in re.findall(pattern, text, flags=re.DOTALL):
        if language == "python" and not excuse:
            exec(block, names)
        elif language == "plaintext":
            shown.append(block)
            assert capsys.readouterr().out == block
    assert len(shown) == 5
