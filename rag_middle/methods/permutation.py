"""Permutation: read the documents in several orders and combine the answers token by token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import factorial, log
from typing import TYPE_CHECKING, ClassVar, Literal

from rag_middle.errors import MethodConfigError
from rag_middle.methods.base import Method, MethodInfo, require_count
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from torch import Tensor

    from rag_middle.methods.base import Runner


@dataclass(frozen=True, kw_only=True)
class Permutation(Method):
    r"""Each token comes from several orders of the documents, run in parallel.

    .. math:: \log p(y) = \frac{1}{N} \sum_n \log p_n(y) + \mathrm{const}

    or, with ``combination="vote"``, each order votes for its most probable token; the mean of the
    probabilities breaks ties. All orders go on with the same token.

    Attributes:
        orders: ``N``, how many orders are read, the given one among them; fewer where the
            documents have fewer. 1 is neutral.
        combination: ``"log_mean"`` or ``"vote"``.
        seed: of the orders drawn. The same prompt always gets the same ones.

    References:
        Averaging and voting over orders are the usual remedies that papers on order-free methods
        compare with, PINE (arXiv:2407.01100) among them; they vote on whole answers, as `vote` does
        for models behind an HTTP address. Voting on tokens is what can be done while an answer is
        being written.

    Raises:
        MethodConfigError: `orders` is no whole number from 1 on, `seed` none from 0 on, or there
            is no such `combination`.
    """

    name: ClassVar[str] = "permutation"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Permutation",
        paper="",
        idea="Several orders of the documents in parallel; output distributions are averaged.",
        cost="as many forward passes and caches as orders",
        requires="documents marked in the prompt; any model",
        can_hurt_when="order carries meaning",
    )
    needs_documents = True

    orders: int = 4
    combination: Literal["log_mean", "vote"] = "log_mean"
    seed: int = 0

    def __post_init__(self) -> None:
        require_count("Permutation", 1, orders=self.orders)
        require_count("Permutation", 0, seed=self.seed)
        if self.combination not in ("log_mean", "vote"):
            raise MethodConfigError(
                f"Permutation: combination must be 'log_mean' or 'vote', got {self.combination!r}."
            )

    def branches(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[Sequence[int]]:
        """Distinct orders, the given one first."""
        count = len(prompt.layout.documents)
        wanted = min(self.orders, factorial(count)) if count <= self.orders else self.orders
        draw = random.Random(self.seed)
        orders = {tuple(range(count)): None}
        while len(orders) < wanted:
            orders[tuple(draw.sample(range(count), count))] = None
        return tuple(orders)

    def combine(self, logits: Tensor) -> Tensor:
        """Log-probabilities, up to a constant for the mean of logarithms."""
        if self.combination == "log_mean":
            return logits.log_softmax(-1).mean(-2)
        orders = logits.shape[-2]
        votes = (
            logits.new_zeros(logits.shape)
            .scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
            .sum(-2)
        )
        # Less than one vote, so it decides between equal numbers of votes only.
        # A logarithm from the start: probabilities of unlikely tokens may be 0 in float32.
        undecided = logits.log_softmax(-1).logsumexp(-2) - log(orders)
        return votes.log().logaddexp(undecided) - log(orders + 1)

    def vote(self, answers: Sequence[str]) -> int:
        """The first of the answers that most orders give, the given order's among equals.

        Case, whitespace and a full stop at the end make no difference. Behind an HTTP address this
        stands for both combinations, as no probabilities of tokens come from there.
        """
        written = [" ".join(answer.casefold().split()).rstrip(".") for answer in answers]
        most = max(map(written.count, written))
        return next(i for i, answer in enumerate(written) if written.count(answer) == most)

    @property
    def is_neutral(self) -> bool:
        """True for one order."""
        return self.orders == 1
