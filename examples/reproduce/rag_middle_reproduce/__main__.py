"""``python -m rag_middle_reproduce CONFIG --data DATA --out results``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rag_middle import RagMiddleError, RagMiddleModel
from rag_middle.evaluation import ProgressCallback
from rag_middle.evaluation.plots import image
from rag_middle.small_model import default_model
from rag_middle_reproduce.config import EvaluationConfig, ModelConfig, read_config
from rag_middle_reproduce.samples import trial_note, write_samples
from rag_middle_reproduce.tables import Cell, cells_of, file_name, markdown_tables


def load_model(
    entry: ModelConfig, device: str | None, attn_implementation: str | None = None
) -> RagMiddleModel:
    """The model of an entry of a configuration; ``small`` is the default one.

    Raises:
        RagMiddleError: as `RagMiddleModel.from_pretrained`.
    """
    return RagMiddleModel.from_pretrained(
        default_model() if entry.name == "small" else entry.name,
        device=device,
        dtype=entry.dtype,
        revision=entry.revision,
        device_map=entry.device_map,
        quantization_config=entry.quantization_config,
        attn_implementation=attn_implementation or entry.attn_implementation,
        context_window=entry.context_window,
    )


def run_config(
    config: EvaluationConfig,
    load: Callable[[ModelConfig], RagMiddleModel],
    *,
    data: Path,
    out: Path,
    note: str = "",
    progress: ProgressCallback | None = None,
) -> str:
    """Run a configuration, one model after the other.

    ``results.json`` and ``results.md`` are written after every table and picture, so that a killed
    run leaves what was done; answers are kept in ``records``, from which it goes on.

    Args:
        config: what to run.
        load: makes a model from its entry.
        data: folder of the tasks' files.
        out: folder of the results.
        note: what to know before reading any number.
        progress: called with the number of answers so far and the number of all, of a table.

    Returns:
        What is in ``results.md``.

    Raises:
        As `rag_middle.evaluation.run`; data is looked for before any model is loaded.
    """
    config.check(data)
    out.mkdir(parents=True, exist_ok=True)
    cells, shown, page = list[Cell](), list[dict[str, Any]](), ""

    def write(text: str) -> str:
        kinds = {"cells": [cell.to_dict() for cell in cells]} if cells else {"shown": shown}
        results = {"title": config.title, **({"note": note} if note else {}), **kinds}
        (out / "results.json").write_text(json.dumps(results, indent=2), encoding="utf-8")
        (out / "results.md").write_text(text, encoding="utf-8")
        return text

    for entry in config.models:
        model = load(entry)
        if config.view is None:
            records = out / "records"
            for cell in cells_of(
                config, entry, model, data=data, records=records, progress=progress
            ):
                cells.append(cell)
                page = write(markdown_tables(config, cells, note))
            continue
        page = page or f"# {config.title}\n\n" + (f"**{note}**\n\n" if note else "")
        methods = config.methods_of(entry, data, model)
        for part in config.view.shown(model, config.asked(data, entry), methods):
            name = file_name(entry.name, part.name)
            shown.append({"model": entry.name, "name": part.name, **part.numbers})
            if part.figure is not None:
                (out / f"{name}.png").write_bytes(image(part.figure, "png"))
            body = part.table or f"![{part.name}]({name}.png)"
            page = write(f"{page}## {entry.name}: {part.name}\n\n{body}\n\n")
    return page


def main(arguments: list[str] | None = None) -> None:
    """Run a configuration; write results.md, results.json, pictures and records of answers."""
    parser = argparse.ArgumentParser(prog="rag_middle_reproduce", description=main.__doc__)
    parser.add_argument("config", type=Path, help="YAML: models, tasks, methods")
    parser.add_argument("--data", type=Path, help="folder of the tasks' files; default: CONFIG's")
    parser.add_argument(
        "--shipped",
        action="store_true",
        help="this package's questions, and drawn pairs, in place of the data files",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        help="run only this model, or another than CONFIG's (small: the default one); repeatable",
    )
    parser.add_argument(
        "--method", action="append", default=[], help="compare this too; repeatable"
    )
    parser.add_argument("--limit", type=int, help="most questions of each task")
    parser.add_argument(
        "--likelihood",
        action="store_true",
        help="score the log-likelihood of the right answer, which small models tell more by",
    )
    parser.add_argument("--device", help="cpu, cuda, cuda:1 ...")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the results")
    parser.add_argument(
        "--try-out",
        action="store_true",
        help="on the default model, one question of each task, invented ones without --data: "
        "numbers mean nothing",
    )
    options = parser.parse_args(arguments)

    def report(done: int, total: int) -> None:
        print(f"\r{done} of {total} answers", end="", file=sys.stderr, flush=True)

    def load(entry: ModelConfig) -> RagMiddleModel:
        implementation = config.view.attn_implementation if config.view else None
        return load_model(entry, options.device, implementation)

    try:
        config = read_config(options.config).on_models(options.model).measured(limit=options.limit)
        config = replace(config, methods=(*config.methods, *options.method))
        if options.likelihood:
            config = config.measured(scoring="likelihood", metric="log_likelihood")
        if options.shipped:
            config = config.on_shipped_questions()
        if options.try_out:
            config = config.tried_out()
        data, note = options.data or options.config.parent, ""
        if options.try_out:
            note = trial_note(invented=options.data is None)
            data = options.data or write_samples(options.out / "samples")
        page = run_config(config, load, data=data, out=options.out, note=note, progress=report)
    except (RagMiddleError, ImportError, OSError) as error:
        sys.exit(f"Error: {error}")
    print(f"\n{page}\n{options.out / 'results.md'}")


if __name__ == "__main__":
    main()
