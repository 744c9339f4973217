"""LangChain over FAISS: the same questions under different orders of the same documents.

    pip install -c constraints.txt -e '.[demo]' -e integrations/langchain langchain-classic
    python examples/langchain_faiss_rag.py
    python examples/langchain_faiss_rag.py --model Qwen/Qwen2.5-1.5B-Instruct --method pine

Asks one question about each of ten documents, so that none is chosen for its answer. The model
reads all ten as retrieved, reordered (best at both ends, the usual remedy), and reversed:
unmodified, then under a method. Where answers differ, the model minds the order. Both chains share
one set of weights.

By default the small reader that comes with rag-middle answers; nothing is downloaded.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from operator import itemgetter

from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate

from langchain_rag_middle import ChatRagMiddle, DocumentPrompt, FaissRetriever, LongContextReorder
from rag_middle.reader import reader_path

# Gadgets that do not exist, so that no model knows the answer from elsewhere.
GADGETS = {
    "Aldgrove Harfield": ("$41", "KT-4071"),
    "Bramstow Melcroft": ("$873", "PR-1195"),
    "Cranport Tolworth": ("$256", "BX-6620"),
    "Fairholme Silwick": ("$64", "WM-3308"),
    "Glenmoor Birkdale": ("$519", "JN-7742"),
    "Hartley Wenbrook": ("$97", "CD-2953"),
    "Kelston Larkhurst": ("$702", "RL-8816"),
    "Linford Orway": ("$138", "HS-5437"),
    "Mayfleet Stanmead": ("$330", "GV-9064"),
    "Oakridge Thornbury": ("$485", "TK-1571"),
}
QUESTIONS = {f"How much does {name} cost?": price for name, (price, _) in GADGETS.items()}

# The shape the bundled reader was trained on; other models take any.
PROMPT = ChatPromptTemplate.from_template("{context}\n\nQuestion: {input}\nAnswer:")

Arrange = Callable[[Sequence[Document]], Sequence[Document]]

ORDERS: dict[str, Arrange] = {
    "as retrieved": list,
    "LongContextReorder": LongContextReorder().transform_documents,
    "reversed": lambda documents: documents[::-1],
}


def build_retriever() -> FaissRetriever:
    """An index of one document per gadget, in memory."""
    return FaissRetriever.from_documents(
        (
            Document(
                f"{name} costs {price}. To reset {name} enter {code}.", metadata={"title": name}
            )
            for name, (price, code) in GADGETS.items()
        ),
        k=len(GADGETS),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Does the order of documents change the answer?")
    parser.add_argument("--model", help="folder or hub name; by default the bundled reader")
    parser.add_argument("--method", default="pine", help="compared with the unmodified model")
    parser.add_argument("--questions", type=int, default=10, help="so many of the ten")
    arguments = parser.parse_args()
    questions = dict(list(QUESTIONS.items())[: arguments.questions])

    name = arguments.model or reader_path()
    retriever = build_retriever()
    for method in ("none", arguments.method):
        model = ChatRagMiddle(model=name, method=method, max_tokens=24)
        answering = create_stuff_documents_chain(
            model,
            PROMPT,
            document_prompt=DocumentPrompt(template="({title}) {page_content}"),
        )
        answers = set()
        for order, arrange in ORDERS.items():
            chain = create_retrieval_chain(itemgetter("input") | retriever | arrange, answering)
            inputs = [{"input": question} for question in questions]
            replies = tuple(result["answer"].strip() for result in map(chain.invoke, inputs))
            answers.add(replies)
            right = sum(
                reply.endswith(f" {price}")  # $976 is not $97
                for price, reply in zip(questions.values(), replies, strict=True)
            )
            print(f"{method:>8}, {order:<18} {right} of {len(inputs)} right: {replies[0]!r}, ...")
        print(f"{method:>8}: {'the same' if len(answers) == 1 else 'different'} answers\n")


if __name__ == "__main__":
    main()
