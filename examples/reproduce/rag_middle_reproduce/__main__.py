"""``python -m rag_middle_reproduce CONFIG --data DATA --out results``."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from rag_middle import RagMiddleError
from rag_middle_reproduce import Cell, evaluate, markdown_tables, read_config
from rag_middle_reproduce.models import load_model
from rag_middle_reproduce.samples import trial_note, write_samples


def main(arguments: list[str] | None = None) -> None:
    """Run a configuration, and write results.md, results.json and the records of all answers."""
    parser = argparse.ArgumentParser(prog="rag_middle_reproduce", description=main.__doc__)
    parser.add_argument("config", type=Path, help="YAML: models, tasks, methods")
    parser.add_argument("--data", type=Path, help="folder of the tasks' files; default: CONFIG's")
    parser.add_argument("--model", action="append", help="run only this model; repeatable")
    parser.add_argument("--limit", type=int, help="most questions of each task")
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

    try:
        config = read_config(options.config).limited(options.limit).with_models(options.model)
        if config.attention is not None:
            sys.exit(
                f"{options.config} draws attention: run python -m rag_middle_reproduce.attention "
                f"{options.config}"
            )
        if options.try_out:
            config = config.tried_out()
        data, cells = options.data or options.config.parent, list[Cell]()
        note = trial_note(invented=options.data is None) if options.try_out else ""
        if options.try_out and options.data is None:
            data = write_samples(options.out / "samples")
        records = options.out / "records"
        load = partial(load_model, device=options.device)
        for cell in evaluate(config, load, data=data, records=records, progress=report):
            cells.append(cell)
            # After every cell, so that a killed run leaves the tables that were done.
            results = {
                "title": config.title,
                **({"note": note} if note else {}),
                "cells": [cell.to_dict() for cell in cells],
            }
            (options.out / "results.json").write_text(json.dumps(results, indent=2))
            (options.out / "results.md").write_text(markdown_tables(config, cells, note), "utf-8")
    except (RagMiddleError, ImportError, OSError) as error:
        sys.exit(f"Error: {error}")
    print(f"\n{markdown_tables(config, cells, note)}\n{options.out / 'results.md'}")


if __name__ == "__main__":
    main()
