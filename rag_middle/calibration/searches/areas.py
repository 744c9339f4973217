"""SIW: dense and sparse areas, their factors, and the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import torch

from rag_middle.attention import model_traits
from rag_middle.calibration.examples import Example
from rag_middle.calibration.objective import Criterion
from rag_middle.calibration.scoring import Candidate
from rag_middle.calibration.searches.base import (
    Search,
    SearchInputs,
    SearchResult,
    layer_ranges,
    num_layers,
    rank,
    require_numbers,
    require_whole,
)
from rag_middle.errors import ConfigError
from rag_middle.generation import RagMiddleModel
from rag_middle.generation.prompts import LockedTokenizer, ModelRunner
from rag_middle.methods import SIW
from rag_middle.methods.siw.areas import document_density


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
    criterion: ClassVar[Criterion] = "log_likelihood"

    areas: int = 5
    dense: tuple[float, ...] = (0.5, 0.7, 0.9, 1.0)
    sparse: tuple[float, ...] = (1.0, 1.1, 1.3, 1.5)
    top_share: float = 0.3

    def __post_init__(self) -> None:
        require_numbers(dense=self.dense, sparse=self.sparse)
        require_whole(1, areas=self.areas)
        for dense, sparse in product(self.dense, self.sparse):  # refused now, not after an hour
            SIW(alpha_dense=dense, alpha_sparse=sparse, top_share=self.top_share)

    def max_candidates(self, model: RagMiddleModel) -> int:
        neutral = 1.0 in self.dense and 1.0 in self.sparse
        factors = len(self.dense) * len(self.sparse) - neutral
        return factors * len(layer_ranges(num_layers(model)))

    def run(self, inputs: SearchInputs) -> SearchResult:
        if not inputs.examples:
            raise ConfigError("Areas are found on examples: give some beside the objective.")
        is_dense = self.dense_areas(inputs.model, inputs.examples)
        candidates = []
        for dense, sparse, layers in product(
            self.dense, self.sparse, layer_ranges(num_layers(inputs.model))
        ):
            areas = {layer: is_dense[layer] for layer in layers if layer in is_dense}
            if areas and (dense, sparse) != (1.0, 1.0):
                method = SIW(
                    alpha_dense=dense,
                    alpha_sparse=sparse,
                    dense_areas=areas,
                    top_share=self.top_share,
                )
                key = f"dense x {dense:g}, sparse x {sparse:g} in layers {layers[0]}-{layers[-1]}"
                candidates.append(Candidate(key, method))
        return SearchResult(
            ranked=rank(candidates, inputs.evaluator),
            details={"dense_areas": {str(layer): list(row) for layer, row in is_dense.items()}},
        )

    def dense_areas(
        self, model: RagMiddleModel, examples: Sequence[Example]
    ) -> dict[int, tuple[bool, ...]]:
        """For every layer with softmax attention, which areas are dense."""
        layers = sorted(model_traits(model.model).layers)
        runner = ModelRunner(model.model, LockedTokenizer(model.tokenizer), self.method)
        excess = torch.zeros(len(layers), self.areas, dtype=torch.float64, device="cpu")
        for example in examples:
            prompt = model.encode(example.prompt)
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
