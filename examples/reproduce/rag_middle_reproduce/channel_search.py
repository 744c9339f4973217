"""The search for a channel without one of its parts (arXiv:2406.02536, table 3; 6 in version 3).

::

    python -m rag_middle_reproduce.channel_search --model lmsys/vicuna-7b-v1.5-16k \\
        --data DATA/nq-open-20_total_documents_gold_at_0.jsonl.gz

searches with all parts, without monotonicity and without smoothness, and prints what each search
chose with its accuracy by position of the gold document. The choice is validated as in the paper,
by the log-likelihood of answers of drawn key-value pairs. Without validation the smoothest channel
is taken, with the factor and the layers of the search with all parts, which is our reading.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from rag_middle import ConfigError, RagMiddleError, RagMiddleModel
from rag_middle.calibration import ChannelSearch, calibrate, draw_examples
from rag_middle.evaluation import (
    KeyValueRetrieval,
    LabelledMethod,
    Measurement,
    MultiDocumentQA,
    Task,
    labelled_methods,
    run,
    spread_positions,
)
from rag_middle.methods import PositionalHiddenStates, resolve_method
from rag_middle.methods.positional_hidden_states.channels import PositionalChannel
from rag_middle_reproduce.channels import markdown
from rag_middle_reproduce.models import add_model_options, load_chosen

__all__ = ["PartialChannelSearch", "main", "searched_methods"]

_SEED = 1  # of validation: other pairs than those of the measurement, whose seed is 0


@dataclass(frozen=True, kw_only=True)
class PartialChannelSearch(ChannelSearch):
    """`ChannelSearch` whose candidates come from one of the two statistics.

    Attributes:
        without: ``"monotonicity"``: the smoothest channels of all that change, over all layers
            that are searched; ``"smoothness"``: those that drift one way in most layers, which
            replaces the order by smoothness and is our reading; ``None``: nothing is left out.
    """

    without: Literal["monotonicity", "smoothness"] | None = None

    def channels(self, hidden: Tensor) -> tuple[PositionalChannel, ...]:
        """The candidates among the channels of mean hidden states `[layers, n, hidden]`."""
        ranked = self.ranked(hidden, monotone=self.without != "monotonicity")
        if self.without == "smoothness":
            ranked = tuple(sorted(ranked, key=lambda c: (-len(c.layers), c.channel)))
        return ranked[: self.top]


def searched_methods(
    model: RagMiddleModel,
    search: PartialChannelSearch,
    validation: Task,
    *,
    questions: int,
    template: Literal["auto", "chat", "raw"] = "auto",
) -> tuple[LabelledMethod, ...]:
    """What each search chooses, the unmodified model first.

    Args:
        model: to search for.
        search: its sizes; `without` is set to each part in turn.
        validation: task that candidates are compared on.
        questions: of the task.
        template: as in generation.

    Raises:
        ConfigError: a search without candidates.
        ConfigError: as `calibrate` and `draw_examples`.
    """
    examples, _ = draw_examples(validation, search, questions=questions, held_out=2, seed=_SEED)
    chosen: dict[str, PositionalHiddenStates] = {}
    smoothest = -1
    for without in (None, "monotonicity", "smoothness"):
        part = replace(search, without=without)
        profile = calibrate(model, part, examples, template=template).profile
        method = resolve_method(profile.method, profile.options)
        if not isinstance(method, PositionalHiddenStates):
            raise ConfigError(
                f"No channel's mean drifts one way along {search.texts} texts of {search.tokens} "
                "tokens: read more texts, or longer ones."
            )
        if without is None:
            smoothest = profile.search["channels"][0]["channel"]
        chosen["all parts" if without is None else f"without {without}"] = method
    chosen["without validation"] = replace(chosen["all parts"], channels=(smoothest,))
    return labelled_methods([LabelledMethod(_label(n, m), m) for n, m in chosen.items()])


def _label(name: str, method: PositionalHiddenStates) -> str:
    layers = method.layers or ()
    return f"{name}: {method.channels[0]} x {method.factor:g} in layers {layers[0]}-{layers[-1]}"


def main(arguments: list[str] | None = None) -> None:
    """Search for a channel with all parts of the search and without each; print accuracies."""
    parser = argparse.ArgumentParser(
        prog="python -m rag_middle_reproduce.channel_search", description=main.__doc__
    )
    add_model_options(parser, try_out="few candidates on a question")
    parser.add_argument("--data", help="file of the Lost in the Middle benchmark; default: pairs")
    parser.add_argument("--pairs", type=int, default=50, help="pairs in a prompt")
    parser.add_argument("--texts", type=int, default=250, help="random texts of the search")
    parser.add_argument("--tokens", type=int, default=1000, help="of each text")
    parser.add_argument("--validation", type=int, default=100, help="questions of the validation")
    parser.add_argument("--positions", type=int, default=5, help="positions of the gold document")
    parser.add_argument("--limit", type=int, default=500, help="questions")
    options = parser.parse_args(arguments)
    sizes: Mapping[str, Any] = {"texts": options.texts, "tokens": options.tokens}
    if options.try_out:
        vars(options).update(model="small", pairs=3, positions=2, limit=1, validation=3, data=None)
        sizes = {"texts": 4, "tokens": 200, "top": 1, "factors": (0.0,)}
    pairs = KeyValueRetrieval(keys=options.pairs)
    try:
        model = load_chosen(options)
        task: Task = pairs
        if options.data is not None:
            task = MultiDocumentQA(data=options.data, ranks=True)
        methods = searched_methods(
            model, PartialChannelSearch(**sizes), pairs, questions=options.validation
        )
        measurement = Measurement(
            limit=options.limit,
            positions=spread_positions(task.num_positions, options.positions),
            max_new_tokens=2 if options.try_out else None,
        )
        print(markdown(run(model, task, methods, measurement).curves()))
    except (RagMiddleError, OSError) as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
