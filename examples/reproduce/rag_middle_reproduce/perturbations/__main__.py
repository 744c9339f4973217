"""The command of the perturbations: accuracy under each of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence

from rag_middle import RagMiddleError, RagMiddleModel
from rag_middle.evaluation import KeyValueRetrieval, position, spread_positions
from rag_middle.methods import Method
from rag_middle_reproduce.matrix import markdown_table
from rag_middle_reproduce.models import add_model_options, load_chosen
from rag_middle_reproduce.perturbations import perturbations

__all__ = ["accuracies", "main"]


def accuracies(
    model: RagMiddleModel,
    task: KeyValueRetrieval,
    *,
    limit: int,
    positions: Sequence[int],
    changes: Mapping[str, Callable[[int], Method]],
    max_batch_size: int = 8,
) -> dict[str, list[float]]:
    """Accuracy at every position of the gold document, by change of that document."""
    items = task.items(limit, 0)
    curves: dict[str, list[float]] = {}
    for name, change in changes.items():
        curves[name] = []
        for index in positions:
            answers = model.batch(
                [task.prompt(item, position(index)) for item in items],
                method=change(index),
                max_new_tokens=task.max_new_tokens,
                max_batch_size=max_batch_size,
            )
            scores = [
                task.scores(item, position(index), answer.text)["best_subspan_em"]
                for item, answer in zip(items, answers, strict=True)
            ]
            curves[name].append(sum(scores) / len(scores))
    return curves


def main(arguments: list[str] | None = None) -> None:
    """Accuracy of key-value retrieval under each perturbation of the gold pair."""
    parser = argparse.ArgumentParser(
        prog="python -m rag_middle_reproduce.perturbations", description=main.__doc__
    )
    add_model_options(parser, try_out="one short prompt")
    parser.add_argument("--pairs", type=int, default=50, help="pairs in a prompt")
    parser.add_argument("--positions", type=int, default=5, help="positions of the gold pair")
    parser.add_argument("--limit", type=int, default=100, help="questions")
    parser.add_argument("--channel", type=int, help="also move this channel of hidden states")
    parser.add_argument("--offset", type=float, default=-0.3, help="by how much")
    options = parser.parse_args(arguments)
    if options.try_out:
        vars(options).update(model="small", pairs=3, positions=2, limit=1)
        options.channel = None if options.channel is None else 3
    positions = spread_positions(options.pairs, options.positions)
    try:
        curves = accuracies(
            load_chosen(options),
            KeyValueRetrieval(keys=options.pairs),
            limit=options.limit,
            positions=positions,
            changes=perturbations(options.channel, options.offset),
        )
    except RagMiddleError as error:
        sys.exit(f"Error: {error}")
    rows = [[name, *(f"{100 * value:.1f}" for value in values)] for name, values in curves.items()]
    print(markdown_table(["gold position (0-based)", *map(str, positions)], rows))


if __name__ == "__main__":
    main()
