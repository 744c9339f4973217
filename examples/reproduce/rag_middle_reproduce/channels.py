"""Channels of positional hidden states, as the paper takes them apart (arXiv:2406.02536).

Table 3: the channel that the statistics alone choose, without the validation by loss, and two
channels scaled at once::

    python -m rag_middle_reproduce.channels --model lmsys/vicuna-7b-v1.5-16k --channel 2393 \
        --data DATA/nq-open-20_total_documents_gold_at_0.jsonl.gz

prints the accuracy by position of the gold document: of the model as it is, with `--channel`, with
the smoothest channel of the search, and with two at once: `--channel`, else the smoothest, and the
smoothest other one. Figure 6: with ``--by-layer`` one channel is scaled in one layer at a time, and
what is printed is the log-likelihood of the answer, in nats::

    python -m rag_middle_reproduce.channels --by-layer --model lmsys/vicuna-7b-v1.5-16k \
        --channel 2393 --data DATA/nq-open-20_total_documents_gold_at_0.jsonl.gz

Without ``--data`` the task is the retrieval of drawn key-value pairs. Not checked against the paper
are which second channel it takes, the factor and layers of a channel without validation (here those
of the first), and what its figure 6 measures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rag_middle import EvaluationConfigError, RagMiddleError, RagMiddleModel
from rag_middle.attention import model_traits
from rag_middle.calibration import ChannelSearch, Example, mean_hidden_states, random_texts
from rag_middle.calibration.searches import layer_ranges
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

__all__ = ["channels_by_statistics", "layer_methods", "main", "table_methods"]


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
        EvaluationConfigError: no channel drifts.
    """
    examples = [
        Example(question=item.id, position=0, prompt=task.prompt(item, position(0)), answer="")
        for item in task.items(questions, seed)
    ]
    tokens = min(search.tokens, model.context_window or search.tokens)
    texts = random_texts(model, examples, count=search.texts, tokens=tokens, seed=seed)
    ranked = search.channels(mean_hidden_states(model, texts))
    if not ranked:
        raise EvaluationConfigError(
            f"No channel's mean drifts one way along {search.texts} texts of {tokens} tokens: read "
            "more texts, or longer ones."
        )
    return tuple(channel.channel for channel in ranked)


def table_methods(
    ranked: Sequence[int], channel: int | None, *, factor: float, layers: tuple[int, ...]
) -> tuple[LabelledMethod, ...]:
    """The rows of table 3 that concern channels, the unmodified model first.

    Args:
        ranked: `channels_by_statistics`.
        channel: the one that validation chose, if known.
        factor: of all channels.
        layers: 0-based, of all channels.
    """
    first = ranked[0] if channel is None else channel
    rows = {} if channel is None else {f"channel {channel}": (channel,)}
    rows[f"without validation: {ranked[0]}"] = (ranked[0],)
    if others := [other for other in ranked if other != first]:
        rows[f"two channels: {first}, {others[0]}"] = (first, others[0])
    return labelled_methods(
        [
            LabelledMethod(
                label, PositionalHiddenStates(channels=channels, factor=factor, layers=layers)
            )
            for label, channels in rows.items()
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
    titles = [f"{index}" for index in curves.positions]
    rows = [
        f"| {curves.metric.title}, by gold position (0-based) | {' | '.join(titles)} | mean |",
        "|" + " --- |" * (len(titles) + 2),
    ]
    for curve in curves.curves:
        values = [estimate.value for estimate in (*curve.estimates, curve.mean)]
        rows.append(f"| {curve.label} | {' | '.join(f'{scale * v:.2f}' for v in values)} |")
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> None:
    """Accuracy with one channel, two, and one without validation; or the effect by layer."""
    from rag_middle_reproduce.__main__ import model_path

    parser = argparse.ArgumentParser(
        prog="python -m rag_middle_reproduce.channels", description=main.__doc__
    )
    parser.add_argument("--model", default="reader", help="folder, hub name, or reader")
    parser.add_argument("--dtype", default="auto", help="of the weights")
    parser.add_argument("--data", help="file of the Lost in the Middle benchmark; default: pairs")
    parser.add_argument("--pairs", type=int, default=50, help="pairs in a prompt, without --data")
    parser.add_argument("--channel", type=int, help="the one that validation chose")
    parser.add_argument("--factor", type=float, default=0.0, help="of all channels")
    parser.add_argument("--by-layer", action="store_true", help="scale in one layer at a time")
    parser.add_argument("--texts", type=int, default=250, help="random texts of the search")
    parser.add_argument("--tokens", type=int, default=1000, help="of each text")
    parser.add_argument("--positions", type=int, default=5, help="positions of the gold document")
    parser.add_argument("--limit", type=int, default=500, help="questions")
    parser.add_argument(
        "--try-out",
        action="store_true",
        help="a question on the bundled reader: numbers mean nothing",
    )
    options = parser.parse_args(arguments)
    if options.try_out:
        small = {"model": "reader", "pairs": 3, "positions": 2, "limit": 1}
        vars(options).update(small, texts=4, tokens=200, data=None)
        options.channel = None if options.channel is None else 3
    try:
        model = RagMiddleModel.from_pretrained(model_path(options.model), dtype=options.dtype)
        task: Task = KeyValueRetrieval(keys=options.pairs)
        if options.data is not None:
            task = MultiDocumentQA(data=options.data, ranks=True)
        num_layers = model_traits(model.model).num_layers
        ranked: Sequence[int] = ()
        if not options.by_layer or options.channel is None:
            search = ChannelSearch(texts=options.texts, tokens=options.tokens)
            ranked = channels_by_statistics(model, task, search, questions=options.limit)
            print(f"channels, the smoothest first: {', '.join(map(str, ranked))}")
        scoring = {}
        if options.by_layer:
            channel = ranked[0] if options.channel is None else options.channel
            methods = layer_methods(channel, factor=options.factor, layers=range(num_layers))
            scoring = {"scoring": "likelihood", "metric": "log_likelihood"}
        else:
            methods = table_methods(
                ranked,
                options.channel,
                factor=options.factor,
                layers=layer_ranges(num_layers)[0],
            )
        measurement = Measurement(
            limit=options.limit,
            positions=spread_positions(task.num_positions, options.positions),
            **scoring,
        )
        print(markdown(run(model, task, methods, measurement).curves()))
    except (RagMiddleError, OSError) as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
