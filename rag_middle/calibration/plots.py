"""The channels that a search found, layer by layer (figure 3 of arXiv:2406.02536)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rag_middle.errors import ConfigError
from rag_middle.extras import require
from rag_middle.files import expanded, write_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = 2
_MOST = 6  # channels


def plot_channels(
    hidden: Tensor, channels: Sequence[Mapping[str, Any]], path: str | Path | None = None
) -> Figure:
    """Mean value of each found channel along the text, one line per layer in which it drifts.

    Args:
        hidden: mean hidden states ``[layers, n, hidden]``.
        channels: with ``channel``, ``layers`` and ``smoothness``, the smoothest first; six are
            drawn.
        path: where to save the figure; its ending says the format.

    Raises:
        MissingExtraError: matplotlib is not installed.
        ConfigError: no channels.
        OutputWriteError: `path` cannot be written.
    """
    library = require("matplotlib", package="matplotlib", what="A chart", extra="eval")
    from matplotlib.figure import Figure

    if not channels:
        raise ConfigError("No channel was found, so there is nothing to draw.")
    drawn = channels[:_MOST]
    rows = ceil(len(drawn) / _COLUMNS)
    figure = Figure(figsize=(9, 2.6 * rows), layout="constrained")
    axes = figure.subplots(rows, min(_COLUMNS, len(drawn)), squeeze=False).flatten()
    colour = library.colormaps["viridis"]
    deepest = max(1, hidden.shape[0] - 1)
    for axis, channel in zip(axes, drawn, strict=False):
        for layer in channel["layers"]:
            values = hidden[layer, :, channel["channel"]].tolist()
            axis.plot(values, color=colour(layer / deepest), linewidth=0.8, label=f"layer {layer}")
        axis.set_title(
            f"channel {channel['channel']} (smoothness {channel['smoothness']:.2g})", fontsize=9
        )
        axis.set_xlabel("position in tokens", fontsize=8)
        axis.set_ylabel("mean hidden state", fontsize=8)
        axis.tick_params(labelsize=7)
        if len(channel["layers"]) <= 8:
            axis.legend(fontsize=6)
    for axis in axes[len(drawn) :]:
        axis.set_visible(False)
    if path is not None:
        target, picture = expanded(path), BytesIO()
        figure.savefig(picture, format=target.suffix.removeprefix(".") or None, dpi=150)
        write_files(target.parent, {target.name: picture.getvalue()})
    return figure
