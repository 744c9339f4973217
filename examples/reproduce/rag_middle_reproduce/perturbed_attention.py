"""Attention with one document perturbed (arXiv:2406.02536, figures 3 and 10 of version 3).

::

    python -m rag_middle_reproduce.perturbed_attention \
        --model mistralai/Mistral-7B-Instruct-v0.2 --channel 213 --out figures

draws what the last token gives to every pair of key-value retrieval, a row for each position of the
gold pair, as the model is and under each perturbation of the gold pair: its positions moved, its
mask cropped, the attention to it doubled, and with ``--channel`` one channel of its hidden states
lowered by 0.3. With ``--document 25`` that pair is perturbed, whichever is the gold one, as in
figure 10. Masses as numbers are in ``attention.json``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rag_middle import RagMiddleError, RagMiddleModel
from rag_middle.evaluation import KeyValueRetrieval, Task, position, spread_positions
from rag_middle.methods import Method
from rag_middle_reproduce.attention import Picture, indices, write_pictures
from rag_middle_reproduce.attention_view import document_attention
from rag_middle_reproduce.models import add_model_options, load_chosen
from rag_middle_reproduce.perturbations import perturbations
from rag_middle_reproduce.samples import trial_note

__all__ = ["main", "perturbed_pictures"]


def perturbed_pictures(
    model: RagMiddleModel,
    task: Task,
    *,
    name: str,
    limit: int,
    positions: Sequence[int],
    changes: Mapping[str, Callable[[int], Method]],
    layers: Sequence[int] | None = None,
) -> Iterator[Picture]:
    """A picture for each perturbation of the gold document.

    Args:
        model: that reads.
        task: with gold documents.
        name: of the model in the pictures.
        limit: questions that are averaged.
        positions: 0-based, of the gold document.
        changes: the perturbation of a document by its position; see `perturbations`.
        layers: 0-based, averaged in the pictures; None for all.

    Raises:
        ConfigError: layers that the model has not.
        MethodConfigError: a channel that it has not.
        UnsupportedArchitectureError: as `document_attention`.
    """
    items = task.items(limit, 0)
    for label, change in changes.items():
        yield Picture(
            model=name,
            task=task.name,
            method=label,
            prompts=len(items),
            by_gold={
                gold: document_attention(
                    model,
                    [task.prompt(item, position(gold)) for item in items],
                    method=change(gold),
                ).chosen(layers)
                for gold in positions
            },
            show="gold",
        )


def main(arguments: list[str] | None = None) -> None:
    """Draw the attention to every pair with the gold pair perturbed, by its position."""
    parser = argparse.ArgumentParser(
        prog="python -m rag_middle_reproduce.perturbed_attention", description=main.__doc__
    )
    add_model_options(parser, try_out="one short prompt")
    parser.add_argument("--pairs", type=int, default=50, help="pairs in a prompt")
    parser.add_argument("--positions", type=int, default=11, help="positions of the gold pair")
    parser.add_argument("--limit", type=int, default=100, help="questions")
    parser.add_argument("--layers", type=indices, help="0-based: 15-20 or 3,9; default: all")
    parser.add_argument("--channel", type=int, help="also move this channel of hidden states")
    parser.add_argument("--offset", type=float, default=-0.3, help="by how much")
    parser.add_argument("--document", type=int, help="0-based pair to perturb; default: gold pair")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the pictures")
    options = parser.parse_args(arguments)
    note: dict[str, str] = {}
    if options.try_out:
        vars(options).update(model="small", pairs=3, positions=2, limit=1, layers=None)
        options.document = None if options.document is None else 1
        options.channel = None if options.channel is None else 3
        note = {"note": trial_note(invented=True)}
    changes = perturbations(options.channel, options.offset)
    if options.document is not None:
        changes = {
            name: lambda _gold, change=change: change(options.document)  # type: ignore[misc]
            for name, change in changes.items()
        }
    try:
        made = perturbed_pictures(
            load_chosen(options),
            KeyValueRetrieval(keys=options.pairs),
            name=options.model,
            limit=options.limit,
            positions=spread_positions(options.pairs, options.positions),
            changes=changes,
            layers=options.layers,
        )
        write_pictures(made, options.out, note)
    except (RagMiddleError, OSError) as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
