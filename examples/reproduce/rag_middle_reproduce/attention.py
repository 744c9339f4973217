"""Pictures of attention: what the last token gives to each document, under any method.

::

    python -m rag_middle_reproduce.attention --model mistralai/Mistral-7B-Instruct-v0.2 \
        --method none --method siw --show heads --layers 10,20 --out figures
    python -m rag_middle_reproduce.attention siw/figure_2.yaml --data DATA --out figures

A picture for each model, task and method, averaged over the questions and, where the gold document
is not what the rows are, over its positions; the masses beside it as JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rag_middle import ConfigError, RagMiddleError, RagMiddleModel
from rag_middle.evaluation import AS_GIVEN, Condition, position
from rag_middle.evaluation.plots import image, new_figure
from rag_middle_reproduce.attention_view import (
    DocumentAttention,
    document_attention,
    draw_masses,
    plot_document_attention,
    plot_head_attention,
)
from rag_middle_reproduce.config import (
    AttentionConfig,
    EvaluationConfig,
    ModelConfig,
    TaskConfig,
    read_config,
)
from rag_middle_reproduce.models import load_model
from rag_middle_reproduce.samples import trial_note, write_samples

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Picture", "indices", "main", "pictures", "write_pictures"]

#: Where no file says what to look at.
_DEFAULT = EvaluationConfig(
    title="Attention to documents",
    models=(ModelConfig(name="small"),),
    tasks=(TaskConfig(task="key_value_retrieval", label="10 pairs", options={"keys": 10}),),
    measurement={"limit": 20, "positions": 5},
    attention=AttentionConfig(),
)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Attention of one model on one task under one method.

    Attributes:
        model: its name in the configuration.
        task: label of the task.
        method: label of the method.
        prompts: how many are averaged.
        by_gold: view by 0-based position of the gold document; one of all prompts, under None, for
            tasks without gold documents.
        show: what the rows are.
    """

    model: str
    task: str
    method: str
    prompts: int
    by_gold: dict[int | None, DocumentAttention]
    show: str

    @property
    def view(self) -> DocumentAttention:
        """The mean over positions of the gold document."""
        views = list(self.by_gold.values())
        return replace(views[0], by_head=np.mean([view.by_head for view in views], axis=0))

    def draw(self) -> Figure:
        """The picture.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        if self.show == "layers":
            return plot_document_attention(self.view)
        if self.show == "heads":
            return plot_head_attention(self.view)
        golds = [gold for gold in self.by_gold if gold is not None]
        masses = np.stack([view.documents.mean(axis=0) for view in self.by_gold.values()])
        figure, [axes] = new_figure()
        drawn = draw_masses(axes, masses, "Position of the gold document", golds)
        figure.colorbar(drawn, ax=axes, label="Attention of the last token, %")
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: masses `[layers, h, D]` by position of the gold document."""
        return {
            "model": self.model,
            "task": self.task,
            "method": self.method,
            "prompts": self.prompts,
            "layers": self.view.layers,
            "heads": self.view.heads,
            "documents": {
                str(gold): view.by_head[:, :, 2:-1].round(6).tolist()
                for gold, view in self.by_gold.items()
            },
        }


def pictures(
    config: EvaluationConfig, load: Callable[[ModelConfig], RagMiddleModel], data: Path
) -> Iterator[Picture]:
    """A picture for each model, task and method of a configuration.

    Raises:
        ConfigError: no `attention` in it, rows that a task has not, layers or heads that
            a model has not; and as `EvaluationConfig.check`.
    """
    shown = config.attention
    if shown is None:
        raise ConfigError(
            f"{config.title} asks questions: run python -m rag_middle_reproduce with it, or say "
            "what to show (attention: {show: layers})."
        )
    config.check(data)
    for entry in config.models:
        model = load(entry)
        for task_entry in config.tasks:
            task = task_entry.make(data, entry)
            if shown.show == "gold" and not task.num_positions:
                raise ConfigError(f"{task_entry.label} has no gold documents to move.")
            measurement = config.measurement_of(task_entry)
            items = task.items(measurement.limit, measurement.seed)
            conditions: dict[int | None, Condition] = {
                gold: position(gold) for gold in measurement.gold_positions(task)
            }
            conditions = conditions or {None: AS_GIVEN}
            for method in config.methods_of(entry, data):
                views = {
                    gold: document_attention(
                        model,
                        [task.prompt(item, condition) for item in items],
                        method=method.method,
                        template=measurement.template,
                    ).chosen(shown.layers, shown.heads)
                    for gold, condition in conditions.items()
                }
                yield Picture(
                    model=entry.name,
                    task=task_entry.label,
                    method=method.label,
                    prompts=len(items),
                    by_gold=views,
                    show=shown.show,
                )


def write_pictures(made: Iterable[Picture], out: Path, note: dict[str, str]) -> None:
    """A PNG for each picture, and the masses of all, with `note`, as ``attention.json``."""
    out.mkdir(parents=True, exist_ok=True)
    drawn = []
    for picture in made:
        names = (picture.model, picture.task, picture.method)
        name = "--".join(re.sub(r"[^\w.-]+", "-", part) for part in names)
        (out / f"{name}.png").write_bytes(image(picture.draw(), "png"))
        drawn.append({**note, **picture.to_dict()})
        (out / "attention.json").write_text(json.dumps(drawn), encoding="utf-8")
        print(out / f"{name}.png")


def main(arguments: list[str] | None = None) -> None:
    """Draw what the last prompt token gives to each document, by layer, head or gold position."""
    parser = argparse.ArgumentParser(
        prog="python -m rag_middle_reproduce.attention", description=main.__doc__
    )
    parser.add_argument("config", type=Path, nargs="?", help="YAML; default: ten pairs")
    parser.add_argument("--data", type=Path, help="folder of the tasks' files; default: CONFIG's")
    parser.add_argument("--model", action="append", help="instead of CONFIG's; repeatable")
    parser.add_argument("--method", action="append", help="instead of CONFIG's; repeatable")
    parser.add_argument("--show", choices=("layers", "heads", "gold"), help="what the rows are")
    parser.add_argument("--layers", type=indices, help="0-based: 10-25 or 3,9; default: all")
    parser.add_argument("--heads", type=indices, help="0-based, likewise")
    parser.add_argument("--limit", type=int, help="most questions of each task")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ...")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the pictures")
    parser.add_argument("--try-out", action="store_true", help="on the default model, one question")
    options = parser.parse_args(arguments)
    try:
        config = read_config(options.config) if options.config else _DEFAULT
        config = _changed(config.limited(options.limit), options)
        data = options.data or (options.config.parent if options.config else Path())
        note: dict[str, str] = {}
        if options.try_out:
            config = config.tried_out()
            data = options.data or write_samples(options.out / "samples")
            note = {"note": trial_note(invented=options.data is None)}
        made = pictures(config, lambda entry: load_model(entry, options.device), data)
        write_pictures(made, options.out, note)
    except (RagMiddleError, OSError) as error:
        sys.exit(f"Error: {error}")


def _changed(config: EvaluationConfig, options: argparse.Namespace) -> EvaluationConfig:
    """The configuration with what the command line says instead."""
    if options.model:
        entries = {entry.name: entry for entry in config.models}
        models = [entries.get(name, ModelConfig(name=name)) for name in options.model]
        config = replace(config, models=tuple(models))
    if options.method:
        models = [replace(entry, methods=()) for entry in config.models]
        config = replace(config, models=tuple(models), methods=tuple(options.method))
    changes = {name: getattr(options, name) for name in ("show", "layers", "heads")}
    changes = {name: value for name, value in changes.items() if value is not None}
    if changes:
        config = replace(
            config, attention=replace(config.attention or AttentionConfig(), **changes)
        )
    return config


def indices(text: str) -> tuple[int, ...]:
    """``3,10-12`` as numbers."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


if __name__ == "__main__":
    main()
