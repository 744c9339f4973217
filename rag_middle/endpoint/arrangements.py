"""Methods that act around a model: on the order of its documents, and on whole answers.

What a method does is found out from its hooks, not from its name: it may arrange documents by their
number and scores, and choose among the answers to several arrangements. Whatever else it asks of
the model or does to its layers needs the weights.
"""

from __future__ import annotations

from typing import Any

from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import WeightsNeededError
from rag_middle.generation.prompts import arranged, branched
from rag_middle.methods import Method
from rag_middle.tokens import TokenizedPrompt

_SERVE_IT = (
    "Run it where the weights are (`--model` without an endpoint, `RagMiddleModel` in Python), or "
    "have a server apply it: `rag-middle serve`, which takes the method with each request "
    "(`--send-documents field`), or vLLM with rag-middle-vllm, for all requests."
)
_TRIAL = ContextPrompt(documents=[Document("a"), Document("b"), Document("c")], suffix="?")


class _NoWeights:
    """Stands in for the model in `Method.arrange`: whatever is asked of it is out of reach."""

    def __init__(self, method: Method) -> None:
        self._name = method.name

    def __getattr__(self, name: str) -> Any:
        raise WeightsNeededError(
            f"{self._name} looks into the model before it answers, and this one is behind an HTTP "
            f"address. {_SERVE_IT}"
        )


def check_acts_around(method: Method) -> None:
    """Refuse a method that does more than arrange documents and choose among answers.

    Raises:
        WeightsNeededError: it changes or looks into the model; the message says what to do.
    """
    for part in method.parts:
        if not part.is_neutral and type(part).plan is not Method.plan:
            does = "changes what happens inside the model"
        elif not part.is_neutral and part.combines and not part.votes:
            does = "combines distributions over tokens"
        else:
            continue
        raise WeightsNeededError(
            f"{part.name} {does}, and this one is behind an HTTP address. {_SERVE_IT}"
        )
    arrangements(_TRIAL, method)


def arrangements(prompt: ContextPrompt, method: Method) -> tuple[tuple[int, ...], ...]:
    """The orders in which a prompt's documents are sent, one per request: 0-based indices.

    Raises:
        WeightsNeededError: the method looks into the model.
    """
    weights: Any = _NoWeights(method)
    branches = branched(arranged(stand_in(prompt), method, weights), method, weights)
    return tuple(tuple(ids[0] for ids in branch.documents_ids) for branch in branches)


def stand_in(prompt: ContextPrompt) -> TokenizedPrompt:
    """The prompt in tokens, as far as that is known without a tokenizer.

    A document's only token is its 0-based index, which tells it wherever a method moves it.
    """
    return TokenizedPrompt.assembled(
        prefix=[0],
        documents=[[index] for index in range(len(prompt.documents))],
        suffix=[0],
        document_ids=[document.id for document in prompt.documents],
        scores=prompt.scores,
    )
