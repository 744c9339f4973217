"""Channels of hidden states that drift with position, by layer (arXiv:2406.02536, figure 3).

::

    python -m rag_middle_reproduce.hidden_states --model mistralai/Mistral-7B-Instruct-v0.2

draws the mean value of each channel that the paper's search finds along texts of random strings, a
line for each layer in which it drifts, the smoothest channels first. No answer is asked for. With
``--crop 500-599`` it draws them once more with the mask of these tokens cropped (figure 11 of
version 3): from the first layers on they attend to themselves and the first token only. Where the
mask makes the drift, their values become those of the beginning. Values as numbers are in
``channels.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from math import ceil
from pathlib import Path

from torch import Tensor

from rag_middle import ConfigError, RagMiddleError, RagMiddleModel
from rag_middle.attention import applied
from rag_middle.calibration import ChannelSearch, mean_hidden_states, random_texts
from rag_middle.evaluation import KeyValueRetrieval
from rag_middle.layout import PromptLayout
from rag_middle.methods.positional_hidden_states.channels import PositionalChannel
from rag_middle.tokens import TokenizedPrompt
from rag_middle_reproduce.attention import indices
from rag_middle_reproduce.channels import examples_of
from rag_middle_reproduce.models import add_model_options, load_chosen
from rag_middle_reproduce.perturbations import CroppedMask

__all__ = ["cropped_hidden_states", "main"]

_MOST = 6  # that a picture shows
_PROMPTS = 20  # of 50 pairs: 1,000 random strings that texts are put together from


def cropped_hidden_states(
    model: RagMiddleModel, texts: Tensor, tokens: range, *, max_batch_size: int = 8
) -> Tensor:
    """As `mean_hidden_states`, `[layers, n, hidden]`, with the mask of some tokens cropped.

    Args:
        model: left as it is found.
        texts: ids `[texts, n]`.
        tokens: 0-based positions that attend to themselves and the first token only, in the
            layers of `CroppedMask`.
        max_batch_size: texts per forward pass.

    Raises:
        ConfigError: tokens that the texts have not.
        UnsupportedArchitectureError: as `CroppedMask`.
    """
    length = texts.shape[1]
    if not 0 <= tokens.start < tokens.stop <= length:
        raise ConfigError(
            f"Tokens {tokens.start} to {tokens.stop - 1} are not within texts of {length} tokens: "
            "crop others."
        )
    layout = PromptLayout(length, ((tokens.start, tokens.stop),))
    sums: list[Tensor] = []
    for batch in texts.split(max_batch_size):
        prompts = [
            TokenizedPrompt(input_ids=tuple(ids), layout=layout, document_ids=(None,))
            for ids in batch.tolist()
        ]
        with applied(model.model, CroppedMask(document=0), prompts):
            means = mean_hidden_states(model, batch, max_batch_size=len(batch))
        sums.append(means.double() * len(batch))
    total: Tensor = sum(sums) / len(texts)  # type: ignore[assignment]
    return total.float()


def plot_channels(hidden: Tensor, channels: Sequence[PositionalChannel], path: Path) -> None:
    """Mean value of each channel along the text, a line for each layer in which it drifts.

    Args:
        hidden: mean hidden states `[layers, n, hidden]`.
        channels: at least one.
        path: of the picture; its ending says the format.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    rows = ceil(len(channels) / 2)
    figure = Figure(figsize=(9, 2.6 * rows), layout="constrained")
    axes = figure.subplots(rows, 2, squeeze=False).flatten()
    for axis, channel in zip(axes, channels, strict=False):
        for layer in channel.layers:
            values = hidden[layer, :, channel.channel].tolist()
            colour = colormaps["viridis"](layer / max(1, hidden.shape[0] - 1))
            axis.plot(values, color=colour, linewidth=0.8, label=f"layer {layer}")
        axis.set_title(f"channel {channel.channel} (smoothness {channel.smoothness:.2g})")
        axis.set_xlabel("position in tokens")
        axis.set_ylabel("mean hidden state")
    for axis in axes[len(channels) :]:
        axis.set_visible(False)
    figure.savefig(path, dpi=150)


def main(arguments: list[str] | None = None) -> None:
    """Draw the positional channels of a model, along texts of random strings."""
    parser = argparse.ArgumentParser(
        prog="python -m rag_middle_reproduce.hidden_states", description=main.__doc__
    )
    add_model_options(parser, try_out="a few short texts")
    parser.add_argument("--texts", type=int, default=250, help="that are averaged")
    parser.add_argument("--tokens", type=int, default=1000, help="of each text")
    parser.add_argument(
        "--crop", type=indices, help="0-based tokens whose mask is cropped: 500-599"
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the picture")
    options = parser.parse_args(arguments)
    crop = range(options.crop[0], options.crop[-1] + 1) if options.crop else range(0)
    if tuple(crop) != (options.crop or ()):
        parser.error(f"--crop takes tokens in a row, such as 500-599, got {options.crop}")
    if options.try_out:
        options.model, options.texts, options.tokens = "small", 4, 200
        crop = crop and range(100, 120)
    examples = examples_of(KeyValueRetrieval(keys=50), _PROMPTS)
    try:
        model = load_chosen(options)
        texts = random_texts(model, examples, count=options.texts, tokens=options.tokens, seed=0)
        hidden = mean_hidden_states(model, texts)
        channels = ChannelSearch(top=_MOST).channels(hidden)
        drawn = {"channels": hidden}
        if crop:
            drawn["channels_cropped"] = cropped_hidden_states(model, texts, crop)
        options.out.mkdir(parents=True, exist_ok=True)
        numbers = {"model": options.model, "texts": options.texts, "crop": [*crop]}
        for name, states in drawn.items():
            plot_channels(states, channels, options.out / f"{name}.png")
            numbers[name] = {
                c.channel: {layer: states[layer, :, c.channel].tolist() for layer in c.layers}
                for c in channels
            }
        (options.out / "channels.json").write_text(json.dumps(numbers), encoding="utf-8")
    except (RagMiddleError, OSError) as error:
        sys.exit(f"Error: {error}")
    for channel in channels:
        layers = ", ".join(map(str, channel.layers))
        print(f"channel {channel.channel}: smoothness {channel.smoothness:.3g}, layers {layers}")
    for name in drawn:
        print(options.out / f"{name}.png")


if __name__ == "__main__":
    main()
