"""How sure a model is of its next token: an objective that needs no answers."""

from __future__ import annotations

from collections.abc import Sequence

from rag_middle.errors import CalibrationConfigError
from rag_middle.generation import Prompt, RagMiddleModel
from rag_middle.methods import Method
from rag_middle.tokens import TemplateName

__all__ = ["EntropyObjective"]


class EntropyObjective:
    """Minus the mean entropy, in nats, of the first answer token.

    ZeroTuning (arXiv:2505.11739) has an unsupervised variant that minimises the entropy of what
    the model gives out; over which tokens it is taken there has not been checked. A model can be
    sure of a wrong answer: check the result on questions whose answers are known.

    Args:
        model: to run; its own method is not used.
        prompts: without answers.
        template: as in generation.

    Raises:
        CalibrationConfigError: there are no prompts.
    """

    def __init__(
        self,
        model: RagMiddleModel,
        prompts: Sequence[Prompt],
        *,
        template: TemplateName = "auto",
    ) -> None:
        if not prompts:
            raise CalibrationConfigError("An entropy needs prompts to take it of: give some.")
        # Candidates differ in numbers only: that the method reaches the model is checked once.
        self._model = RagMiddleModel(
            model.model,
            model.tokenizer,
            context_window=model.context_window,
            self_check=False,
            kernels=model.kernels,
        )
        self._prompts = [self._model.encode(prompt, template=template) for prompt in prompts]

    def __call__(self, method: Method) -> float:
        """Higher is surer, at most 0."""
        total = 0.0
        for prompt in self._prompts:
            logits = self._model.logits(prompt, method=method, on_missing_documents="ignore")
            log_probabilities = logits.double().log_softmax(-1)
            total += float((log_probabilities.exp() * log_probabilities).nansum())
        return total / len(self._prompts)
