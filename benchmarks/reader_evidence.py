"""What the bundled reader does with several gold documents, chains of keys, or changed prompts.

One run per task, each in rows and columns; differences of all runs from the unmodified model, and
between rows, are corrected together. Answers are kept in `--records`, so that a run that was killed
goes on.

    python benchmarks/reader_evidence.py --records records \\
        --output benchmarks/results/reader_evidence
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reporting import Facts, facts, report

from rag_middle import RagMiddleModel
from rag_middle.evaluation import (
    Abstention,
    Bootstrap,
    Estimate,
    Factors,
    InventedDocuments,
    KeyValueChains,
    Measurement,
    MultiHop,
    Results,
    Summary,
    Task,
    factors_of,
    run,
)
from rag_middle.evaluation.conditions import CHANGES
from rag_middle.evaluation.diagnosis import searched_notes
from rag_middle.evaluation.metrics import answer_stated
from rag_middle.reader import reader_path

METHODS = ("pine", "lpes:reader")
#: As many documents as the reader was trained on, or fewer, so that length is not what fails.
TASKS: Mapping[str, Task] = {
    "two documents": MultiHop(hops=2, documents=8),
    "three documents": MultiHop(hops=3, documents=9),
    "chains of keys": KeyValueChains(keys=8, identifier_characters=4),
    "none relevant": Abstention(documents=10),
}
CONTROLLED = InventedDocuments(documents=10)


def first_step(results: Results) -> Estimate:
    """Share of the unmodified model's answers, to the whole chain, that state its first value."""
    layout = results.measurement.layout(results.task)
    assert layout is not None
    conditions = [c for c in layout.conditions if c.hops is None]
    stated = [
        [
            answer_stated(
                results.records["none", c.name, item.id].answer or "",
                [item.details["first_value"]],
            )
            for c in conditions
        ]
        for item in results.items
    ]
    return Bootstrap(np.array(stated)).estimate(lambda means: means.mean(axis=-1))


def measured(
    model: RagMiddleModel, methods: Sequence[str], questions: int, records: Path
) -> tuple[dict[str, Factors], dict[str, tuple[str, ...]], dict[str, Estimate], Summary]:
    """Rows and columns by task, with notes; the first step of multi-hop questions; controls."""
    how = {"limit": questions, "max_new_tokens": 20, "max_batch_size": 16}
    tables: dict[str, Factors] = {}
    notes = {}
    first_steps: dict[str, Estimate] = {}
    for name, task in TASKS.items():
        file = records / f"{name.replace(' ', '_')}.jsonl"
        results = run(model, task, methods, Measurement(positions=3, **how), records=file)
        table = factors_of(results, runs=len(TASKS))
        assert table is not None
        tables[name], notes[name] = table, searched_notes(results)
        if isinstance(task, MultiHop):
            first_steps[name] = first_step(results)
    controls = run(
        model,
        CONTROLLED,
        (),
        Measurement(positions=3, controls=True, changes=CHANGES, **how),
        records=records / "controls.jsonl",
    )
    return tables, notes, first_steps, controls.summary()


def rows_of(tables: Mapping[str, Factors]) -> list[dict[str, Any]]:
    """A row per task, row of its layout, and method."""
    return [
        {
            "task": task,
            "row": row.name,
            "method": label,
            "columns": dict(
                zip(row.columns, (estimate.value for estimate in curve.estimates), strict=True)
            ),
            "mean": curve.mean,
            "gap": curve.gap if len(row.columns) > 1 else None,
            "difference": row.differences.get(label),
            "change": row.changes.get(label),
        }
        for task, table in tables.items()
        for row in table.rows
        for label, curve in row.curves.items()
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown; differences whose corrected interval leaves zero out are in bold."""
    lines = [
        "| task | row | method | columns | mean | gap | mean − none | mean − first row |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        shown = {
            name: "" if row[name] is None else row[name].text(share=True, signed=True)
            for name in ("difference", "change")
        }
        for name, text in shown.items():
            if text and not row[name].includes_zero:
                shown[name] = f"**{text}**"
        columns = ", ".join(f"{name}: {100 * value:.0f}" for name, value in row["columns"].items())
        gap = "" if row["gap"] is None else row["gap"].text(share=True)
        lines.append(
            f"| {row['task']} | {row['row']} | {row['method']} | {columns} | "
            f"{row['mean'].text(share=True)} | {gap} | {shown['difference']} | {shown['change']} |"
        )
    return "\n".join(lines)


def page(
    tables: Mapping[str, Factors],
    notes: Mapping[str, Sequence[str]],
    first_steps: Mapping[str, Estimate],
    controls: Summary,
    rows: Sequence[Mapping[str, Any]],
    known: Facts,
) -> str:
    """The page that `--output` writes."""
    lines = []
    for name, factors in tables.items():
        sentences = [*factors.sentences, *notes[name]]
        if name in first_steps:
            sentences.append(
                f"{first_steps[name].text(share=True)} % of the unmodified model's answers to the "
                "whole question state the name that the first document gives: the first step, and "
                "no more."
            )
        lines.append(f"**{name}**\n\n" + "\n".join(f"- {sentence}" for sentence in sentences))
    sentences = [
        f"With {control.title}: {control.mean.text(share=True)}; minus that with all documents "
        f"{control.difference.text(share=True, signed=True)}, "
        f"{'not ' if control.difference.includes_zero else ''}statistically significant."
        for control in controls.controls
    ]
    lines.append(
        f"**controls**\n\nThe unmodified model with {CONTROLLED.documents} documents: "
        f"{controls['none'].mean.text(share=True)}. Each interval for itself.\n\n"
        + "\n".join(f"- {sentence}" for sentence in sentences)
    )
    count = sum(row[name] is not None for row in rows for name in ("difference", "change"))
    return (
        "# The bundled reader with several gold documents, and with none\n\n"
        f"{known['questions']} questions in each cell, per cent: accuracy, and where the gold "
        "document is absent abstentions. Intervals: 95 % bootstrap over questions; those of the "
        f"{count} differences in the table hold together with 95 % confidence (Bonferroni), in "
        "bold where they leave out zero. Tasks, rows and columns are those of "
        "[the evaluation page](../../docs/evaluation.md#several-gold-documents). A small model "
        "that was trained to find one document and copy from it: what it cannot do here, others "
        "may, and have to be measured for themselves. Where all answers are wrong, the interval "
        f"has no width.\n\n" + "\n\n".join(lines) + f"\n\n{table(rows)}\n\n"
        f"Repeat with `{known['command']}`. {known['date']}; {known['processor']}; Python "
        f"{known['python']}; torch {known['torch']}; transformers {known['transformers']}; "
        f"rag-middle {known['rag_middle']}.\n"
    )


def main() -> None:
    """Measure, print a table, and write the numbers where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--records", type=Path, required=True, help="folder of kept answers")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write FILE.json and FILE.md")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = RagMiddleModel.from_pretrained(str(reader_path()))
    tables, notes, first_steps, controls = measured(
        model, args.methods, args.questions, args.records
    )
    rows = rows_of(tables)
    plain = [
        {name: asdict(v) if isinstance(v, Estimate) else v for name, v in row.items()}
        for row in rows
    ]
    known = facts(None, timed=False, questions=args.questions)
    report(table(rows), plain, known, args.output)
    if args.output:
        text = page(tables, notes, first_steps, controls, rows, known)
        args.output.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
