"""LlamaIndex over FAISS: the same questions under different orders of the same documents.

    pip install -c constraints.txt -e '.[demo]' -e integrations/llama_index \\
        llama-index-vector-stores-faiss
    python examples/llama_index_faiss_rag.py
    python examples/llama_index_faiss_rag.py --model Qwen/Qwen2.5-1.5B-Instruct --method pine

Asks one question about each of ten documents, so that none is chosen for its answer. The model
reads all ten as retrieved, as LlamaIndex's own LongContextReorder puts them (best at both ends),
and reversed: unmodified, then under a method. Where answers differ, the model minds the order.

By default the small reader that comes with rag-middle answers; nothing is downloaded.
"""

from __future__ import annotations

import argparse

import faiss
from llama_index.core import PromptTemplate, Settings, StorageContext, VectorStoreIndex
from llama_index.core.postprocessor import LongContextReorder
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.llms.rag_middle import (
    DocumentPromptHelper,
    MarkDocuments,
    RagMiddleEmbedding,
    RagMiddleLLM,
    warn_about_distances,
)
from llama_index.vector_stores.faiss import FaissVectorStore

from rag_middle import RagMiddleModel
from rag_middle.reader import reader_path

# People who do not exist, so that no model knows the answer from elsewhere.
PEOPLE = {
    "Alder Bramfield": ("Chatwood", "371-4471"),
    "Carl Westbrook": ("Harmouth", "482-9035"),
    "Clay Hartington": ("Lynford", "593-2816"),
    "Glen Ashcroft": ("Orstead", "604-7702"),
    "Heath Marlow": ("Ripdale", "715-1359"),
    "Kent Fairley": ("Barnhurst", "826-6640"),
    "Lex Thornhill": ("Selwick", "937-5188"),
    "May Oakdean": ("Tarport", "248-3927"),
    "Ray Stanbury": ("Wingate", "359-8204"),
    "Wyn Redgrave": ("Yarmoor", "460-6093"),
}
QUESTIONS = {f"What is the phone number of {name}?": number for name, (_, number) in PEOPLE.items()}

# The shape the bundled reader was trained on; other models take LlamaIndex's default as well.
TEMPLATE = PromptTemplate("{context_str}\n\nQuestion: {query_str}\nAnswer:")


class Reverse(BaseNodePostprocessor):
    """The worst document first."""

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return nodes[::-1]


def build_index() -> VectorStoreIndex:
    """An index of one node per person.

    Scores are cosine similarities: embeddings of length 1 and an inner product. With
    `faiss.IndexFlatL2`, which most examples use, scores would be distances, and LongContextReorder,
    to which higher is better, would put the best document into the middle.
    """
    nodes = [
        TextNode(text=f"({name}) {name} calls {town} home. The phone number of {name} is {number}.")
        for name, (town, number) in PEOPLE.items()
    ]
    embedding = RagMiddleEmbedding()
    store = FaissVectorStore(faiss_index=faiss.IndexFlatIP(embedding.dimension))
    warn_about_distances(store)
    storage = StorageContext.from_defaults(vector_store=store)
    return VectorStoreIndex(nodes, storage_context=storage, embed_model=embedding)


def main() -> None:
    parser = argparse.ArgumentParser(description="Does the order of documents change the answer?")
    parser.add_argument("--model", help="folder or hub name; by default the bundled reader")
    parser.add_argument("--method", default="pine", help="compared with the unmodified model")
    parser.add_argument("--questions", type=int, default=10, help="so many of the ten")
    arguments = parser.parse_args()
    questions = dict(list(QUESTIONS.items())[: arguments.questions])

    index = build_index()
    orders: dict[str, list[BaseNodePostprocessor]] = {
        "as retrieved": [],
        "LongContextReorder": [LongContextReorder()],
        "reversed": [Reverse()],
    }
    model = RagMiddleModel.from_pretrained(arguments.model or reader_path())
    for method in ("none", arguments.method):
        llm = RagMiddleLLM(model=model, method=method, max_new_tokens=24)
        llm.install_tokenizer()
        Settings.llm = llm
        Settings.prompt_helper = DocumentPromptHelper.from_llm(llm)
        answers = set()
        for name, before in orders.items():
            engine = index.as_query_engine(
                similarity_top_k=len(PEOPLE),
                node_postprocessors=[*before, MarkDocuments()],
                text_qa_template=TEMPLATE,
            )
            replies = tuple(str(engine.query(question)).strip() for question in questions)
            answers.add(replies)
            right = sum(
                number in reply for number, reply in zip(questions.values(), replies, strict=True)
            )
            print(f"{method:>8}, {name:<18} {right} of {len(questions)} right: {replies[0]!r}, ...")
        print(f"{method:>8}: {'the same' if len(answers) == 1 else 'different'} answers\n")


if __name__ == "__main__":
    main()
