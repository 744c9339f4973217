"""Tables of ``docs/does_it_help.md`` from the records that ``real_models.py`` wrote.

    python benchmarks/real_models_table.py

Writes ``benchmarks/results/real_models.json`` and ``real_models.md``, the measurement that the
demonstration shows, and the tables between the markers of the page. A method is compared with the
unmodified model on the questions that both have been asked under all conditions; intervals are
paired bootstrap intervals that hold together for all methods of a table (Bonferroni).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from rag_middle.evaluation.statistics import (
    Bootstrap,
    comparison_confidence,
    paired_difference,
)

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "benchmarks" / "results" / "real_models"
GUARD = ROOT / "tests" / "real_model" / "recorded.json"
PAGE = ROOT / "docs" / "does_it_help.md"
DEMONSTRATION = ROOT / "rag_middle" / "demo" / "full_measurement.json"
SHOWN_IN_DEMONSTRATION = ("smollm2", "nq", 10), ("none", "pine", "rotor")
MODELS = {
    "smollm2": "SmolLM2-135M-Instruct (Q4_1, float32)",
    "qwen05": "Qwen2.5-Coder-0.5B-Instruct (4 bits, float32)",
    "qwen15": "Qwen2.5-Coder-1.5B-Instruct (4 bits, bfloat16)",
}
TASKS = {"nq": "NaturalQuestions", "kv": "key-value retrieval"}
MIN_QUESTIONS = 8  # questions below which a row says nothing

Records = dict[str, dict[str, dict[str, dict[str, Any]]]]  # method, question, condition


def read(path: Path) -> tuple[Records, dict[str, Any]]:
    """The records of a cell, and what its last run says of model and software."""
    records: Records = defaultdict(lambda: defaultdict(dict))
    provenance: dict[str, Any] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if "provenance" in record:
            methods = provenance.get("methods", {}) | record["provenance"]["methods"]
            provenance = record["provenance"] | {"methods": methods}
        else:
            records[record["method"]][record["question"]][record["condition"]] = record
    return records, provenance


def cell(path: Path) -> dict[str, Any]:
    """Everything that is said about a model on a task with so many documents."""
    match = re.fullmatch(r"([a-z0-9]+?)_(nq|kv)(\d+)(_fit)?", path.stem)
    assert match, path
    records, provenance = read(path)
    records = {label: asked for label, asked in records.items() if len(asked) >= MIN_QUESTIONS}
    base = records["none"]
    positions = sorted(
        {c for by_condition in base.values() for c in by_condition if c.startswith("position:")},
        key=lambda name: int(name.partition(":")[2]),
    )
    confidence = comparison_confidence(len(records) - 1)
    rows = [
        row
        for label, by_question in records.items()
        if (row := _row(label, by_question, base, positions, confidence))
    ]
    controls = {}
    for name in ("gold_only", "closed_book", "best_first", "best_last"):
        asked = [by[name] for by in base.values() if name in by]
        if len(asked) >= MIN_QUESTIONS:
            controls[name] = {
                "questions": len(asked),
                "log_likelihood": _estimate([r["log_likelihood"] for r in asked]),
            }
            if all("correct" in r for r in asked):
                controls[name]["accuracy"] = _estimate([r["correct"] for r in asked])
    return {
        "model": match[1],
        "task": match[2],
        "documents": int(match[3]),
        "fit": bool(match[4]),
        "positions": [int(name.partition(":")[2]) for name in positions],
        "confidence": confidence,
        "rows": rows,
        "controls": controls,
        "provenance": provenance,
    }


def _row(
    label: str,
    asked: dict[str, dict[str, dict[str, Any]]],
    base: dict[str, dict[str, dict[str, Any]]],
    positions: list[str],
    confidence: float,
) -> dict[str, Any] | None:
    questions = [
        q for q in asked
        if all(p in asked[q] and p in base.get(q, {}) for p in positions)
    ]  # fmt: skip
    if len(questions) < MIN_QUESTIONS:
        return None

    def table(source: dict[str, dict[str, dict[str, Any]]], field: str) -> np.ndarray[Any, Any]:
        return np.array([[float(source[q][p][field]) for p in positions] for q in questions])

    own_ll, other_ll = table(asked, "log_likelihood"), table(base, "log_likelihood")
    row: dict[str, Any] = {
        "label": label,
        "questions": len(questions),
        "log_likelihood": [asdict(e) for e in Bootstrap(own_ll).estimates()],
        "mean_log_likelihood": _estimate(own_ll.mean(axis=1)),
    }
    if label != "none":
        row["log_likelihood_gain"] = asdict(
            paired_difference(own_ll.mean(1), other_ll.mean(1), confidence)
        )
        row["log_likelihood_worst_gain"] = asdict(
            Bootstrap(np.hstack([other_ll, own_ll])).least_gain(confidence)
        )
    if not all("correct" in asked[q][p] for q in questions for p in positions):
        return row  # likelihoods only
    own, other = table(asked, "correct"), table(base, "correct")
    bootstrap = Bootstrap(own)
    changed = [
        len({asked[q][p]["text"].strip().partition("\n")[0] for p in positions}) > 1
        for q in questions
    ]
    row |= {
        "accuracy": [asdict(estimate) for estimate in bootstrap.estimates()],
        "mean": _estimate(own.mean(axis=1)),
        "spread": asdict(bootstrap.gap()),
        "changed": float(np.mean(changed)),
    }
    if label != "none":
        row["gain"] = asdict(paired_difference(own.mean(1), other.mean(1), confidence))
        row["worst_gain"] = asdict(Bootstrap(np.hstack([other, own])).least_gain(confidence))
        row["seconds_ratio"] = _seconds_ratio(asked, base, questions, positions)
    return row


def _seconds_ratio(
    asked: dict[str, Any], base: dict[str, Any], questions: list[str], positions: list[str]
) -> float | None:
    """Median over questions of the first token's time, against an unmodified whole reading."""
    ratios = []
    for question in questions:
        whole = [
            record["first_token_s"]
            for record in base[question].values()
            if record["condition"] in positions
            and record.get("read_tokens", record["prompt_tokens"]) > 0.9 * record["prompt_tokens"]
        ]
        own = [asked[question][p] for p in positions if not asked[question][p].get("repeated")]
        if whole and own:
            ratios.append(median(record["first_token_s"] for record in own) / median(whole))
    return median(ratios) if len(ratios) >= MIN_QUESTIONS else None


def _estimate(values: Any) -> dict[str, Any]:
    return asdict(Bootstrap(np.array(values, dtype=float)[:, None]).estimates()[0])


def _percent(estimate: dict[str, Any], *, signed: bool = False) -> str:
    value, low, high = (100 * estimate[name] for name in ("value", "low", "high"))
    sign = "+" if signed else ""
    return f"{value:{sign}.0f} [{low:{sign}.0f}, {high:{sign}.0f}]".replace("-", "−")


def _nats(estimate: dict[str, Any], *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    return (
        f"{estimate['value']:{sign}.2f} [{estimate['low']:{sign}.2f}, {estimate['high']:{sign}.2f}]"
    ).replace("-", "−")


def markdown(cells: list[dict[str, Any]]) -> str:
    parts = []
    for c in cells:
        if c["fit"]:
            continue
        held = "pairs" if c["task"] == "kv" else "documents"
        parts.append(f"**{MODELS[c['model']]}, {TASKS[c['task']]}, {c['documents']} {held}**\n")
        answered = [row for row in c["rows"] if "accuracy" in row]
        if answered:
            parts += _answered_rows(c, answered)
        scored = [row for row in c["rows"] if "accuracy" not in row]
        if scored:
            parts += _scored_rows(c, scored)
        parts.append("")
    return "\n".join(parts)


def _answered_rows(c: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    """Accuracy and log-likelihood of each method, and the controls."""
    names = ", ".join(str(p) for p in c["positions"])
    parts = [
        f"| method | n | accuracy at {names} (%) | mean gain (points) | worst position gain | "
        "answers that change | log-likelihood | its gain | first token |\n"
        "| --- | ---: | --- | --- | --- | ---: | --- | --- | ---: |"
    ]
    for row in rows:
        accuracy = ", ".join(f"{100 * e['value']:.0f}" for e in row["accuracy"])
        gains = ["", "", "", "1"]
        if row["label"] != "none":
            ratio = row["seconds_ratio"]
            gains = [
                _percent(row["gain"], signed=True),
                _percent(row["worst_gain"], signed=True),
                _nats(row["log_likelihood_gain"], signed=True),
                f"{ratio:.1f}" if ratio else "",
            ]
        parts.append(
            f"| `{row['label']}` | {row['questions']} | {accuracy} | {gains[0]} | {gains[1]} | "
            f"{100 * row['changed']:.0f} % | {_likelihoods(row)} | {gains[2]} | {gains[3]} |"
        )
    for name, control in c["controls"].items():
        parts.append(
            f"| {name.replace('_', ' ')} | {control['questions']} | "
            f"{100 * control['accuracy']['value']:.0f} | | | | "
            f"{control['log_likelihood']['value']:.2f} | | |".replace("-", "−")
        )
    return parts


def _scored_rows(c: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    """Log-likelihood alone, the greatest gain first, and the controls."""
    names = ", ".join(str(p) for p in c["positions"])
    parts = [
        f"| method | n | log-likelihood at {names} | mean gain (nats) | worst position gain |\n"
        "| --- | ---: | --- | --- | --- |"
    ]
    unmodified = {"value": float("inf")}
    rows = sorted(rows, key=lambda r: -r.get("log_likelihood_gain", unmodified)["value"])
    for row in rows:
        gains = " | "
        if row["label"] != "none":
            gains = " | ".join(
                _nats(row[name], signed=True)
                for name in ("log_likelihood_gain", "log_likelihood_worst_gain")
            )
        parts.append(f"| `{row['label']}` | {row['questions']} | {_likelihoods(row)} | {gains} |")
    for name, control in c["controls"].items():
        mean = f"{control['log_likelihood']['value']:.2f}".replace("-", "−")
        parts.append(f"| {name.replace('_', ' ')} | {control['questions']} | {mean} | | |")
    return parts


def _likelihoods(row: dict[str, Any]) -> str:
    return ", ".join(f"{e['value']:.2f}" for e in row["log_likelihood"]).replace("-", "−")


def every_method() -> str:
    """The recorded answers that guard the code: four questions, so that only breakage shows."""
    recorded = json.loads(GUARD.read_text(encoding="utf-8"))["methods"]
    means = {label: float(np.mean(method["likelihoods"])) for label, method in recorded.items()}
    unmodified = means.pop("none")
    gains = ", ".join(
        f"`{label}` {mean - unmodified:+.1f}"
        for label, mean in sorted(means.items(), key=lambda pair: -pair[1])
    )
    count = len(recorded["none"]["likelihoods"])
    return (
        f"**Every method on {count} questions with 5 documents** (about 500 tokens, parameters of "
        "`tests/real_model/recording.py`): gain in log-likelihood of the right answer, in nats, "
        f"on the unmodified model's {unmodified:.1f}: {gains}."
    ).replace(" -", " −")


def demonstration(c: dict[str, Any]) -> dict[str, Any]:
    labels = SHOWN_IN_DEMONSTRATION[1]
    rows = [row for row in c["rows"] if row["label"] in labels]
    asked = min(row["questions"] for row in rows)
    return {
        "model": MODELS[c["model"]],
        "digest": c["provenance"]["weights"],
        "software": c["provenance"]["software"],
        "data": "NaturalQuestions-Open, hard distractors (benchmarks/data)",
        "documents": c["documents"],
        "questions": asked,
        "seed": 0,
        "made": datetime.now(UTC).date().isoformat(),
        "command": "python benchmarks/real_models.py --model smollm2 --weights DIR "
        "--methods none pine rotor",
        "metric": "accuracy",
        "curves": [
            {
                "label": row["label"],
                "positions": c["positions"],
                "accuracy": row["accuracy"],
                "log_likelihood": row["log_likelihood"],
            }
            for row in rows
        ],
    }


def main() -> None:
    paths = sorted(RECORDS.glob("*.jsonl"))
    cells = [c for c in map(cell, paths) if len(c["rows"])]
    order = [*MODELS, *TASKS]
    cells.sort(key=lambda c: (order.index(c["model"]), order.index(c["task"]), -c["documents"]))
    text = f"{markdown(cells)}\n{every_method()}"
    results = ROOT / "benchmarks" / "results"
    (results / "real_models.json").write_text(json.dumps(cells, indent=1) + "\n")
    (results / "real_models.md").write_text(text + "\n")
    for c in cells:
        if (c["model"], c["task"], c["documents"]) == SHOWN_IN_DEMONSTRATION[0] and not c["fit"]:
            DEMONSTRATION.write_text(json.dumps(demonstration(c), indent=1) + "\n")
    if PAGE.exists():
        page = PAGE.read_text(encoding="utf-8")
        start, end = "<!-- tables:start -->\n", "<!-- tables:end -->"
        before, after = page.partition(start)[0], page.partition(end)[2]
        PAGE.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
