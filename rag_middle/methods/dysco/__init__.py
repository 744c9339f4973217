"""DySCO (arXiv:2602.22175): at each token, attend more to what retrieval heads attend to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from rag_middle.attention import AttentionPlan, ModelTraits
from rag_middle.errors import MethodConfigError
from rag_middle.methods.base import Method, MethodInfo, chosen_layers
from rag_middle.methods.requirements import require_interface, unsupported
from rag_middle.methods.rules import INDICES, no_default, number, option, several, whole
from rag_middle.tokens import TokenizedPrompt

_MOST = 1e6  # of the strength: beyond, nothing is left for what is not selected anyway


@dataclass(frozen=True, kw_only=True)
class DySCO(Method):
    r"""Attention to the tokens that retrieval heads find relevant is scaled up, token by token.

    For the token at column ``t``, a first pass of the model gives the attention ``a_h`` of the
    retrieval heads ``H``, and from it the relevance of every token so far:

    .. math:: r_t \propto \gamma\, r_{t-1} + \frac{1}{|H|} \sum_{h \in H} a_h

    normalised to a sum of one. A second pass adds ``log strength`` to the scores of the selected
    tokens, and of ``t`` itself, in every head of every layer: the smallest set of the most relevant
    tokens with the next one going above ``top_p``, and no more than ``top_k`` of them. Keys and
    values of the second pass are kept.

    Attributes:
        heads: retrieval heads, as pairs of 0-based layer and head. They differ from model to model:
            see `rag_middle.methods.dysco.detection`.
        strength: what selected tokens' weights are multiplied by, before the softmax normalises
            them; 1 is neutral.
        top_p: share of the relevance that selected tokens may hold together.
        top_k: most tokens that are selected.
        decay: ``gamma``, of the relevance found at earlier tokens.
        changed_prompt_tokens: last tokens of the prompt under scaled attention; with a chat
            template, those that open the answer and the one before.
        observed_tokens: prompt tokens before those, whose relevance is gathered only.
        template_sequences: token ids that are never selected where they stand in a row in the
            prompt: those of the chat template.

    References:
        DySCO, arXiv:2602.22175; the authors' code, princeton-pli/DySCO, which this follows in
        detail. There, ``intervention_warmup_steps`` is `changed_prompt_tokens` - 1, and
        ``context_warmup_steps`` is `observed_tokens` + 1. Differs: batches; any model with softmax
        attention; sliding windows, soft-capping and sinks as the model has them.

    Raises:
        UnsupportedGenerationError: the model is not called as a whole.
    """

    name: ClassVar[str] = "dysco"
    info: ClassVar[MethodInfo] = MethodInfo(
        title="DySCO",
        paper="arXiv:2602.22175",
        idea="Every generated token attends more to what retrieval heads have found relevant.",
        cost="generated tokens pass the layers up to the last retrieval head twice",
        requires="softmax attention in every layer; known retrieval heads",
        can_hurt_when="heads are not the model's retrieval heads, or the prompt is short",
    )
    conflicts: ClassVar[Mapping[str, str]] = {
        "self_extend": "DySCO reads the keys in the cache, and Self-Extend keeps every key twice. "
        "Use one of them",
        "positional_hidden_states": "DySCO lets tokens pass the model twice, and scaled channels "
        "are worked into keys once. Use one of them",
    }

    heads: tuple[tuple[int, int], ...] = no_default(
        "DySCO needs the model's retrieval heads: pass heads=((layer, head), ...), as "
        "rag_middle.methods.dysco.detection.retrieval_heads(model) finds them.",
        example=((0, 0),),
        rule=several(INDICES, "pairs of layer and head", at_least=1, distinct=True),
    )
    strength: float = option(2.0, number(above=0, most=_MOST), neutral=1)
    top_p: float = option(0.975, number(above=0, most=1))
    top_k: int = option(4096, whole(1))
    decay: float = option(0.75, number(least=0, most=1))
    changed_prompt_tokens: int = option(3, whole(1))
    observed_tokens: int = option(7, whole(0))
    template_sequences: tuple[tuple[int, ...], ...] = option(
        (), several(several(whole(0), "token ids", at_least=1), "rows of token ids")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(len(pair) != 2 for pair in self.heads):
            raise MethodConfigError(
                f"DySCO: heads must be pairs of layer and head, got {self.heads}."
            )

    def plan(self, prompts: tuple[TokenizedPrompt, ...], traits: ModelTraits) -> AttentionPlan:
        """The same change in every layer; they share what is known of the request."""
        require_interface("dysco", traits)
        if traits.mixed:
            raise unsupported(
                traits,
                "dysco passes tokens through the model twice, and layers that have no softmax "
                "attention, or another mixer beside it, keep a state that the first pass would "
                "change.",
            )
        for layer, head in self.heads:
            if layer not in traits.layers or head >= traits.layers[layer].heads:
                raise MethodConfigError(
                    f"DySCO: this {traits.model_type} model has no head {head} in layer {layer}: "
                    f"it has layers 0 to {traits.num_layers - 1} with "
                    f"{traits.layers[0].heads} heads in the first. Detect its own retrieval heads."
                )
        from rag_middle.methods.dysco.attention import RelevanceScaling

        never_selected = tuple(
            _occurrences(prompt.input_ids, self.template_sequences) for prompt in prompts
        )
        change = RelevanceScaling(self, never_selected)
        return AttentionPlan.uniform(chosen_layers(None, traits), change)


def _occurrences(ids: tuple[int, ...], sequences: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Positions of all tokens that belong to one of the sequences."""
    found: set[int] = set()
    for sequence in sequences:
        length = len(sequence)
        for start in range(len(ids) - length + 1):
            if ids[start : start + length] == sequence:
                found.update(range(start, start + length))
    return tuple(sorted(found))
