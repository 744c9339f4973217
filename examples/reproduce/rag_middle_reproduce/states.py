"""Channels of hidden states that drift with position (arXiv:2406.02536, figures 3, 9 and 12)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rag_middle import ConfigError, RagMiddleModel
from rag_middle.attention import applied, in_eval_mode
from rag_middle.calibration import ChannelSearch, mean_hidden_states
from rag_middle.evaluation import Bootstrap, LabelledMethod
from rag_middle.layout import PromptLayout
from rag_middle.methods import PositionalHiddenStates
from rag_middle.tokens import TokenizedPrompt
from rag_middle_reproduce.fitted import random_pairs
from rag_middle_reproduce.perturbations import CroppedMask
from rag_middle_reproduce.tables import markdown_table
from rag_middle_reproduce.views import Asked, Shown, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        """A picture for each channel and perturbation, and its values; then what the perturbations
        take back of the drift."""
        texts = random_pairs(model, texts=self.texts, tokens=self.tokens)
        channels = [
            channel
            for labelled in methods
            if isinstance(labelled.method, PositionalHiddenStates)
            for channel in labelled.method.channels
        ]
        if not channels:
            found = ChannelSearch().ranked(mean_hidden_states(model, texts))
            channels = [found[0].channel] if found else []
        if not channels:
            raise ConfigError("No channel's mean drifts one way along these texts: read more.")
        reads: dict[str, Callable[[Tensor], Tensor]] = {
            "hidden states": lambda text: mean_hidden_states(model, text[None])
        }
        if self.span is not None:
            tokens = range(self.span[0], self.span[1] + 1)
            reads["cropped mask"] = partial(cropped_hidden_states, model, tokens=tokens)
            reads["moved positions"] = partial(
                moved_hidden_states, model, tokens=tokens, shift=self.shift
            )
        states = {
            name: torch.stack([read(text)[:, :, channels] for text in texts])
            for name, read in reads.items()
        }  # [texts, layers, n, channels]
        for at, channel in enumerate(channels):
            own = {name: by_text[..., at] for name, by_text in states.items()}
            for name, by_text in own.items():
                values = by_text.mean(0)
                yield Shown(
                    name=f"channel {channel}, {name}",
                    numbers={"channel": channel, "states": name, "values": values.tolist()},
                    figure=_lines(values, self.skip),
                )
            if self.span is not None:
                yield drift_taken_back(channel, own, tokens, self.skip)


def cropped_hidden_states(model: RagMiddleModel, text: Tensor, tokens: range) -> Tensor:
    """Output of every decoder layer with the mask of some tokens cropped as by `CroppedMask`.

    Args:
        model: left as it is found.
        text: ids `[n]`.
        tokens: 0-based positions that attend to themselves and the first token only.

    Returns:
        float32 `[layers, n, hidden]`, as of `mean_hidden_states`.
    """
    prompt = TokenizedPrompt(
        input_ids=tuple(text.tolist()),
        layout=PromptLayout(len(text), ((tokens.start, tokens.stop),)),
        document_ids=(None,),
    )
    with applied(model.model, CroppedMask(document=0), [prompt]):
        return mean_hidden_states(model, text[None])


@torch.no_grad()
def moved_hidden_states(model: RagMiddleModel, text: Tensor, tokens: range, shift: int) -> Tensor:
    """Output of every decoder layer with the position ids of some tokens less `shift`.

    Args:
        model: left as it is found.
        text: ids `[n]`.
        tokens: 0-based positions that are moved.
        shift: at most the first of them.

    Returns:
        float32 `[layers, n, hidden]`, as of `mean_hidden_states`.
    """
    positions = torch.arange(len(text), device=model.device)
    positions[tokens.start : tokens.stop] -= shift
    with in_eval_mode(model.model):
        states = model.model(
            input_ids=text[None].to(model.device),
            position_ids=positions[None],
            output_hidden_states=True,
            use_cache=False,
        ).hidden_states[1:]
    return torch.stack([layer[0].float().cpu() for layer in states])


def drift_taken_back(channel: int, states: Mapping[str, Tensor], tokens: range, skip: int) -> Shown:
    """The share of a channel's rise that each perturbation takes back, the median over layers.

    The rise is from the mean of as many tokens after the skipped ones to that of the perturbed
    ones. Intervals are those of a bootstrap over texts.

    Args:
        channel: of `states`, of which the first are unperturbed, `[texts, layers, n]` each.
        states: by name.
        tokens: that are perturbed.
        skip: first positions that are not looked at.
    """
    plain, *_ = states.values()
    columns = [plain[..., skip : skip + len(tokens)].mean(-1)]
    columns += [values[..., tokens.start : tokens.stop].mean(-1) for values in states.values()]
    bootstrap = Bootstrap(torch.cat(columns, dim=1).double().numpy())

    def share(means: NDArray[np.float64], which: int) -> NDArray[np.float64]:
        early, late, *changed = np.split(means, len(columns), axis=-1)  # [..., layers] each
        median: NDArray[np.float64] = np.median((late - changed[which]) / (late - early), axis=-1)
        return median

    shares = {
        name: bootstrap.estimate(partial(share, which=which))
        for which, name in enumerate(list(states)[1:])
    }
    return Shown(
        name=f"channel {channel}, drift",
        numbers={
            "channel": channel,
            "taken_back": {name: [e.value, e.low, e.high] for name, e in shares.items()},
        },
        table=markdown_table(
            ["perturbation", "% of the rise that it takes back"],
            [[name, estimate.text(share=True)] for name, estimate in shares.items()],
        ),
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
