"""``rag-middle evaluate``: a configuration's models, tasks and methods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rag_middle.cli.checks import check_output_folder, check_readable
from rag_middle.cli.console import DebugOption, JsonOption, console, print_json, reporting
from rag_middle.cli.diagnose import load, progress_bar
from rag_middle.cli.flags import flags_of
from rag_middle.cli.options import DeviceOption
from rag_middle.errors import EvaluationConfigError

if TYPE_CHECKING:
    from rag_middle.evaluation.config import EvaluationConfig, ModelConfig
    from rag_middle.evaluation.matrix import Cell
    from rag_middle.generation import RagMiddleModel

__all__ = ["evaluate"]


def evaluate(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="YAML or JSON: models, tasks, methods.")
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only this model of the configuration; repeatable.", show_default=False
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder that the tasks' files lie in. Default: that of CONFIG.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Most questions of each task.", show_default=False)
    ] = None,
    device: DeviceOption = None,
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for results.md, results.json and records. A run that was killed continues "
            "from its records."
        ),
    ] = Path("rag-middle-evaluation"),
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run models, tasks and methods of a configuration, and compare each with no method."""
    with reporting(as_json=as_json, debug=debug, flags=flags_of(evaluate)):
        check_readable(config, "configuration", "a YAML or JSON file", EvaluationConfigError)
        check_output_folder(out)
        from rag_middle.evaluation.config import read_config
        from rag_middle.evaluation.matrix import evaluate_matrix, write_matrix

        chosen = _with_models(read_config(config).limited(limit), model)

        def loaded(entry: ModelConfig) -> RagMiddleModel:
            return load(
                entry.name,
                device=device,
                dtype=entry.dtype,
                revision=entry.revision,
                attn_implementation=entry.attn_implementation,
                context_window=entry.context_window,
            )

        cells: list[Cell] = []
        with progress_bar("asking", hidden=as_json) as progress:
            for cell in evaluate_matrix(
                chosen,
                loaded,
                data=config.parent if data is None else data,
                records=out / "records",
                progress=lambda what, done, total: progress(done, total),
            ):
                cells.append(cell)
                # After every cell, so that a killed run leaves the tables that were done.
                page = write_matrix(chosen, cells, out)
        if as_json:
            print_json({"title": chosen.title, "cells": [each.to_dict() for each in cells]})
            return
        for cell in cells:
            _show(cell)
        print(page)


def _with_models(config: EvaluationConfig, wanted: list[str] | None) -> EvaluationConfig:
    from dataclasses import replace

    if not wanted:
        return config
    names = [each.name for each in config.models]
    for name in wanted:
        if name not in names:
            raise EvaluationConfigError(
                f"The configuration has no model {name!r}. It has {', '.join(names)}."
            )
    return replace(config, models=tuple(each for each in config.models if each.name in wanted))


def _show(cell: Cell) -> None:
    from rich.table import Table
    from rich.text import Text

    share = cell.summary.metric.share
    scale, digits = (100, 1) if share else (1, 2)
    theirs = {each.method: each.mean for each in cell.published}
    table = Table("method", title=f"{cell.model}: {cell.task}", title_justify="left")
    for heading in ("mean", "[95 %]", "minus none", "worst place", *(["theirs"] if theirs else [])):
        table.add_column(heading, justify="right")
    for each in cell.summary.methods:
        less = each.difference
        row = [
            f"{scale * each.mean.value:.{digits}f}",
            f"{scale * each.mean.low:.{digits}f} to {scale * each.mean.high:.{digits}f}",
            "" if less is None else f"{scale * less.value:+.{digits}f}",
            "" if each.curve is None else f"{scale * each.curve.worst.value:.{digits}f}",
        ]
        if theirs:
            row.append(f"{theirs[each.label]:g}" if each.label in theirs else "")
        table.add_row(Text(each.label), *row)
    console().print(table)
