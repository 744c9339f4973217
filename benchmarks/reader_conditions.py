"""Which method helps the bundled reader: by number of documents, position, and kind of distractor.

One run per kind of distractor, each a grid over the same numbers of documents; all differences
from the unmodified model, of all runs, are corrected together. Answers are kept in `--records`, so
that a run that was killed goes on.

    python benchmarks/reader_conditions.py --records records \\
        --output benchmarks/results/reader_conditions
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from reporting import Facts, facts, report

from rag_middle import RagMiddleModel
from rag_middle.evaluation import (
    Estimate,
    Grid,
    InventedDocuments,
    Measurement,
    grid_of,
    run,
)
from rag_middle.evaluation.diagnosis import searched_notes
from rag_middle.evaluation.measurement import BASELINE
from rag_middle.reader import reader_path
from rag_middle.reader.distractors import DISTRACTORS, Distractors

METHODS = ("pine", "ms_poe", "lpes:reader")
GRID = (5, 10, 20)


def measured(
    model: RagMiddleModel,
    distractors: Sequence[Distractors],
    methods: Sequence[str],
    grid: Sequence[int],
    questions: int,
    records: Path,
) -> tuple[dict[str, Grid], dict[str, tuple[str, ...]]]:
    """A grid per kind of distractor, and notes on questions that methods were fitted to."""
    grids: dict[str, Grid] = {}
    notes = {}
    for kind in distractors:
        task = InventedDocuments(documents=grid[-1], distractors=kind, cited=True)
        results = run(
            model,
            task,
            methods,
            Measurement(limit=questions, grid=tuple(grid[:-1]), max_batch_size=16),
            records=records / f"{kind}.jsonl",
        )
        measured_grid = grid_of(results, runs=len(distractors))
        assert measured_grid is not None
        grids[kind], notes[kind] = measured_grid, searched_notes(results)
    return grids, notes


def rows_of(grids: Mapping[str, Grid]) -> list[dict[str, Any]]:
    """A row per kind, number of documents and method."""
    return [
        {
            "distractors": kind,
            "documents": row.documents,
            "method": curve.label,
            "mean": curve.mean,
            "worst": curve.worst,
            "gap": curve.gap,
            "difference": row.differences.get(curve.label),
            "positions": [estimate.value for estimate in curve.estimates],
        }
        for kind, grid in grids.items()
        for row in grid.rows
        for curve in row.curves.curves
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown; differences whose corrected interval leaves zero out are in bold."""
    lines = [
        "| distractors | documents | method | mean | worst position | gap | mean − none |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        difference = row["difference"]
        shown = "" if difference is None else difference.text(share=True, signed=True)
        if difference is not None and not difference.includes_zero:
            shown = f"**{shown}**"
        values = " | ".join(row[name].text(share=True) for name in ("mean", "worst", "gap"))
        lines.append(
            f"| {row['distractors']} | {row['documents']} | {row['method']} | {values} | {shown} |"
        )
    return "\n".join(lines)


def page(
    grids: Mapping[str, Grid],
    notes: Mapping[str, Sequence[str]],
    rows: Sequence[Mapping[str, Any]],
    known: Facts,
) -> str:
    """The page that `--output` writes."""
    sentences = "\n\n".join(
        f"**{kind}**\n\n"
        + "\n".join(f"- {sentence}" for sentence in (*grid.sentences, *notes[kind]))
        for kind, grid in grids.items()
    )
    count = sum(row["method"] != BASELINE for row in rows)
    return (
        "# What helps the bundled reader, and when\n\n"
        f"{known['questions']} questions about invented documents, each with the gold document at "
        "five positions among each number of documents, per cent. Intervals: 95 % bootstrap over "
        f"questions; those of the {count} differences hold together with 95 % confidence "
        "(Bonferroni), in bold where they leave out zero. The kinds of distractors are those of "
        "[the evaluation page](../../docs/evaluation.md#distractors). A small model on invented "
        "documents: which kinds are hard, and which method helps, has to be measured again for "
        f"any other.\n\n{sentences}\n\n{table(rows)}\n\n"
        f"Repeat with `{known['command']}`. {known['date']}; {known['processor']}; Python "
        f"{known['python']}; torch {known['torch']}; transformers {known['transformers']}; "
        f"rag-middle {known['rag_middle']}.\n"
    )


def main() -> None:
    """Measure, print a table, and write the numbers where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--distractors", nargs="+", choices=DISTRACTORS, default=DISTRACTORS)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--grid", nargs="+", type=int, default=GRID)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--records", type=Path, required=True, help="folder of kept answers")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write FILE.json and FILE.md")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = RagMiddleModel.from_pretrained(str(reader_path()))
    grids, notes = measured(
        model, args.distractors, args.methods, args.grid, args.questions, args.records
    )
    rows = rows_of(grids)
    plain = [
        {name: asdict(v) if isinstance(v, Estimate) else v for name, v in row.items()}
        for row in rows
    ]
    known = facts(None, timed=False, questions=args.questions)
    report(table(rows), plain, known, args.output)
    if args.output:
        text = page(grids, notes, rows, known)
        args.output.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
