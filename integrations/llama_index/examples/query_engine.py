"""A query engine over a local model that reads all retrieved documents under a method.

    pip install 'rag-middle[demo,gguf]' llama-index-llms-rag-middle
    python query_engine.py FOLDER "A question?"
    python query_engine.py FOLDER "A question?" --model Qwen/Qwen2.5-1.5B-Instruct --method pine

Without a model the default one answers, SmolLM2-135M-Instruct, which is very small.
"""

from __future__ import annotations

import argparse

from llama_index.core import Settings, SimpleDirectoryReader, VectorStoreIndex
from llama_index.embeddings.rag_middle import RagMiddleEmbedding
from llama_index.llms.rag_middle import DocumentPromptHelper, RagMiddleLLM
from llama_index.postprocessor.rag_middle import MarkDocuments

from rag_middle.small_model import default_model


def main() -> None:
    """Ask, and say what the model read."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="of documents")
    parser.add_argument("question")
    parser.add_argument("--model", help="folder, GGUF file or name on the Hugging Face hub")
    parser.add_argument("--method", default="pine", help="what documents are read under")
    arguments = parser.parse_args()

    llm = RagMiddleLLM(
        model_name=arguments.model or default_model(), method=arguments.method, max_new_tokens=64
    )
    llm.install_tokenizer()
    Settings.llm = llm
    Settings.prompt_helper = DocumentPromptHelper.from_llm(llm)
    Settings.embed_model = RagMiddleEmbedding()

    documents = SimpleDirectoryReader(arguments.folder, required_exts=[".md", ".txt"]).load_data()
    index = VectorStoreIndex.from_documents(documents)
    engine = index.as_query_engine(similarity_top_k=5, node_postprocessors=[MarkDocuments()])
    response = engine.query(arguments.question)
    report = (response.metadata or {})["rag_middle"]
    print(f"{response} ({report['documents']} documents under {report['method']})")


if __name__ == "__main__":
    main()
