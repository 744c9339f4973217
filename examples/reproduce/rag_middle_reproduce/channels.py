"""Channels of positional hidden states, as the paper takes them apart (arXiv:2406.02536).

The ablations that concern channels (table 3, in the third version table 6): the channel that the
statistics alone choose, without validation by loss, and the two best channels at once::

    python -m rag_middle_reproduce.channels --model lmsys/vicuna-7b-v1.5-16k --channel 2393 \
        --data DATA/nq-open-20_total_documents_gold_at_0.jsonl.gz

prints the accuracy by position of the gold document: of the model as it is, with ``--channel``,
with the smoothest channel of the search, and with two at once. These are the two of ``--channel``
where it is given twice, as validation ranks them (``rag-middle calibrate``); else the smoothest
other one is the second. ``--by factor`` scales one channel by each of several factors (figure 6 of
the third version), ``--by layer`` in one layer at a time; the latter prints the log-likelihood of
the answer in nats, in which small effects show.

Without ``--data`` the task is the retrieval of drawn key-value pairs. A channel without validation
takes the factor and the layers of the first, which is our reading.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from rag_middle import ConfigError, RagMiddleError, RagMiddleModel
from rag_middle.attention import model_traits
from rag_middle.calibration import ChannelSearch, Example, mean_hidden_states, random_texts
from rag_middle.calibration.search import layer_ranges
from rag_middle.evaluation import (
    KeyValueRetrieval,
    LabelledMethod,
    Measurement,
    MultiDocumentQA,
    PositionCurves,
    Task,
    labelled_methods,
    position,
    run,
    spread_positions,
)
from rag_middle.methods import PositionalHiddenStates
from rag_middle_reproduce.matrix import markdown_table
from rag_middle_reproduce.models import add_model_options, load_chosen

__all__ = [
    "channels_by_statistics",
    "examples_of",
    "factor_methods",
    "layer_methods",
    "main",
    "markdown",
    "table_methods",
]

_FACTORS = (2.0, 1.5, 0.5, 0.0, -0.5, -1.0, -2.0)  # above 1, those of the search, and below


def examples_of(task: Task, questions: int, seed: int = 0) -> list[Example]:
    """Prompts of a task whose documents random texts are made of; their answers do not matter."""
    return [
        Example(question=item.id, position=0, prompt=task.prompt(item, position(0)), answer="")
        for item in task.items(questions, seed)
    ]


def channels_by_statistics(
    model: RagMiddleModel, task: Task, search: ChannelSearch, *, questions: int, seed: int = 0
) -> tuple[int, ...]:
    """Channels whose mean drifts one way along random texts, the smoothest first.

    The first half of algorithm 1: no channel is tried on an answer.

    Args:
        model: that reads.
        task: whose documents the texts are made of.
        search: how many texts of how many tokens, and how many channels.
        questions: whose documents are taken.
        seed: of the texts.

    Raises:
        ConfigError: no channel drifts.
    """
    examples = examples_of(task, questions, seed)
    tokens = min(search.tokens, model.context_window or search.tokens)
    texts = random_texts(model, examples, count=search.texts, tokens=tokens, seed=seed)
    ranked = search.channels(mean_hidden_states(model, texts))
    if not ranked:
        raise ConfigError(
            f"No channel's mean drifts one way along {search.texts} texts of {tokens} tokens: read "
            "more texts, or longer ones."
        )
    return tuple(channel.channel for channel in ranked)


def table_methods(
    ranked: Sequence[int], chosen: Sequence[int], *, factor: float, layers: tuple[int, ...]
) -> tuple[LabelledMethod, ...]:
    """The ablations that concern channels, the unmodified model first.

    Args:
        ranked: `channels_by_statistics`.
        chosen: by validation, the best first, as far as they are known.
        factor: of all channels.
        layers: 0-based, of all channels.
    """
    rows: dict[str, tuple[int, ...]] = {}
    if chosen:
        rows[f"channel {chosen[0]}"] = (chosen[0],)
    rows[f"without validation: {ranked[0]}"] = (ranked[0],)
    pair = tuple(dict.fromkeys((*chosen, *ranked)))[:2]
    if len(pair) == 2:
        rows[f"two channels: {pair[0]}, {pair[1]}"] = pair
    return labelled_methods(
        [
            LabelledMethod(
                label, PositionalHiddenStates(channels=channels, factor=factor, layers=layers)
            )
            for label, channels in rows.items()
        ]
    )


def factor_methods(
    channel: int, *, factors: Sequence[float], layers: tuple[int, ...]
) -> tuple[LabelledMethod, ...]:
    """One channel scaled by each factor, the unmodified model first."""
    return labelled_methods(
        [
            LabelledMethod(
                f"x {factor:g}",
                PositionalHiddenStates(channels=(channel,), factor=factor, layers=layers),
            )
            for factor in factors
        ]
    )


def layer_methods(
    channel: int, *, factor: float, layers: Sequence[int]
) -> tuple[LabelledMethod, ...]:
    """One channel scaled in one layer at a time, the unmodified model first."""
    return labelled_methods(
        [
            LabelledMethod(
                f"layer {layer}",
                PositionalHiddenStates(channels=(channel,), factor=factor, layers=(layer,)),
            )
            for layer in layers
        ]
    )


def markdown(curves: PositionCurves) -> str:
    """A table of curves: a row for each method, a column for each position, and the mean."""
    scale = 100 if curves.metric.share else 1
    title = f"{curves.metric.title}, by gold position (0-based)"
    rows = [
        [curve.label, *(f"{scale * e.value:.2f}" for e in (*curve.estimates, curve.mean))]
        for curve in curves.curves
    ]
    return markdown_table([title, *map(str, curves.positions), "mean"], rows)


def main(arguments: list[str] | None = None) -> None:
    """Accuracy with one channel, two, and one without validation; or by factor, or by layer."""
    parser = argparse.ArgumentParser(
        prog="python -m rag_middle_reproduce.channels", description=main.__doc__
    )
    add_model_options(parser, try_out="a question")
    parser.add_argument("--data", help="file of the Lost in the Middle benchmark; default: pairs")
    parser.add_argument("--pairs", type=int, default=50, help="pairs in a prompt, without --data")
    parser.add_argument(
        "--channel",
        type=int,
        action="append",
        default=[],
        help="the one that validation chose; once more for the second best",
    )
    parser.add_argument("--factor", type=float, default=0.0, help="of all channels")
    parser.add_argument(
        "--by", choices=("channel", "factor", "layer"), default="channel", help="what is compared"
    )
    parser.add_argument("--texts", type=int, default=250, help="random texts of the search")
    parser.add_argument("--tokens", type=int, default=1000, help="of each text")
    parser.add_argument("--positions", type=int, default=5, help="positions of the gold document")
    parser.add_argument("--limit", type=int, default=500, help="questions")
    options = parser.parse_args(arguments)
    if options.try_out:
        small = {"model": "small", "pairs": 3, "positions": 2, "limit": 1}
        vars(options).update(small, texts=4, tokens=200, data=None)
        options.channel = [3, 5][: len(options.channel)]
    try:
        model = load_chosen(options)
        task: Task = KeyValueRetrieval(keys=options.pairs)
        if options.data is not None:
            task = MultiDocumentQA(data=options.data, ranks=True)
        num_layers = model_traits(model.model).num_layers
        chosen: Sequence[int] = options.channel
        ranked: Sequence[int] = ()
        if options.by == "channel" or not chosen:
            search = ChannelSearch(texts=options.texts, tokens=options.tokens)
            ranked = channels_by_statistics(model, task, search, questions=options.limit)
            print(f"channels, the smoothest first: {', '.join(map(str, ranked))}")
        channel, layers = [*chosen, *ranked][0], layer_ranges(num_layers)[0]
        if options.by == "channel":
            methods = table_methods(ranked, chosen, factor=options.factor, layers=layers)
        elif options.by == "factor":
            methods = factor_methods(channel, factors=_FACTORS, layers=layers)
        else:
            methods = layer_methods(channel, factor=options.factor, layers=range(num_layers))
        measurement = Measurement(
            limit=options.limit,
            positions=spread_positions(task.num_positions, options.positions),
            max_new_tokens=2 if options.try_out else None,
        )
        if options.by == "layer":
            measurement = replace(measurement, scoring="likelihood", metric="log_likelihood")
        print(markdown(run(model, task, methods, measurement).curves()))
    except (RagMiddleError, OSError) as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
