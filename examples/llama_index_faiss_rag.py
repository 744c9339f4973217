"""LlamaIndex over FAISS: a question about your documents, answered by a local model with sources.

    pip install -c constraints.txt -e '.[demo,gguf]' -e integrations/llama_index \\
        llama-index-vector-stores-faiss
    python examples/llama_index_faiss_rag.py
    python examples/llama_index_faiss_rag.py "How is a method added?" --docs docs --method pine

Without a folder it asks 200 passages of Wikipedia that come with rag-middle; without a model the
default one answers, SmolLM2-135M-Instruct, which is very small.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import faiss
from llama_index.core import Document, PromptTemplate, Settings, StorageContext, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter
from llama_index.llms.rag_middle import (
    DocumentPromptHelper,
    MarkDocuments,
    RagMiddleEmbedding,
    RagMiddleLLM,
)
from llama_index.vector_stores.faiss import FaissVectorStore

from rag_middle.passages import passages_path
from rag_middle.small_model import default_model

TEMPLATE = PromptTemplate(
    "Answer the question from the documents.\n\n{context_str}\n\nQuestion: {query_str}\nAnswer:"
)


def read(folder: Path | None) -> list[Document]:
    """The Markdown files of a folder, or the passages."""
    if folder is None:
        lines = passages_path().read_text(encoding="utf-8").splitlines()[:200]
        texts = [(passage["title"], passage["text"]) for passage in map(json.loads, lines)]
    else:
        paths = sorted(folder.rglob("*.md"))
        texts = [(str(path), path.read_text(encoding="utf-8")) for path in paths]
    return [
        Document(
            text=text,
            metadata={"source": source},
            excluded_llm_metadata_keys=["source"],
            excluded_embed_metadata_keys=["source"],
        )
        for source, text in texts
    ]


def build_index(documents: list[Document]) -> VectorStoreIndex:
    """Scores are cosine similarities: embeddings of length 1 and an inner product.

    With `faiss.IndexFlatL2`, which most examples use, they would be distances, and what sorts by
    score would work the wrong way round.
    """
    embedding = RagMiddleEmbedding()
    store = FaissVectorStore(faiss_index=faiss.IndexFlatIP(embedding.dimension))
    return VectorStoreIndex.from_documents(
        documents,
        storage_context=StorageContext.from_defaults(vector_store=store),
        transformations=[SentenceSplitter(chunk_size=200, chunk_overlap=20)],
        embed_model=embedding,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="?", default="who got the first nobel prize in physics")
    parser.add_argument("--docs", type=Path, help="a folder of Markdown files")
    parser.add_argument("--model", help="folder, GGUF file or hub name")
    parser.add_argument("--method", default="none", help="such as pine: rag-middle methods")
    parser.add_argument("--k", type=int, default=5, help="documents that are retrieved")
    arguments = parser.parse_args()

    llm = RagMiddleLLM(
        model_name=arguments.model or default_model(), method=arguments.method, max_new_tokens=64
    )
    llm.install_tokenizer()
    Settings.llm = llm
    Settings.prompt_helper = DocumentPromptHelper.from_llm(llm)
    engine = build_index(read(arguments.docs)).as_query_engine(
        similarity_top_k=arguments.k,
        node_postprocessors=[MarkDocuments()],
        text_qa_template=TEMPLATE,
    )
    response = engine.query(arguments.question)

    print(f"{str(response).strip()}\n")
    for node in response.source_nodes:
        beginning = " ".join(node.get_content().split())[:60]
        print(f"{node.score:.2f}  {node.metadata['source']}: {beginning} ...")


if __name__ == "__main__":
    main()
