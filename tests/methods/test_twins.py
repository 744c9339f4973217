"""Every method that changes attention, in a whole model, against a twin of plain loops."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from torch import Tensor

from rag_middle.attention import model_traits
from rag_middle.layout import PromptLayout
from rag_middle.methods import (
    APE,
    DSAS,
    LPES,
    PINE,
    SIW,
    CacheBlend,
    Compose,
    DySCO,
    Method,
    MoICE,
    MsPoE,
    NoInterDocumentAttention,
    ParallelContextWindows,
    PositionalHiddenStates,
    PositionInterpolation,
    RoToR,
    SelfExtend,
    SetBasedPrompting,
    StructuredPrompting,
    ZeroTuning,
)
from tests.conftest import FamilyModel
from tests.contract.cases import Prompt
from tests.families import FAMILIES
from tests.methods.against_naive import (
    FACTORS,
    MODELS,
    PROMPTS,
    assert_equal_to_naive,
    naive,
    routers_for,
)
from tests.reference.cacheblend import NaiveCacheBlend
from tests.reference.document_blocks import NaiveBlocks
from tests.reference.dsas import NaiveDSAS
from tests.reference.dysco import NaiveDySCO
from tests.reference.llama import NaiveLlama
from tests.reference.moice import NaiveMoICE
from tests.reference.ms_poe import NaiveMsPoE
from tests.reference.pine import naive_pine, rotary_place
from tests.reference.position_scaling import NaivePositionScaling
from tests.reference.positional_hidden_states import NaivePositionalHiddenStates
from tests.reference.rotor import NaiveRotor
from tests.reference.self_extend import NaiveSelfExtend
from tests.reference.siw import NaiveSIW
from tests.reference.zero_tuning import NaiveZeroTuning
from tests.tiny_models import build, tiny

pytestmark = pytest.mark.thorough

WAYS = [("llama", "sdpa"), ("qwen3", "eager")]


@dataclass
class NaivePine(NaiveLlama):
    """The operator's twin in every layer."""

    documents: tuple[tuple[int, int], ...] = ()
    ablation: str | None = None

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        q, k, v = self.project(layer, hidden)
        frequencies = self.theta ** -(torch.arange(0, self.head_size, 2) / self.head_size)
        angles = torch.arange(hidden.shape[0])[:, None] * frequencies
        place = rotary_place(angles.cos(), angles.sin(), "half")
        scale = self.head_size**-0.5
        return naive_pine(q, k, v, self.documents, place, scale, ablation=self.ablation)[0]


@dataclass
class NaiveBoth(NaivePositionalHiddenStates, NaiveSIW):
    """Rows of documents are SIW's; the last prompt row and later ones attend with scaled channels.

    The first class computes its rows from the weights of the second.
    """


@dataclass
class NaiveLine9(NaiveMsPoE):
    """A head takes the ratio whose number stands at its place in the order by awareness."""

    def ratios(self, q: Tensor, k: Tensor) -> list[float]:
        by_rank = super().ratios(q, k)
        order = sorted(range(len(by_rank)), key=by_rank.__getitem__)
        return [sorted(by_rank)[number] for number in order]


@dataclass
class NaiveRedistributed(NaiveSIW):
    """What the initial token loses goes to the tokens that the last one attends to most."""

    def attention(self, layer: int, hidden: Tensor) -> Tensor:
        q, k, v = self.project(layer, hidden)
        weights = self.weights_of_heads(q, k)
        if layer in self.alphas:
            last = weights[:, self.prompt_tokens - 1, : self.prompt_tokens].mean(0)
            last[0] = 0
            best = sorted(range(self.prompt_tokens), key=lambda token: -last[token].item())
            keys = best[: max(1, round(self.top_share * self.prompt_tokens))]
            for (start, end), alpha in zip(self.documents, self.alphas[layer] or (), strict=True):
                for row in range(start, end):
                    seen = {key: last[key] for key in keys if key <= row}
                    for head in weights if seen else ():
                        lost = (1 - alpha) * head[row, 0]
                        head[row, 0] -= lost
                        for key, share in seen.items():
                            head[row, key] += lost * share / sum(seen.values())
        return torch.stack([weights[h] @ v[self.group(h)] for h in range(self.heads)])


#: Plain loops over documents are slow: short batches, whose second prompt is padded on the left.
SHORTER = (
    Prompt.random(PromptLayout(16, ((2, 6), (6, 9), (9, 14))), seed=31),
    Prompt.random(PromptLayout(9, ((1, 2), (2, 6), (6, 7))), seed=32),
)
#: The second has an empty document; the third has neither prefix nor suffix worth the name.
CIRCLES = (
    Prompt.random(PromptLayout(15, ((2, 5), (5, 9), (9, 11))), seed=31),
    Prompt.random(PromptLayout(9, ((1, 3), (3, 3), (3, 7))), seed=32),
    Prompt.random(PromptLayout(10, ((0, 4), (4, 9))), seed=33),
)
#: With five documents, the better half is two.
GATED = (
    Prompt.random(PromptLayout(31, ((3, 8), (8, 12), (12, 17), (17, 21), (21, 26))), seed=41),
    Prompt.random(PromptLayout(19, ((2, 6), (6, 13))), seed=42),
    Prompt.random(PromptLayout(28, ((1, 4), (4, 16), (16, 24))), seed=43),
)

ALPHAS = (0.0, 3.0, 0.4)
FOUND: dict[str, Any] = {"alpha_dense": 0.2, "alpha_sparse": 2.5}
HEADS = ((0, 1), (1, 3), (1, 0))
#: Two tokens in a row that each occur in the prompts, and one alone.
TEMPLATE = (tuple(PROMPTS[0].ids[0, 5:7].tolist()), (int(PROMPTS[1].ids[0, 3]),))
BY_SHARE = {"strength": 20.0, "top_p": 0.6, "top_k": 100, "decay": 0.75}
BY_NUMBER = {"strength": 30.0, "top_p": 1.0, "top_k": 4, "decay": 0.9}


def _template_positions(prompt: Any) -> list[int]:
    ids = prompt.ids[0].tolist()
    return [
        start + offset
        for sequence in TEMPLATE
        for start in range(len(ids))
        if tuple(ids[start : start + len(sequence)]) == sequence
        for offset in range(len(sequence))
    ]


Case = tuple[Method, type[NaiveLlama], dict[str, Any], Sequence[Prompt]]


def _cases() -> dict[str, Case]:
    cases: dict[str, Case] = {}

    def add(
        name: str,
        method: Method,
        twin: type[NaiveLlama],
        prompts: Sequence[Prompt] = PROMPTS,
        **settings: Any,
    ) -> None:
        cases[name] = (method, twin, settings, prompts)

    for ablation in (None, "reversed", "no_reassignment"):
        pine = PINE(ablation=ablation)  # type: ignore[arg-type]
        add(f"pine {ablation}", pine, NaivePine, CIRCLES[:2], ablation=ablation)
    add("rotor", RoToR(order="given"), NaiveRotor, CIRCLES)
    for name, apart, blocks in (
        ("kept", NoInterDocumentAttention(), {"placement": "kept"}),
        ("last", NoInterDocumentAttention(equal_positions=True), {"placement": "last"}),
        ("start", ParallelContextWindows(), {"placement": "start"}),
        ("end", ParallelContextWindows(right_indentation=True), {"placement": "end"}),
        ("set", SetBasedPrompting(), {"placement": "start"}),
        ("structured", StructuredPrompting(), {"placement": "end", "one_of_many": True}),
        (
            "ape",
            APE(temperature=0.5, scale=0.7),
            {"placement": "start", "temperature": 0.5, "scale": 0.7},
        ),
        ("ape wide", APE(temperature=1.5, scale=1), {"placement": "start", "temperature": 1.5}),
        ("cacheblend of nothing", CacheBlend(recompute_share=0), {"placement": "order"}),
    ):
        add(f"blocks {name}", apart, NaiveBlocks, SHORTER, **blocks)
    for share, layer in ((0.2, 1), (0.5, 1), (0.3, 2)):
        blend = CacheBlend(recompute_share=share, check_layer=layer)
        add(
            f"cacheblend {share} {layer}",
            blend,
            NaiveCacheBlend,
            SHORTER,
            share=share,
            check_layer=layer,
        )
    for scale in (0.5, 1.7):
        interpolation = PositionInterpolation(scale=scale)
        add(f"interpolation {scale}", interpolation, NaivePositionScaling, scales=(scale,) * 3)
    one = PositionInterpolation(scale=2.0, layers=(1,))
    add("interpolation of a layer", one, NaivePositionScaling, scales=(1.0, 2.0, 1.0))
    add("lpes", LPES(factors=(1.2, 1.9, 1.4)), NaivePositionScaling, scales=(1.2, 1.9, 1.4))
    for heads in (
        {"first_layer": 0, "threshold": 1.0},
        {"first_layer": 1, "threshold": 2.0, "min_ratio": 0.6, "max_ratio": 2.4},
        {"first_layer": 2},
    ):
        add(f"ms_poe {heads}", MsPoE(**heads), NaiveMsPoE, **heads)  # type: ignore[arg-type]
    line_9: dict[str, Any] = {"first_layer": 0, "threshold": 1.0}
    add("ms_poe line 9", MsPoE(assign="argsort", **line_9), NaiveLine9, **line_9)
    in_order = MsPoE(first_layer=0, head_order="sequential")
    add("ms_poe sequential", in_order, NaiveMsPoE, first_layer=0, sequential=True)
    ratios: dict[str, Any] = {"first_layer": 0, "min_ratio": 0.6, "max_ratio": 2.4}
    by_entropy = MsPoE(head_order="entropy", **ratios)
    add("ms_poe entropy", by_entropy, NaiveMsPoE, by_entropy=True, **ratios)
    for group, window, base in ((2, 4, None), (3, 3, None), (4, 7, None), (2, 2, 3)):
        extend = SelfExtend(group=group, window=window, log_scale_base=base)
        grouped: dict[str, Any] = {"group_size": group, "window": window, "log_scale_base": base}
        add(f"self_extend {group} {window}", extend, NaiveSelfExtend, **grouped)
    for token, alphas in ((0, ALPHAS), (0, None), (1, ALPHAS), (6, ALPHAS)):
        options = {"alpha_per_document": alphas} if alphas else FOUND
        add(
            f"self_extend+siw {token} {alphas}",
            Compose(
                methods=(SelfExtend(group=3, window=5), SIW(layers=(0, 2), token=token, **options))
            ),
            NaiveSelfExtend,
            group_size=3,
            window=5,
            alphas={0: alphas, 2: alphas},
            token=token,
            **FOUND,
        )
    for layers in ((0, 1, 2), (1,)):
        siw = SIW(alpha_per_document=ALPHAS, layers=layers)
        add(f"siw {layers}", siw, NaiveSIW, alphas=dict.fromkeys(layers, ALPHAS))
    for token, renormalise in ((1, False), (6, False), (0, True), (6, True)):  # 6: in a document
        siw = SIW(
            alpha_per_document=ALPHAS,
            layers=(0, 2),
            token=token,
            ablation="renormalised" if renormalise else None,
        )
        add(
            f"siw token {token} {renormalise}",
            siw,
            NaiveSIW,
            alphas=dict.fromkeys((0, 2), ALPHAS),
            token=token,
            renormalise=renormalise,
        )
    redistributed = SIW(alpha_per_document=ALPHAS, layers=(0, 2), ablation="redistributed")
    both = dict.fromkeys((0, 2), ALPHAS)
    add("siw redistributed", redistributed, NaiveRedistributed, alphas=both)
    # Three documents have their centres at 1/6, 1/2 and 5/6.
    calibrated = SIW(dense_areas={0: (True, False), 2: (False, True, True, False)}, **FOUND)
    areas = {0: (0.2, 2.5, 2.5), 2: (2.5, 0.2, 2.5)}
    add("siw calibrated", calibrated, NaiveSIW, alphas=areas)
    for top in (0.1, 0.3, 0.6):
        siw = SIW(layers=(0, 2), top_share=top, **FOUND)
        found = {"alphas": {0: None, 2: None}, "top_share": top, **FOUND}
        add(f"siw found {top}", siw, NaiveSIW, **found)
    every, some = (0, 1, 2), (1, 2)
    channels: dict[str, Any]
    for index, channels in enumerate(
        (
            {"channels": (5,), "factor": -1.0},
            {"channels": (5,), "factor": 0.0, "last_tokens": 4},
            {"channels": (2, 40, 17), "factor": 0.5, "scale_values": True},
            {"channels": (5, 6), "factor": -0.5, "skip_first": 3, "last_tokens": 2},
            {"channels": (5,), "factor": -1.0, "last_tokens": None},
            {"channels": (9,), "factor": 3.0, "skip_first": 2, "scale_values": True}
            | {"last_tokens": 5},
        )
    ):
        layers = (1,) if index % 2 else every
        hidden = PositionalHiddenStates(layers=layers, **channels)
        twin = NaivePositionalHiddenStates
        add(f"hidden {channels}", hidden, twin, changed_layers=layers, **channels)
    both = Compose(
        methods=(
            SIW(alpha_per_document=ALPHAS, layers=every),
            PositionalHiddenStates(channels=(3, 40), factor=-1, layers=some),
        )
    )
    add(
        "siw+hidden",
        both,
        NaiveBoth,
        alphas=dict.fromkeys(every, ALPHAS),
        channels=(3, 40),
        factor=-1.0,
        changed_layers=some,
    )
    uniform = {layer: dict.fromkeys(range(4), 2.5) for layer in every}
    add("zero_tuning", ZeroTuning(factor=2.5), NaiveZeroTuning, factors=uniform)
    tuned = ZeroTuning(factor=0.1, heads=(3, 1), layers=(0, 2))
    two = {0: {1: 0.1, 3: 0.1}, 2: {1: 0.1, 3: 0.1}}
    add("zero_tuning of heads", tuned, NaiveZeroTuning, factors=two)
    tuned = ZeroTuning(factor=(0.2, 4), heads=(2, 0), layers=(1,))
    add("zero_tuning by head", tuned, NaiveZeroTuning, factors={1: {2: 0.2, 0: 4.0}})
    gates: dict[str, Any]
    for gates in ({}, {"alpha": 3.0, "beta": 0.1, "top_tokens": 2}):
        add(f"dsas {gates}", DSAS(layers=some, **gates), NaiveDSAS, GATED, changed=some, **gates)
    for selection, changed, observed in ((BY_SHARE, 3, 7), (BY_NUMBER, 1, 0), (BY_NUMBER, 1, 7)):
        scaled = DySCO(
            heads=HEADS,
            changed_prompt_tokens=changed,
            observed_tokens=observed,
            template_sequences=TEMPLATE,
            **selection,  # type: ignore[arg-type]
        )
        add(
            f"dysco {changed} {observed}",
            scaled,
            NaiveDySCO,
            heads_of_retrieval=HEADS,
            changed=changed,
            observed=observed,
            never=_template_positions,
            **selection,
        )
    mixed = MoICE(routers="uniform", base_factors=FACTORS)
    add("moice uniform", mixed, NaiveMoICE, PROMPTS[:2], factors=FACTORS)
    return cases


CASES = _cases()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("model", "implementation"), WAYS)
@pytest.mark.one_in(2)
def test_logits_are_those_of_the_twin(
    model: str, implementation: str, name: str, family_model: FamilyModel
) -> None:
    method, twin, settings, prompts = CASES[name]
    if "documents" in {field.name for field in fields(twin)}:
        settings = {"documents": lambda prompt: prompt.layout.documents} | settings
    assert_equal_to_naive(family_model(model, implementation), method, twin, prompts, **settings)


@pytest.mark.parametrize("top_k", [3, 2, 1])
@pytest.mark.parametrize(("model", "implementation"), WAYS)
@pytest.mark.one_in(4)
def test_trained_experts(
    model: str, implementation: str, top_k: int, family_model: FamilyModel
) -> None:
    transformer = family_model(model, implementation)
    routers = routers_for(transformer)
    assert_equal_to_naive(
        transformer,
        MoICE(routers=routers, top_k=top_k),
        NaiveMoICE,
        PROMPTS[:2],
        factors=FACTORS,
        routers={layer: tuple(gate) for layer, gate in routers.gates.items()},
        top_k=top_k,
    )


@pytest.mark.parametrize(("name", "implementation"), WAYS)
@pytest.mark.one_in(2)
def test_ms_poe_with_a_key_for_every_head(name: str, implementation: str) -> None:
    config = tiny(type(FAMILIES[name].config()), num_key_value_heads=4)
    model = build("every head", config, implementation)
    settings: dict[str, Any] = {"first_layer": 0, "threshold": 1.0}
    assert_equal_to_naive(model, MsPoE(**settings), NaiveMsPoE, **settings)


@pytest.mark.parametrize("name", MODELS)
def test_the_naive_decoder_is_the_model(name: str, family_model: FamilyModel) -> None:
    model, prompt = family_model(name), PROMPTS[0]
    logits = naive(NaiveLlama, model, prompt).logits(prompt.ids[0])
    torch.testing.assert_close(logits, model(prompt.ids).logits[0], atol=1e-4, rtol=0)
    assert model_traits(model).num_layers == 3
