"""Channels of hidden states that drift with position (arXiv:2406.02536, figures 3, 9 and 12)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rag_middle import ConfigError, RagMiddleModel
from rag_middle.attention import applied, in_eval_mode
from rag_middle.calibration import ChannelSearch, mean_hidden_states
from rag_middle.evaluation import LabelledMethod
from rag_middle.layout import PromptLayout
from rag_middle.methods import PositionalHiddenStates
from rag_middle.tokens import TokenizedPrompt
from rag_middle_reproduce.fitted import random_pairs
from rag_middle_reproduce.perturbations import CroppedMask
from rag_middle_reproduce.views import Asked, Shown, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["HiddenStatesView", "cropped_hidden_states", "moved_hidden_states"]


@dataclass(frozen=True, kw_only=True)
class HiddenStatesView(View):
    """Mean value of a channel along random texts, a line for each layer.

    The channels are those of the model's methods; without any, the smoothest one of the search.

    Attributes:
        texts: that are averaged over, of random strings.
        tokens: of each text.
        skip: first positions that are not drawn, where outliers are.
        span: first and last of 0-based tokens that are perturbed, drawn once more with their mask
            cropped (`CroppedMask`) and once with their position ids less `shift`.
        shift: of the position ids.
    """

    texts: int = 250
    tokens: int = 1000
    skip: int = 30
    span: tuple[int, int] | None = None
    shift: int = 200

    def tried_out(self) -> HiddenStatesView:
        return replace(self, texts=2, tokens=120, span=self.span and (60, 80), shift=20)

    def shown(
        self, model: RagMiddleModel, asked: Sequence[Asked], methods: Sequence[LabelledMethod]
    ) -> Iterator[Shown]:
        """A picture for each channel and perturbation, and its values."""
        texts = random_pairs(model, texts=self.texts, tokens=self.tokens)
        states = {"hidden states": mean_hidden_states(model, texts)}
        channels = [
            channel
            for labelled in methods
            if isinstance(labelled.method, PositionalHiddenStates)
            for channel in labelled.method.channels
        ]
        if not channels:
            found = ChannelSearch().ranked(states["hidden states"])
            channels = [found[0].channel] if found else []
        if not channels:
            raise ConfigError("No channel's mean drifts one way along these texts: read more.")
        if self.span is not None:
            tokens = range(self.span[0], self.span[1] + 1)
            states["cropped mask"] = cropped_hidden_states(model, texts, tokens)
            states["moved positions"] = moved_hidden_states(model, texts, tokens, self.shift)
        for channel in channels:
            for name, hidden in states.items():
                values = hidden[:, :, channel]
                yield Shown(
                    name=f"channel {channel}, {name}",
                    numbers={"channel": channel, "states": name, "values": values.tolist()},
                    figure=_lines(values, self.skip),
                )


def cropped_hidden_states(model: RagMiddleModel, texts: Tensor, tokens: range) -> Tensor:
    """As `mean_hidden_states`, with the mask of some tokens cropped as by `CroppedMask`.

    Args:
        model: left as it is found.
        texts: ids `[texts, n]`.
        tokens: 0-based positions that attend to themselves and the first token only.

    Raises:
        ConfigError: tokens that the texts have not.
    """
    _require_within(tokens, texts)
    layout = PromptLayout(texts.shape[1], ((tokens.start, tokens.stop),))
    means = []
    for text in texts:
        prompt = TokenizedPrompt(
            input_ids=tuple(text.tolist()), layout=layout, document_ids=(None,)
        )
        with applied(model.model, CroppedMask(document=0), [prompt]):
            means.append(mean_hidden_states(model, text[None]))
    return torch.stack(means).mean(0)


@torch.no_grad()
def moved_hidden_states(model: RagMiddleModel, texts: Tensor, tokens: range, shift: int) -> Tensor:
    """As `mean_hidden_states`, with the position ids of some tokens less `shift`.

    Args:
        model: left as it is found.
        texts: ids `[texts, n]`.
        tokens: 0-based positions that are moved.
        shift: at most the first of them.

    Raises:
        ConfigError: tokens that the texts have not.
    """
    _require_within(tokens, texts)
    positions = torch.arange(texts.shape[1], device=model.device)
    positions[tokens.start : tokens.stop] -= shift
    total: Tensor | float = 0.0
    with in_eval_mode(model.model):
        for text in texts:
            states = model.model(
                input_ids=text[None].to(model.device),
                position_ids=positions[None],
                output_hidden_states=True,
                use_cache=False,
            ).hidden_states[1:]
            total = total + torch.stack([layer[0].double().cpu() for layer in states])
    assert isinstance(total, Tensor)
    return (total / len(texts)).float()


def _require_within(tokens: range, texts: Tensor) -> None:
    if not 0 <= tokens.start < tokens.stop <= texts.shape[1]:
        raise ConfigError(
            f"Tokens {tokens.start} to {tokens.stop - 1} are not within texts of {texts.shape[1]} "
            "tokens: perturb others."
        )


def _lines(values: Tensor, skip: int) -> Figure:
    """Values `[layers, n]` along positions, the deeper a layer the lighter."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    for layer, line in enumerate(values.tolist()):
        colour = colormaps["viridis"](layer / max(1, len(values) - 1))
        axes.plot(range(skip, len(line)), line[skip:], color=colour, linewidth=0.8)
    axes.set_xlabel("position in tokens")
    axes.set_ylabel("mean hidden state, a line for each layer")
    return figure
