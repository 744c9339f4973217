"""Golden cases of the search for positional channels: statistics instead of logits."""

from __future__ import annotations

from typing import Any

import torch

from rag_middle.methods.positional_hidden_states.channels import (
    channel_smoothness,
    channel_trends,
    rank_channels,
)
from rag_middle.verify.cases import GoldenCase

SEARCH = "positional_hidden_search"

_DIRECTIONS = {0: 0, 1: 1, 2: -1}  # how the authors' code writes them
_PAPER_SKIP = 100  # positions; the authors' script skips more


def search_difference(case: GoldenCase) -> tuple[float, str]:
    """Search the case's hidden states as the authors' code does.

    Returns:
        The largest absolute difference of a smoothness, and what else differs ("" for nothing).
    """
    params, fields = case.params, case.fields
    arrays = case.arrays()
    hidden = torch.from_numpy(arrays["hidden_states"])
    if hidden.shape[0] % 2:
        hidden = hidden[1:]  # the authors take an odd number of layers to include the embeddings
    skip_trend, skip_smoothness = params["skip_monotone"], params["skip_smoothness"]
    smoothness = channel_smoothness(
        hidden,
        skip=skip_smoothness,
        window=params["savgol"]["window_length"],
        order=params["savgol"]["polyorder"],
    )
    ranked = rank_channels(
        hidden, skip_trend=skip_trend, skip_smoothness=skip_smoothness, reference_code=True
    )
    trends = channel_trends(hidden, skip=skip_trend)
    differences = [(smoothness - torch.from_numpy(arrays["smoothness_all"])).abs().max()]
    order = [candidate.channel for candidate in ranked]
    comparisons: dict[str, tuple[Any, Any]] = {
        "trends": (
            trends.T.tolist(),
            [
                [_DIRECTIONS[value] for value in layers]
                for layers in fields["fit_and_monotic_per_layer"].values()
            ],
        ),
        "layers": (
            _layers(ranked),
            {str(channel): fields["mono_layers"][str(channel)] for channel in order},
        ),
        "layers, skipping less": (
            _layers(rank_channels(hidden, skip_trend=_PAPER_SKIP, reference_code=True)),
            {
                channel: layers
                for channel, layers in fields["mono_layers_skip100"].items()
                if len(layers) > hidden.shape[0] // 4
            },
        ),
        "candidates": (sorted(order), fields["candidates"]),
        "order": (order, fields["order_all"]),
        **{f"top {count}": (order[: int(count)], top) for count, top in fields["topk"].items()},
    }
    pooled = fields["min_smoothness"]
    differences += [
        torch.tensor(candidate.smoothness - pooled[str(candidate.channel)], device="cpu").abs()
        for candidate in ranked
    ]
    wrong = [name for name, (ours, theirs) in comparisons.items() if ours != theirs]
    return float(torch.stack(differences).max()), "differs in " + ", ".join(wrong) if wrong else ""


def _layers(ranked: Any) -> dict[str, list[int]]:
    return {str(candidate.channel): list(candidate.layers) for candidate in ranked}
