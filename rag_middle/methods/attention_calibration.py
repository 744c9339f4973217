"""Attention calibration (arXiv:2406.16008): attention minus what a dummy gets at its position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING, ClassVar

from rag_middle.attention import AttentionPlan, ModelTraits
from rag_middle.errors import MethodConfigError
from rag_middle.methods.base import Method, MethodInfo, as_indices
from rag_middle.methods.ranking import attention_received, check_layers
from rag_middle.tokens import TokenizedPrompt

if TYPE_CHECKING:
    from rag_middle.methods.base import Runner


@dataclass(frozen=True, kw_only=True)
class AttentionCalibration(Method):
    r"""Documents are sorted by attention from which the attention of their position is subtracted.

    .. math:: \mathrm{rel}(x_k) = \mathrm{Attn}(x_k, k) - \mathrm{Attn}(x_\mathrm{dummy}, k)

    ``Attn`` is the last prompt token's attention per token of the document, averaged over heads
    and layers. A position attracts attention whatever stands there; what a document without content
    gets in document `k`'s position, the other documents unchanged, measures that.

    Attributes:
        dummy: text without content; repeated or cut to the tokens of the document it stands for.
        best_last: the most relevant document comes last, next to the question; otherwise first.
        one_pass: measure all positions at once, in a prompt of dummies only: two passes altogether
            instead of one per document and one more.
        layers: 0-based layers whose attention counts; ``None`` for the upper half of the model.

    References:
        Hsieh et al., Found in the Middle: Calibrating Positional Attention Bias Improves Long
        Context Utilization, arXiv:2406.16008. The paper uses the relevance for ranking documents,
        which is what this does, and for re-weighting attention inside the model, which this does
        not. It takes the last 16 layers of models that have 32; the dummy's text and `one_pass`
        are ours. No public code known to us.

    Raises:
        MethodConfigError: an empty dummy, or one the tokenizer makes no tokens of.
    """

    name: ClassVar[str] = "attention_calibration"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="Attention calibration",
        paper="arXiv:2406.16008",
        idea="Documents are sorted by attention, less what a dummy gets at their position.",
        cost="one more prefill per document and another one; two in all with one_pass",
        requires="documents marked in the prompt; softmax attention",
        can_hurt_when="order carries meaning, or the dummy says something in your domain",
    )
    needs_documents = True

    dummy: str = " This text is left blank."
    best_last: bool = True
    one_pass: bool = False
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.dummy, str) or not self.dummy:
            raise MethodConfigError(
                f"AttentionCalibration: dummy must be a text, got {self.dummy!r}."
            )
        if self.layers is not None:
            layers = as_indices("AttentionCalibration", "layers", self.layers)
            object.__setattr__(self, "layers", layers)

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """No change in the model, whose attention has to be within reach, though."""
        check_layers("attention_calibration", self.layers, traits)
        return AttentionPlan()

    def arrange(self, prompt: TokenizedPrompt, runner: Runner) -> Sequence[int]:
        """By attention less the attention of the position."""
        documents = prompt.documents_ids
        if len(documents) < 2:
            return range(len(documents))
        layers = self._layers(runner.traits)
        text = runner.token_ids(self.dummy)
        if not text:
            raise MethodConfigError(
                f"attention_calibration: this tokenizer makes no tokens of the dummy "
                f"{self.dummy!r}. Pass dummy='...' with words in it."
            )
        dummies = [tuple(islice(cycle(text), len(document))) for document in documents]
        received = attention_received(prompt, runner, layers, per_token=True)
        if self.one_pass:
            blank = _with_documents(prompt, dummies)
            of_positions = attention_received(blank, runner, layers, per_token=True)
        else:
            of_positions = []
            for position, dummy in enumerate(dummies):
                swapped = _with_documents(
                    prompt, [*documents[:position], dummy, *documents[position + 1 :]]
                )
                of_positions.append(
                    attention_received(swapped, runner, layers, per_token=True)[position]
                )
        relevance = [own - bias for own, bias in zip(received, of_positions, strict=True)]
        sign = 1 if self.best_last else -1
        return sorted(range(len(documents)), key=lambda index: sign * relevance[index])

    def _layers(self, traits: ModelTraits) -> tuple[int, ...]:
        if self.layers is not None:
            return self.layers
        layers = sorted(traits.layers)
        return tuple(layers[len(layers) // 2 :])


def _with_documents(prompt: TokenizedPrompt, documents: Sequence[Sequence[int]]) -> TokenizedPrompt:
    return TokenizedPrompt.assembled(
        prefix=prompt.prefix_ids,
        documents=documents,
        suffix=prompt.suffix_ids,
        document_ids=prompt.document_ids,
    )
