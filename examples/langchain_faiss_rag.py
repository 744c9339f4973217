"""LangChain over FAISS: a question about your documents, answered by a local model with sources.

    pip install -c constraints.txt -e '.[demo,gguf]' -e integrations/langchain langchain-classic
    python examples/langchain_faiss_rag.py
    python examples/langchain_faiss_rag.py "How is a method added?" --docs docs --method pine

Without a folder it asks 200 passages of Wikipedia that come with rag-middle; without a model the
default one answers, SmolLM2-135M-Instruct, which is very small.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_text_splitters import RecursiveCharacterTextSplitter

from langchain_rag_middle import ChatRagMiddle, DocumentPrompt, FaissRetriever
from rag_middle.passages import passages_path
from rag_middle.small_model import default_model

PROMPT = ChatPromptTemplate.from_template(
    "Answer the question from the documents.\n\n{context}\n\nQuestion: {input}\nAnswer:"
)


def read(folder: Path | None) -> list[Document]:
    """Pieces of the Markdown files of a folder, or the passages."""
    if folder is None:
        lines = passages_path().read_text(encoding="utf-8").splitlines()[:200]
        return [
            Document(passage["text"], metadata={"source": passage["title"]})
            for passage in map(json.loads, lines)
        ]
    pages = [
        Document(path.read_text(encoding="utf-8"), metadata={"source": str(path)})
        for path in sorted(folder.rglob("*.md"))
    ]
    splitter = RecursiveCharacterTextSplitter(chunk_size=800, chunk_overlap=100)
    return splitter.split_documents(pages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="?", default="who got the first nobel prize in physics")
    parser.add_argument("--docs", type=Path, help="a folder of Markdown files")
    parser.add_argument("--model", help="folder, GGUF file or hub name")
    parser.add_argument("--method", default="none", help="such as pine: rag-middle methods")
    parser.add_argument("--k", type=int, default=5, help="documents that are retrieved")
    arguments = parser.parse_args()

    retriever = FaissRetriever.from_documents(read(arguments.docs), k=arguments.k)
    model = ChatRagMiddle(
        model=arguments.model or default_model(), method=arguments.method, max_tokens=64
    )
    answering = create_stuff_documents_chain(model, PROMPT, document_prompt=DocumentPrompt())
    result = create_retrieval_chain(retriever, answering).invoke({"input": arguments.question})

    print(f"{result['answer'].strip()}\n")
    for document in result["context"]:
        beginning = " ".join(document.page_content.split())[:60]
        print(f"{document.metadata['score']:.2f}  {document.metadata['source']}: {beginning} ...")


if __name__ == "__main__":
    main()
