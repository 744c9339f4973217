"""Methods that act around a model: on the order of its documents, and on whole answers.

What a method does is found out from its hooks, not from its name: it may arrange documents by their
number and scores, and choose among the answers to several arrangements. Whatever else it asks of
the model (`Weights`) or does to its layers needs the weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import WeightsNeededError
from rag_middle.generation.prompts import arranged, branched
from rag_middle.methods import Method
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from torch import Tensor

    from rag_middle.attention import ModelTraits

__all__ = ["SERVE_IT", "arrangements", "check_acts_around", "stand_in"]

SERVE_IT = (
    "Run it where the weights are (`--model` without an endpoint, `RagMiddleModel` in Python), or "
    "have a server apply it: `rag-middle serve`, which takes the method with each request "
    "(`--send-documents field`), or vLLM with rag-middle-vllm, for all requests."
)

_TRIAL = ContextPrompt(documents=[Document("a"), Document("b"), Document("c")], suffix="?")


class Weights:
    """Stands in for the model in `Method.arrange`: whatever is asked of it is out of reach."""

    def __init__(self, method: Method) -> None:
        self._method = method

    @property
    def traits(self) -> ModelTraits:
        """Refused."""
        self._refuse()

    def last_token_attention(self, prompt: TokenizedPrompt) -> Tensor:
        """Refused."""
        self._refuse()

    def logits(self, prompt: TokenizedPrompt, method: Method | None = None) -> Tensor:
        """Refused."""
        self._refuse()

    def token_ids(self, text: str) -> tuple[int, ...]:
        """Refused."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise WeightsNeededError(
            f"{self._method.name} looks into the model before it answers, and this one is behind "
            f"an HTTP address. {SERVE_IT}"
        )


def check_acts_around(method: Method) -> None:
    """Refuse a method that does more than arrange documents and choose among answers.

    Raises:
        WeightsNeededError: it changes or looks into the model; the message says what to do.
    """
    for part in method.parts:
        if not part.is_neutral and type(part).plan is not Method.plan:
            raise WeightsNeededError(
                f"{part.name} changes what happens inside the model, and this one is behind an "
                f"HTTP address. {SERVE_IT}"
            )
        if not part.is_neutral and part.combines and not part.votes:
            raise WeightsNeededError(
                f"{part.name} combines distributions over tokens, and a model behind an HTTP "
                f"address gives its answers only. {SERVE_IT}"
            )
    arrangements(_TRIAL, method)


def arrangements(prompt: ContextPrompt, method: Method) -> tuple[tuple[int, ...], ...]:
    """The orders in which a prompt's documents are sent, one per request.

    Args:
        prompt: with its documents as they were given.
        method: one that `check_acts_around` lets through.

    Returns:
        0-based indices of documents; a single order for most methods.

    Raises:
        WeightsNeededError: the method looks into the model.
    """
    tokens = stand_in(prompt)
    ordered = arranged(tokens, method, Weights(method))
    branches = branched(ordered, method, Weights(method))
    return tuple(tuple(ids[0] for ids in branch.documents_ids) for branch in branches)


def stand_in(prompt: ContextPrompt) -> TokenizedPrompt:
    """The prompt in tokens, as far as that is known without a tokenizer: one for each piece.

    A document's token is its 0-based index, which tells it wherever a method moves it.
    """
    return TokenizedPrompt.assembled(
        prefix=[0],
        documents=[[index] for index in range(len(prompt.documents))],
        suffix=[0],
        document_ids=[document.id for document in prompt.documents],
        scores=prompt.scores,
    )
