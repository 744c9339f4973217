"""What the contract is about: prompts, example parameters of each method, expected refusals.

A method that is registered and not in `EXAMPLES` fails `test_examples.py`; everything else here is
made from the two tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rag_middle.layout import PromptLayout
from rag_middle.methods import (
    APE,
    DSAS,
    LPES,
    PINE,
    SIW,
    AttentionBuckets,
    AttentionCalibration,
    AttentionSorting,
    AttnRank,
    CacheBlend,
    Compose,
    DySCO,
    LongContextReorder,
    MeasuredOrder,
    Method,
    MoICE,
    MsPoE,
    NoInterDocumentAttention,
    NoMethod,
    ParallelContextWindows,
    Permutation,
    PositionalHiddenStates,
    PositionInterpolation,
    PromptRepetition,
    RoToR,
    SelfExtend,
    SetBasedPrompting,
    StructuredPrompting,
    ZeroTuning,
)
from rag_middle.tokens import TokenizedPrompt
from tests.families import COMPLEX, FAMILIES, LATENT, NO_INTERFACE, Traits
from tests.prompts import laid_out
from tests.tiny_models import VOCABULARY

__all__ = [
    "ACTIVE",
    "AROUND",
    "BLOCKS",
    "EXAMPLES",
    "LONG",
    "ONE_DOCUMENT",
    "PAIRS",
    "SHORT",
    "Example",
    "Prompt",
    "expected_refusal",
    "pairs",
]


@dataclass(frozen=True, eq=False)
class Prompt:
    """Token ids ``[1, n]``, where the documents lie in them, and a retriever's scores of these."""

    ids: Tensor
    layout: PromptLayout
    scores: tuple[float, ...] | None = None

    @property
    def tokens(self) -> TokenizedPrompt:
        """As `applied` takes it."""
        return replace(laid_out(self.layout, self.ids[0].tolist()), scores=self.scores)

    @classmethod
    def random(cls, layout: PromptLayout, seed: int) -> Prompt:
        generator = torch.Generator().manual_seed(seed)
        return cls(torch.randint(1, VOCABULARY, (1, layout.length), generator=generator), layout)

    def permuted(self, order: Iterable[int]) -> Prompt:
        """The same prompt with its documents in another order."""
        pieces, spans = [self.ids[:, : self.layout.prefix_tokens]], []
        cursor = self.layout.prefix_tokens
        for start, end in (self.layout.documents[index] for index in order):
            pieces.append(self.ids[:, start:end])
            spans.append((cursor, cursor + end - start))
            cursor += end - start
        pieces.append(self.ids[:, self.layout.suffix_start :])
        return Prompt(torch.cat(pieces, dim=1), PromptLayout(self.layout.length, tuple(spans)))


# With the tokens generated in these tests everything stays below 32 tokens, where frequencies that
# depend on the length still stand still. Sliding windows are 8 tokens.
LONG = Prompt.random(PromptLayout(24, ((3, 8), (8, 12), (12, 19))), seed=3)
SHORT = Prompt.random(PromptLayout(17, ((2, 6), (6, 13))), seed=4)
ONE_DOCUMENT = Prompt(LONG.ids, PromptLayout(24, ((3, 19),)))


@dataclass(frozen=True, kw_only=True)
class Example:
    """Parameters of one method.

    Attributes:
        neutral: parameters that must leave the model's logits as they are.
        active: parameters, by a name for the test's id, that must move them.
        around: parameters of a method that acts around the model: its plan leaves the layers
            alone, and other documents or orders are what moves logits.
        neutral_prompt: where no parameter is neutral, a prompt that is.
    """

    neutral: Method
    active: Mapping[str, Method] = field(default_factory=dict)
    around: Mapping[str, Method] = field(default_factory=dict)
    neutral_prompt: Prompt = LONG


#: Methods whose documents do not attend to each other.
BLOCKS = (
    NoInterDocumentAttention
    | ParallelContextWindows
    | SetBasedPrompting
    | StructuredPrompting
    | APE
)

_SIW = SIW(alpha_per_document=None, alpha_dense=0.3, alpha_sparse=2.0, layers=(0, 1, 2))
_CHANNEL = PositionalHiddenStates(channels=(3,), factor=-1)

#: By registered name. The first active method of each is what one-method-at-a-time tests take.
EXAMPLES: dict[str, Example] = {
    "none": Example(neutral=NoMethod()),
    "pine": Example(neutral=PINE(), neutral_prompt=ONE_DOCUMENT, active={"pine": PINE()}),
    "ms_poe": Example(
        neutral=MsPoE(min_ratio=1, max_ratio=1, first_layer=0),
        active={
            "ms_poe": MsPoE(first_layer=0, threshold=1.0),
            "ms_poe_reference_code": MsPoE(first_layer=0, threshold=1.0, reference_code=True),
        },
    ),
    "positional_hidden_states": Example(
        neutral=PositionalHiddenStates(channels=(3,), factor=1),
        active={
            "positional_hidden_states": _CHANNEL,
            "positional_hidden_states_wide": PositionalHiddenStates(
                channels=(3, 40), factor=0, last_tokens=3, scale_values=True, skip_first=2
            ),
        },
    ),
    "lpes": Example(neutral=LPES(factors=1), active={"lpes": LPES(factors=(1.0, 1.3, 1.9))}),
    "siw": Example(
        neutral=SIW(alpha_dense=1, alpha_sparse=1, layers=(0, 1, 2)),
        active={
            "siw": _SIW,
            "siw_areas": SIW(
                alpha_dense=0.3,
                alpha_sparse=2.0,
                dense_areas={0: (True, False), 1: (False,), 2: (False, True, True)},
                layers=(0, 1, 2),
            ),
            "siw_renormalised": replace(_SIW, ablation="renormalised"),
        },
    ),
    "zero_tuning": Example(
        neutral=ZeroTuning(factor=1),
        active={"zero_tuning": ZeroTuning(factor=(0.2, 3.0), heads=(0, 1))},
    ),
    "dsas": Example(
        neutral=DSAS(beta=1),
        active={"dsas": DSAS(beta=0.1, layers=(0, 1, 2), top_tokens=3)},
    ),
    "position_interpolation": Example(
        neutral=PositionInterpolation(scale=1),
        active={"position_interpolation": PositionInterpolation(scale=1.7)},
    ),
    "attention_buckets": Example(
        neutral=AttentionBuckets(base_factors=(1, 1)),
        # Below the generation, a batch takes one base after the other: one base for all here.
        active={"attention_buckets": AttentionBuckets(base_factors=(0.01,))},
        around={"attention_buckets_several": AttentionBuckets(base_factors=(1, 0.2, 4))},
    ),
    "moice": Example(
        neutral=MoICE(routers="uniform", base_factors=(1, 1)),
        active={"moice": MoICE(routers="uniform", base_factors=(1, 0.01, 0.001))},
    ),
    "rotor": Example(
        neutral=RoToR(),
        neutral_prompt=ONE_DOCUMENT,
        active={"rotor": RoToR()},
        around={
            "rotor_by_score": RoToR(order="score"),
            "rotor_frequency": RoToR(order="frequency"),
            "rotor_routing": RoToR(routing=0.05),
        },
    ),
    "long_context_reorder": Example(
        neutral=LongContextReorder(),
        neutral_prompt=ONE_DOCUMENT,
        around={"long_context_reorder": LongContextReorder()},
    ),
    "attn_rank": Example(
        neutral=AttnRank(),
        neutral_prompt=ONE_DOCUMENT,
        around={
            "attn_rank": AttnRank(),
            "attn_rank_profile": AttnRank(profile=(0.1, 0.3, 0.2)),
        },
    ),
    "measured_order": Example(
        neutral=MeasuredOrder(accuracy=(0.1, 0.3)),
        neutral_prompt=ONE_DOCUMENT,
        around={"measured_order": MeasuredOrder(accuracy=(0.1, 0.3, 0.2))},
    ),
    "attention_sorting": Example(
        neutral=AttentionSorting(iterations=0),
        around={"attention_sorting": AttentionSorting(iterations=2)},
    ),
    "attention_calibration": Example(
        neutral=AttentionCalibration(),
        neutral_prompt=ONE_DOCUMENT,
        around={
            "attention_calibration": AttentionCalibration(dummy="!"),
            "attention_calibration_one_pass": AttentionCalibration(dummy="!", one_pass=True),
        },
    ),
    "permutation": Example(
        neutral=Permutation(orders=1),
        around={
            "permutation": Permutation(orders=3),
            "permutation_vote": Permutation(orders=3, combination="vote"),
        },
    ),
    "prompt_repetition": Example(
        neutral=PromptRepetition(times=1),
        around={"prompt_repetition": PromptRepetition(what="documents")},
    ),
    "self_extend": Example(
        neutral=SelfExtend(group=1, window=4),
        active={
            "self_extend": SelfExtend(group=2, window=4),
            # A group that does not divide the window, and queries that grow.
            "self_extend_log": SelfExtend(group=3, window=5, log_scale_base=4),
        },
    ),
    "dysco": Example(
        neutral=DySCO(heads=((0, 1), (1, 2)), strength=1),
        active={
            "dysco": DySCO(heads=((0, 1), (1, 2)), strength=20.0, top_p=0.5),
            "dysco_few": DySCO(
                heads=((1, 0),),
                strength=30.0,
                top_k=4,
                decay=1.0,
                changed_prompt_tokens=1,
                observed_tokens=0,
                template_sequences=((int(LONG.ids[0, 20]),),),
            ),
        },
    ),
    "no_inter_document_attention": Example(
        neutral=NoInterDocumentAttention(),
        neutral_prompt=ONE_DOCUMENT,
        active={
            "no_inter_document_attention": NoInterDocumentAttention(),
            "no_inter_document_attention_equal": NoInterDocumentAttention(equal_positions=True),
        },
    ),
    "parallel_context_windows": Example(
        neutral=ParallelContextWindows(),
        neutral_prompt=ONE_DOCUMENT,
        active={
            "parallel_context_windows": ParallelContextWindows(),
            "parallel_context_windows_right": ParallelContextWindows(right_indentation=True),
        },
    ),
    "set_based_prompting": Example(
        neutral=SetBasedPrompting(),
        neutral_prompt=ONE_DOCUMENT,
        active={"set_based_prompting": SetBasedPrompting()},
    ),
    "structured_prompting": Example(
        neutral=StructuredPrompting(),
        neutral_prompt=ONE_DOCUMENT,
        active={"structured_prompting": StructuredPrompting()},
    ),
    "ape": Example(
        neutral=APE(temperature=1, scale=1),
        neutral_prompt=ONE_DOCUMENT,
        active={"ape": APE(temperature=0.6, scale=0.8)},
    ),
    "cacheblend": Example(
        neutral=CacheBlend(recompute_share=1),
        active={
            "cacheblend": CacheBlend(recompute_share=0.25),
            "cacheblend_nothing": CacheBlend(recompute_share=0),
        },
    ),
    "compose": Example(
        neutral=Compose(
            methods=(
                SIW(alpha_dense=1, alpha_sparse=1, layers=(0, 1, 2)),
                PositionalHiddenStates(channels=(3,), factor=1),
            )
        ),
        active={"siw+positional_hidden_states": Compose(methods=(_SIW, _CHANNEL))},
    ),
}

#: Every active method by the name of its test.
ACTIVE: dict[str, Method] = {
    name: method for example in EXAMPLES.values() for name, method in example.active.items()
}

#: Methods that act around the model, likewise.
AROUND: dict[str, Method] = {
    name: method for example in EXAMPLES.values() for name, method in example.around.items()
}


def expected_refusal(method: Method, traits: Traits, family: str) -> str | None:
    """Why this method cannot be applied to a family with these traits, in a few words.

    Returns:
        None where it must work. Written from what is known of families, not by asking the package.
    """
    if isinstance(method, Compose):
        reasons = (expected_refusal(part, traits, family) for part in method.methods)
        return next(filter(None, reasons), None)
    free = NoMethod | LongContextReorder | MeasuredOrder | Permutation | PromptRepetition
    if isinstance(method, free):
        return None
    if isinstance(method, AttnRank) and method.profile is not None:
        return None
    if traits.unsupported == NO_INTERFACE:
        return "own attention code"
    if isinstance(method, PositionalHiddenStates | SIW | ZeroTuning):
        return None
    if isinstance(method, DSAS):
        return "chunks" if traits.unsupported == COMPLEX else None
    if isinstance(method, AttnRank | AttentionSorting | AttentionCalibration):
        return None  # every softmax attention can be looked at
    if isinstance(method, DySCO):
        return "linear attention" if traits.linear_layers else None
    keeps_positions = method == NoInterDocumentAttention()
    if traits.positions != "rope" and not keeps_positions:
        return "no rotary positions"
    if isinstance(method, AttentionBuckets | LPES | PositionInterpolation):
        return None
    if isinstance(method, PINE | RoToR | CacheBlend | BLOCKS) and traits.linear_layers:
        return "linear attention"
    if traits.unsupported in (LATENT, COMPLEX):
        return "unknown rotation"
    moves_keys = method == ParallelContextWindows(right_indentation=True) or isinstance(
        method, StructuredPrompting | CacheBlend
    )
    if (isinstance(method, PINE | RoToR) or moves_keys) and traits.qk_norm == "after":
        return "norm after rotation"
    return None


def pairs(names: Iterable[str] = FAMILIES) -> list[tuple[str, str, str]]:
    """``(family, active method, implementation)`` wherever the family can take the method."""
    return [
        (family, method, implementation)
        for family in names
        for method in ACTIVE
        for implementation in FAMILIES[family].implementations
        if expected_refusal(ACTIVE[method], FAMILIES[family].traits, family) is None
    ]


PAIRS = pairs()
