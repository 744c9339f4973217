"""Methods that put the documents in another order, or read them in several.

The best document goes where the model reads best. What is best says the retriever, or the model's
own attention; where that is, the measured accuracy or attention by position.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from math import factorial, log
from typing import TYPE_CHECKING, ClassVar, Literal

from rag_middle.attention import AttentionPlan, ModelTraits
from rag_middle.errors import MethodConfigError
from rag_middle.methods.base import Method, MethodInfo
from rag_middle.methods.requirements import require_interface
from rag_middle.methods.rules import (
    INDICES,
    no_default,
    number,
    one_of,
    option,
    several,
    text,
    whole,
)
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from torch import Tensor

    from rag_middle.methods.base import Runner

_BY_POSITION = several(number(), "numbers, one per position", at_least=2)

Combination = Literal["log_mean", "vote"]


# -- by the retriever's scores --------------------------------------------------------------------


def best_first(prompt: TokenizedPrompt) -> list[int]:
    """Documents by falling score, 0-based; in prompt order where nobody scored them.

    Equal scores keep prompt order.
    """
    count = len(prompt.layout.documents)
    scores = prompt.scores
    if scores is None:
        return list(range(count))
    return sorted(range(count), key=lambda index: -scores[index])


def best_at_highest(prompt: TokenizedPrompt, values: Sequence[float]) -> list[int]:
    """The order in which the document of rank ``r`` stands at the position of rank ``r``.

    Args:
        prompt: ranked by `best_first`.
        values: by position, first to last; linear between them for another number of documents.
            Of equal positions, the earlier one gets the better document.
    """
    ranked = best_first(prompt)
    count = len(ranked)
    if count < 2:
        return ranked
    import numpy as np  # listing methods needs none of it

    at = np.interp(np.linspace(0, len(values) - 1, count), range(len(values)), values)
    positions = sorted(range(count), key=lambda position: -at[position])
    placed = dict(zip(positions, ranked, strict=True))
    return [placed[position] for position in range(count)]


@dataclass(frozen=True, kw_only=True)
class LongContextReorder(Method):
    """Documents at ranks 1, 3, 5, ... from the front, ranks 2, 4, 6, ... from the back.

    Ranks are those of the retriever's scores; without scores, of the prompt: first is best. The
    least relevant documents end up in the middle, where models read them least.

    References:
        The reordering that LangChain has as ``LongContextReorder``, after the measurements of Liu
        et al., Lost in the Middle, arXiv:2307.03172. The best document comes first here whether
        the number of documents is odd or even; LangChain's has it last where it is even.
    """

    name: ClassVar[str] = "long_context_reorder"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Long-context reorder",
        paper="arXiv:2307.03172",
        idea="The most relevant documents stand at both ends, the least relevant in the middle.",
        cost="none",
        requires="documents marked in the prompt, with a retriever's scores or in its order",
        can_hurt_when="order carries meaning, the ranking is poor, or one end is read badly",
    )
    needs_documents = True

    def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
        """Odd ranks forwards, then even ranks backwards."""
        ranked = best_first(prompt)
        return ranked[::2] + ranked[1::2][::-1]


@dataclass(frozen=True, kw_only=True)
class MeasuredOrder(Method):
    """The most relevant document goes to the position of highest accuracy, and so on down.

    Relevance is the retriever's score; without scores, the order of the prompt, first is best.
    ``rag-middle diagnose`` measures accuracy by position and writes it as a profile.

    Attributes:
        accuracy: by position, first to last, in any unit. For another number of documents it is
            interpolated between neighbouring positions.

    References:
        AttnRank (arXiv:2508.05128) does the same with attention, which stands in for accuracy
        where no questions with answers are at hand.
    """

    name: ClassVar[str] = "measured_order"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Measured order",
        paper="",
        idea="The most relevant documents stand where the model's accuracy was measured highest.",
        cost="none",
        requires="documents marked in the prompt, with a retriever's scores or in its order",
        can_hurt_when="order carries meaning, or the ranking is poor",
    )
    needs_documents = True

    accuracy: tuple[float, ...] = no_default(
        "measured_order needs the accuracy by position of your model: `rag-middle diagnose` "
        "measures it; then use `profile:rag-middle-diagnosis`.",
        example=(0.5, 0.25, 0.75),
        rule=_BY_POSITION,
    )

    def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
        """The document of rank ``r`` goes to the position of rank ``r``."""
        return best_at_highest(prompt, self.accuracy)


# -- by the model's attention ---------------------------------------------------------------------


def attention_received(
    prompt: TokenizedPrompt, runner: Runner, layers: Sequence[int] | None, *, per_token: bool
) -> list[float]:
    """Attention of the prompt's last token to each document, averaged over heads and layers.

    Args:
        prompt: as the model shall read it.
        runner: of the request; runs the model once.
        layers: 0-based layers of the model, ``None`` for all with softmax attention.
        per_token: the mean over a document's tokens instead of their sum.
    """
    attention = runner.last_token_attention(prompt)  # [layers, h, l]
    if layers is not None:
        attending = sorted(runner.traits.layers)
        attention = attention[[attending.index(layer) for layer in layers]]
    of_token = attention.mean((0, 1))
    spans, lengths = prompt.layout.documents, prompt.layout.document_lengths
    received = [float(of_token[start:end].sum()) for start, end in spans]
    if not per_token:
        return received
    return [amount / max(1, tokens) for amount, tokens in zip(received, lengths, strict=True)]


class OrderByAttention(Method):
    """A method that runs the model before it orders documents by what attention they get.

    Subclasses are dataclasses with these two fields.
    """

    needs_documents = True

    best_last: bool
    layers: tuple[int, ...] | None

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """No change in the model, whose attention has to be within reach, though.

        Raises:
            UnsupportedArchitectureError: the attention layers cannot be reached.
            MethodConfigError: a layer without softmax attention, or none of this model.
        """
        require_interface(self.name, traits)
        unknown = [layer for layer in self.layers or () if layer not in traits.layers]
        if unknown:
            raise MethodConfigError(
                f"{self.name}: layers {unknown} of this {traits.model_type} model have no softmax "
                f"attention to look at: choose from {sorted(traits.layers)}."
            )
        return AttentionPlan()

    def _sorted(self, scores: Sequence[float]) -> list[int]:
        """0-based documents by score; those of equal scores keep their order."""
        sign = 1 if self.best_last else -1
        return sorted(range(len(scores)), key=lambda index: sign * scores[index])


@dataclass(frozen=True, kw_only=True)
class AttnRank(Method):
    """The most relevant document goes to the position that gets most attention, and so on down.

    Relevance is the retriever's score; without scores, the order of the prompt, first is best.
    How much attention a position gets is a property of the model and the form of its prompts,
    measured once with `measured` over a few prompts whose documents stand at every position.

    Attributes:
        profile: attention by position, first to last, in any unit. For another number of documents
            it is interpolated between neighbouring positions. ``None`` measures it on the prompt at
            hand, one pass per document.

    References:
        Yi et al., Attention Basin: Why Contextual Position Matters in Large Language Models,
        arXiv:2508.05128. Differs: the profile is measured with each document once at every
        position, so that what the documents say cancels out, and may be measured without a
        calibration set.
    """

    name: ClassVar[str] = "attn_rank"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="AttnRank",
        paper="arXiv:2508.05128",
        idea="The most relevant documents stand where the model's attention is measured highest.",
        cost="none with a profile; one more prefill per document without",
        requires="documents marked in the prompt; softmax attention where no profile is given",
        can_hurt_when="order carries meaning, or the ranking or the profile is poor",
    )
    needs_documents = True

    profile: tuple[float, ...] | None = option(None, _BY_POSITION)

    @classmethod
    def measured(cls, prompts: Iterable[TokenizedPrompt], runner: Runner) -> AttnRank:
        """With the profile of a model, averaged over prompts with equally many documents.

        Args:
            prompts: a few dozen of the kind that will be asked; each takes as many passes as it
                has documents. ``RagMiddleModel.encode`` makes them.
            runner: of the model, ``RagMiddleModel.runner``.

        Raises:
            MethodConfigError: no prompts, prompts with different numbers of documents, or with
                fewer than two.
            UnsupportedArchitectureError: the attention layers cannot be reached.
        """
        profiles = [_profile(prompt, runner) for prompt in prompts]
        counts = {len(profile) for profile in profiles}
        if len(counts) != 1 or min(counts) < 2:
            raise MethodConfigError(
                "AttnRank.measured needs prompts with the same number of documents, two or more; "
                f"it got {len(profiles)} prompts with {sorted(counts) or 'no'} documents."
            )
        return cls(
            profile=tuple(sum(position) / len(profiles) for position in zip(*profiles, strict=True))
        )

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """No change in the model; without a profile its attention has to be within reach."""
        if self.profile is None:
            require_interface(self.name, traits)
        return AttentionPlan()

    def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
        """The document of rank ``r`` goes to the position of rank ``r``."""
        if len(prompt.layout.documents) < 2:
            return best_first(prompt)
        profile = _profile(prompt, runner) if self.profile is None else self.profile
        return best_at_highest(prompt, profile)


def _profile(prompt: TokenizedPrompt, runner: Runner) -> list[float]:
    """Attention per token by position, each document having stood in every position."""
    count = len(prompt.layout.documents)
    totals = [0.0] * count
    for first in range(count):
        order = [*range(first, count), *range(first)]
        received = attention_received(prompt.select(order), runner, None, per_token=True)
        totals = [total + amount for total, amount in zip(totals, received, strict=True)]
    return [total / count for total in totals]


@dataclass(frozen=True, kw_only=True)
class AttentionSorting(OrderByAttention):
    """Documents are sorted by the attention they get, which is measured again, and so on.

    The last prompt token's attention to a document's tokens is summed and averaged over heads and
    layers. Documents are sorted by it, the model reads them in the new order, and the answer comes
    after `iterations` such passes. An order that reproduces itself ends the sorting early.

    Attributes:
        iterations: passes over the prompt, each followed by a sort; 0 is neutral.
        best_last: the most attended document comes last, next to the question; otherwise first.
        layers: 0-based layers whose attention counts; ``None`` for all with softmax attention.

    References:
        Peysakhovich and Lerer, Attention Sorting Combats Recency Bias In Long Context Language
        Models, arXiv:2310.01427. Follows the authors' code, where attention is summed over a
        document. Documents with equal attention keep their order; there it is left to chance.
    """

    name: ClassVar[str] = "attention_sorting"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Attention sorting",
        paper="arXiv:2310.01427",
        idea="Documents are sorted by the attention they get, the most attended ones last.",
        cost="one more prefill per iteration",
        requires="documents marked in the prompt; softmax attention",
        can_hurt_when="order carries meaning, or the model reads the beginning best",
    )

    iterations: int = option(3, whole(0), neutral=0)
    best_last: bool = True
    layers: tuple[int, ...] | None = option(None, INDICES)

    def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
        """Sort, look again, sort again."""
        order = list(range(len(prompt.layout.documents)))
        if len(order) < 2:
            return order
        for _ in range(self.iterations):
            received = attention_received(
                prompt.select(order), runner, self.layers, per_token=False
            )
            positions = self._sorted(received)
            if positions == list(range(len(order))):
                break
            order = [order[position] for position in positions]
        return order


@dataclass(frozen=True, kw_only=True)
class AttentionCalibration(OrderByAttention):
    r"""Documents are sorted by attention from which the attention of their position is subtracted.

    .. math:: \mathrm{rel}(x_k) = \mathrm{Attn}(x_k, k) - \mathrm{Attn}(x_\mathrm{dummy}, k)

    ``Attn`` is the last prompt token's attention per token of the document, averaged over heads
    and layers. A position attracts attention whatever stands there; what a document without content
    gets in document `k`'s position, the other documents unchanged, measures that.

    Attributes:
        dummy: text without content; repeated or cut to the tokens of the document it stands for.
        best_last: the most relevant document comes last, next to the question; otherwise first.
        one_pass: measure all positions at once, in a prompt of dummies only: two further passes
            instead of one per document and one more.
        layers: 0-based layers whose attention counts; ``None`` for the upper half of the model.

    References:
        Hsieh et al., Found in the Middle: Calibrating Positional Attention Bias Improves Long
        Context Utilization, arXiv:2406.16008. The paper uses the relevance for ranking documents,
        which is what this does, and for re-weighting attention inside the model, which this does
        not. It takes the last 16 layers of models that have 32; the dummy's text and `one_pass`
        are ours. No public code known to us.
    """

    name: ClassVar[str] = "attention_calibration"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Attention calibration",
        paper="arXiv:2406.16008",
        idea="Documents are sorted by attention, less what a dummy gets at their position.",
        cost="one further prefill per document and another; two further ones with one_pass",
        requires="documents marked in the prompt; softmax attention",
        can_hurt_when="order carries meaning, or the dummy says something in your domain",
    )

    dummy: str = option(" This text is left blank.", text)
    best_last: bool = True
    one_pass: bool = False
    layers: tuple[int, ...] | None = option(None, INDICES)

    def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
        """By attention less the attention of the position."""
        documents = prompt.documents_ids
        if len(documents) < 2:
            return range(len(documents))
        tokens = runner.token_ids(self.dummy)
        if not tokens:
            raise MethodConfigError(
                f"attention_calibration: this tokenizer makes no tokens of the dummy "
                f"{self.dummy!r}. Pass dummy='...' with words in it."
            )
        attending = sorted(runner.traits.layers)
        layers = attending[len(attending) // 2 :] if self.layers is None else self.layers

        def received(texts: Sequence[Sequence[int]]) -> list[float]:
            reading = TokenizedPrompt.assembled(
                prefix=prompt.prefix_ids,
                documents=texts,
                suffix=prompt.suffix_ids,
                document_ids=prompt.document_ids,
            )
            return attention_received(reading, runner, layers, per_token=True)

        dummies = [tuple(islice(cycle(tokens), len(document))) for document in documents]
        own = received(documents)
        if self.one_pass:
            of_positions = received(dummies)
        else:
            of_positions = [
                received([*documents[:i], dummy, *documents[i + 1 :]])[i]
                for i, dummy in enumerate(dummies)
            ]
        return self._sorted([a - b for a, b in zip(own, of_positions, strict=True)])


# -- several orders at once -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Permutation(Method):
    r"""Each token comes from several orders of the documents, run in parallel.

    .. math:: \log p(y) = \frac{1}{N} \sum_n \log p_n(y) + \mathrm{const}

    or, with ``combination="vote"``, each order votes for its most probable token; the mean of the
    probabilities breaks ties. All orders go on with the same token.

    Attributes:
        orders: ``N``, how many orders are read, the given one among them; fewer where there
            are not that many. 1 is neutral.
        combination: ``"log_mean"`` or ``"vote"``.
        seed: of the orders drawn. The same prompt always gets the same ones.

    References:
        Averaging and voting over orders are the usual remedies that papers on order-free methods
        compare with, PINE (arXiv:2407.01100) among them; they vote on whole answers, as `vote` does
        for models behind an HTTP address. Voting on tokens is what can be done while an answer is
        being written.
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

    orders: int = option(4, whole(1), neutral=1)
    combination: Combination = option("log_mean", one_of(Combination))
    seed: int = option(0, whole(0))

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
