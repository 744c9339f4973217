"""A query engine over a local model that reads all retrieved documents under a method.

    pip install 'rag-middle[demo]' llama-index-llms-rag-middle
    python query_engine.py
    python query_engine.py --model Qwen/Qwen2.5-1.5B-Instruct --method pine

By default the small reader that comes with rag-middle answers; nothing is downloaded.
"""

from __future__ import annotations

import argparse

from llama_index.core import PromptTemplate, Settings, VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.embeddings.rag_middle import RagMiddleEmbedding
from llama_index.llms.rag_middle import DocumentPromptHelper, RagMiddleLLM
from llama_index.postprocessor.rag_middle import MarkDocuments

from rag_middle.reader import reader_path

# Things that do not exist, so that no model knows the answer from elsewhere.
PRICES = {
    "Aldgrove Harfield": "$41",
    "Bramstow Melcroft": "$75",
    "Cranport Tolworth": "$256",
    "Fairholme Silwick": "$64",
    "Glenmoor Birkdale": "$919",
    "Hartley Wenbrook": "$97",
}
# The shape the bundled reader was trained on; other models take LlamaIndex's default as well.
TEMPLATE = PromptTemplate("{context_str}\n\nQuestion: {query_str}\nAnswer:")


def main() -> None:
    """Ask about each thing, and say what the model read."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder or name on the Hugging Face hub")
    parser.add_argument("--method", default="pine", help="what documents are read under")
    arguments = parser.parse_args()

    llm = RagMiddleLLM(
        model_name=arguments.model or reader_path(), method=arguments.method, max_new_tokens=32
    )
    llm.install_tokenizer()
    Settings.llm = llm
    Settings.prompt_helper = DocumentPromptHelper.from_llm(llm)
    Settings.embed_model = RagMiddleEmbedding()

    texts = [f"({name}) The price of {name} is {price}." for name, price in PRICES.items()]
    index = VectorStoreIndex([TextNode(text=text) for text in texts])
    engine = index.as_query_engine(
        similarity_top_k=len(texts),
        node_postprocessors=[MarkDocuments()],
        text_qa_template=TEMPLATE,
    )
    for name in PRICES:
        response = engine.query(f"What is the price of {name}?")
        report = (response.metadata or {})["rag_middle"]
        print(f"{response} ({report['documents']} documents under {report['method']})")


if __name__ == "__main__":
    main()
