"""Searches that try every combination of a few settings, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Literal

import torch

from rag_middle.attention import model_traits
from rag_middle.calibration.objective import Criterion
from rag_middle.calibration.search import (
    Candidate,
    Proposals,
    Search,
    SearchInputs,
    layer_ranges,
    num_layers,
)
from rag_middle.errors import ConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.generation.prompts import LockedTokenizer, ModelRunner
from rag_middle.methods import SIW, DySCO, Method, MsPoE, SelfExtend, ZeroTuning
from rag_middle.methods.dysco.detection import retrieval_heads
from rag_middle.methods.rules import Rule, number, one_of, option, several, whole
from rag_middle.methods.siw.attention import document_density

#: Of DySCO's detection of heads: tokens of a random prompt at most, needles, and tokens of each.
_PROMPT, _NEEDLES, _NEEDLE = 512, 8, 8
_HeadRule = Literal["rank", "code"]


def _grid(make: Callable[..., Method], **values: Iterable[Any]) -> list[Candidate]:
    """A candidate for every combination of values, which its key names."""
    combinations = list(product(*values.values()))
    keys = [", ".join(map("{} {}".format, values, combination)) for combination in combinations]
    return [Candidate(key, make(*each)) for key, each in zip(keys, combinations, strict=True)]


def _values(default: tuple[Any, ...], rule: Rule) -> Any:
    """A field that holds the values that are tried."""
    return option(default, several(rule, "values", at_least=1))


@dataclass(frozen=True, kw_only=True)
class RatioSearch(Search):
    """Ms-PoE: ratio ranges and first layers, under the paper's head rule and the authors' code's.

    Attributes:
        ranges: ``(min_ratio, max_ratio)`` that are tried.
        first_layers: that are tried; those a model does not have are left out.
        head_rules: ``"rank"``: `MsPoE` with ``assign="rank"``; ``"code"``: with ``reference_code``.
    """

    method: ClassVar[str] = "ms_poe"

    ranges: tuple[tuple[float, float], ...] = _values(
        (
            (1.0, 1.2),
            (1.0, 1.5),
            (1.0, 1.8),
            (1.0, 2.0),
            (1.2, 1.5),
            (1.2, 1.8),
            (1.2, 2.2),
            (1.5, 2.0),
        ),
        several(number(above=0), "ratios", at_least=2),
    )
    first_layers: tuple[int, ...] = _values((0, 1, 2, 4, 8), whole(0))
    head_rules: tuple[_HeadRule, ...] = _values(("rank", "code"), one_of(_HeadRule))

    def max_candidates(self, model: RagMiddleModel) -> int:
        return len(self._candidates(model))

    def propose(self, inputs: SearchInputs) -> Proposals:
        yield self._candidates(inputs.model)
        return {}

    def _candidates(self, model: RagMiddleModel) -> list[Candidate]:
        layers = [layer for layer in self.first_layers if layer < num_layers(model)]
        if not layers:
            raise ConfigError(
                f"first_layers {list(self.first_layers)} are beyond the model's "
                f"{num_layers(model)} layers."
            )

        def ms_poe(ratios: Sequence[float], first_layer: int, rule: _HeadRule) -> Method:
            return MsPoE(
                min_ratio=ratios[0],
                max_ratio=ratios[1],
                first_layer=first_layer,
                reference_code=rule == "code",
            )

        return _grid(ms_poe, ratios=self.ranges, first_layer=layers, head_rule=self.head_rules)


@dataclass(frozen=True, kw_only=True)
class InitialTokenSearch(Search):
    """SIW: dense and sparse areas per layer from the examples, factors and layers by trial.

    Attributes:
        areas: parts that a prompt's documents are cut into; one is dense where its documents
            get more than their share of attended tokens, on average over the examples.
        dense: factors of dense areas that are tried.
        sparse: factors of sparse areas that are tried.
        top_share: share of tokens that count as attended to.
    """

    method: ClassVar[str] = "siw"

    areas: int = option(5, whole(1))
    dense: tuple[float, ...] = _values((0.5, 0.7, 0.9, 1.0), number(least=0))
    sparse: tuple[float, ...] = _values((1.0, 1.1, 1.3, 1.5), number(least=0))
    top_share: float = option(0.3, number(above=0, most=1))

    def max_candidates(self, model: RagMiddleModel) -> int:
        return len(self._factors()) * len(layer_ranges(num_layers(model)))

    def propose(self, inputs: SearchInputs) -> Proposals:
        if not inputs.examples:
            raise ConfigError("Areas are found on examples: give some beside the objective.")
        is_dense = self.dense_areas(inputs)
        candidates = []
        ranges = layer_ranges(num_layers(inputs.model))
        for (dense, sparse), layers in product(self._factors(), ranges):
            if areas := {layer: is_dense[layer] for layer in layers if layer in is_dense}:
                method = SIW(
                    alpha_dense=dense,
                    alpha_sparse=sparse,
                    dense_areas=areas,
                    top_share=self.top_share,
                )
                key = f"dense x {dense:g}, sparse x {sparse:g} in layers {layers[0]}-{layers[-1]}"
                candidates.append(Candidate(key, method))
        yield candidates
        return {"dense_areas": {str(layer): list(row) for layer, row in is_dense.items()}}

    def _factors(self) -> list[tuple[float, float]]:
        return [pair for pair in product(self.dense, self.sparse) if pair != (1.0, 1.0)]

    def dense_areas(self, inputs: SearchInputs) -> dict[int, tuple[bool, ...]]:
        """For every layer with softmax attention, which areas are dense."""
        model = inputs.model
        layers = sorted(model_traits(model.model).layers)
        runner = ModelRunner(model.model, LockedTokenizer(model.tokenizer), self.method)
        excess = torch.zeros(len(layers), self.areas, dtype=torch.float64, device="cpu")
        for example in inputs.examples:
            prompt = model.encode(example.prompt, template=inputs.template)
            count = len(prompt.layout.documents)
            attention = runner.last_token_attention(prompt).mean(dim=1)  # [layers, l]
            area = torch.tensor(
                [int((i + 0.5) / count * self.areas) for i in range(count)], device="cpu"
            )
            for row, layer_attention in enumerate(attention):
                density = document_density(layer_attention, prompt.layout, self.top_share)
                excess[row].index_add_(0, area, density.double().cpu())
        is_dense = (excess > 0).tolist()
        return {layer: tuple(row) for layer, row in zip(layers, is_dense, strict=True)}


@dataclass(frozen=True, kw_only=True)
class GroupSearch(Search):
    """Self-Extend: every group size under every window that it is not larger than.

    Windows that no prompt is longer than are left out: they change nothing. The grid is ours.

    Attributes:
        groups: tokens that share a position, each 2 or more.
        windows: in tokens.
    """

    method: ClassVar[str] = "self_extend"

    groups: tuple[int, ...] = _values((2, 4, 8), whole(2))
    windows: tuple[int, ...] = _values((128, 256, 512, 1024, 2048), whole(1))

    def max_candidates(self, model: RagMiddleModel) -> int:
        return len(self._pairs())

    def costly_method(self, model: RagMiddleModel) -> Method:
        return SelfExtend(group=min(self.groups), window=max(min(self.windows), min(self.groups)))

    def propose(self, inputs: SearchInputs) -> Proposals:
        pairs, prompts = self._pairs(), [example.prompt for example in inputs.examples]
        if prompts:
            longest = max(
                inputs.model.count_tokens(prompt, template=inputs.template) for prompt in prompts
            )
            pairs = [(group, window) for group, window in pairs if window < longest]
            if not pairs:
                raise ConfigError(
                    f"The longest prompt has {longest} tokens, and Self-Extend does not change "
                    f"prompts that fit in its window: windows are {list(self.windows)}. Give "
                    "shorter windows, no smaller than a group, or longer prompts."
                )
        yield [
            Candidate(f"group {group}, window {window}", SelfExtend(group=group, window=window))
            for group, window in pairs
        ]
        return {}

    def _pairs(self) -> list[tuple[int, int]]:
        return [pair for pair in product(self.groups, self.windows) if pair[0] <= pair[1]]


@dataclass(frozen=True, kw_only=True)
class HeadSearch(Search):
    """ZeroTuning: every head is tried alone, then factors of the best heads, the worst, and all.

    A head is changed in all layers at once, as in the authors' code. Those that do best with more
    attention to the initial token are up-effective, those that do worst down-effective. How many
    heads of either kind the paper takes has not been checked: several shares are tried.

    Attributes:
        trial: factor under which heads are told apart.
        shares: shares of the heads that are taken from either end.
        factors: of the heads taken.
    """

    method: ClassVar[str] = "zero_tuning"

    trial: float = option(2.0, number(least=0))
    shares: tuple[float, ...] = _values((0.2, 0.4), number(above=0, below=1))
    factors: tuple[float, ...] = _values((0.4, 0.6, 0.8, 1.25, 1.6, 2.5), number(least=0))

    def max_candidates(self, model: RagMiddleModel) -> int:
        return _num_heads(model) + (2 * len(self.shares) + 1) * len(self.factors)

    def propose(self, inputs: SearchInputs) -> Proposals:
        heads = range(_num_heads(inputs.model))
        outcomes = yield [
            Candidate(f"head {head} x {self.trial:g}", ZeroTuning(factor=self.trial, heads=(head,)))
            for head in heads
        ]
        scores = [outcome.score for outcome in outcomes]
        order = sorted(heads, key=scores.__getitem__, reverse=True)  # the best first
        groups: dict[tuple[int, ...] | None, str] = {None: "all heads"}
        for share in self.shares:
            count = max(1, round(share * len(order)))
            groups[tuple(sorted(order[:count]))] = f"{count} up-effective"
            groups[tuple(sorted(order[-count:]))] = f"{count} down-effective"
        yield [
            Candidate(f"{name} x {factor:g}", ZeroTuning(factor=factor, heads=taken))
            for (taken, name), factor in product(groups.items(), self.factors)
        ]
        return {"heads": scores}


def _num_heads(model: RagMiddleModel) -> int:
    """Query heads that every layer has."""
    return min((layer.heads for layer in model_traits(model.model).layers.values()), default=0)


@dataclass(frozen=True, kw_only=True)
class RetrievalHeadSearch(Search):
    """DySCO: numbers of the best retrieval heads, times strengths, times most tokens selected.

    Heads are detected on random tokens (`retrieval_heads`). The grid is ours. Answers are
    generated, because tokens attend otherwise one after the other.

    Attributes:
        counts: of heads; where fewer are found, those.
        strengths: that are tried.
        top_ks: most tokens that are selected.
    """

    method: ClassVar[str] = "dysco"
    criterion: ClassVar[Criterion] = "generated_answer"

    counts: tuple[int, ...] = _values((4, 16), whole(1))
    strengths: tuple[float, ...] = _values((1.5, 2.0, 3.0), number(above=0))
    top_ks: tuple[int, ...] = _values((64, 4096), whole(1))

    def max_candidates(self, model: RagMiddleModel) -> int:
        return len(self.counts) * len(self.strengths) * len(self.top_ks)

    def costly_method(self, model: RagMiddleModel) -> Method:
        # With heads in the last layer, every token passes all layers twice.
        return DySCO(heads=((max(model_traits(model.model).layers), 0),))

    def propose(self, inputs: SearchInputs) -> Proposals:
        # The needle's repetition has to fit after the prompt.
        room = (inputs.model.context_window or _PROMPT + _NEEDLE) - _NEEDLE
        heads = retrieval_heads(
            inputs.model.model,
            max(self.counts),
            prompt_tokens=min(_PROMPT, room),
            needle_tokens=_NEEDLE,
            needles=_NEEDLES,
            seed=inputs.seed,
        )
        counts = dict.fromkeys(min(count, len(heads)) for count in self.counts)
        yield _grid(
            lambda count, strength, top_k: DySCO(
                heads=heads[:count], strength=strength, top_k=top_k
            ),
            heads=counts,
            strength=self.strengths,
            top_k=self.top_ks,
        )
        return {"retrieval_heads": [list(head) for head in heads]}
