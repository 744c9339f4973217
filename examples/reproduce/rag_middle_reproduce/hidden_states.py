"""Channels of hidden states that drift with position, by layer (arXiv:2406.02536, figure 3).

::

    python -m rag_middle_reproduce.hidden_states --model mistralai/Mistral-7B-Instruct-v0.2

draws the mean value of each channel that the paper's search finds along texts of random strings, a
line for each layer in which it drifts, the smoothest channels first. No answer is asked for.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from rag_middle import RagMiddleError
from rag_middle.calibration import ChannelSearch, mean_hidden_states, random_texts
from rag_middle.calibration.plots import plot_channels
from rag_middle.evaluation import KeyValueRetrieval
from rag_middle_reproduce.channels import examples_of
from rag_middle_reproduce.models import add_model_options, load_by_name

__all__ = ["main"]

_MOST = 6  # that a picture shows
_PROMPTS = 20  # of 50 pairs: 1,000 random strings that texts are put together from


def main(arguments: list[str] | None = None) -> None:
    """Draw the positional channels of a model, along texts of random strings."""
    parser = argparse.ArgumentParser(
        prog="python -m rag_middle_reproduce.hidden_states", description=main.__doc__
    )
    add_model_options(parser, try_out="a few short texts")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ...")
    parser.add_argument("--texts", type=int, default=250, help="that are averaged")
    parser.add_argument("--tokens", type=int, default=1000, help="of each text")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the picture")
    options = parser.parse_args(arguments)
    if options.try_out:
        options.model, options.texts, options.tokens = "reader", 4, 200
    examples = examples_of(KeyValueRetrieval(keys=50), _PROMPTS)
    try:
        model = load_by_name(options.model, dtype=options.dtype, device=options.device)
        texts = random_texts(model, examples, count=options.texts, tokens=options.tokens, seed=0)
        hidden = mean_hidden_states(model, texts)
        channels = ChannelSearch(top=_MOST).channels(hidden)
        options.out.mkdir(parents=True, exist_ok=True)
        picture = options.out / "channels.png"
        plot_channels(hidden, [asdict(channel) for channel in channels], picture)
    except (RagMiddleError, OSError) as error:
        sys.exit(f"Error: {error}")
    for channel in channels:
        layers = ", ".join(map(str, channel.layers))
        print(f"channel {channel.channel}: smoothness {channel.smoothness:.3g}, layers {layers}")
    print(picture)


if __name__ == "__main__":
    main()
