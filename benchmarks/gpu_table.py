"""Markdown from the JSON of `gpu.sh`: what was measured, and in brackets what a roofline predicted.

    python benchmarks/gpu_table.py [FOLDER]

`docs/generate.py` writes the costs of methods into `docs/choosing.md` and the README, of what lies
in `benchmarks/results/gpu`; until a GPU has run it, predictions alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PREDICTED = {"auto": "gpu_8_groups_predicted", "torch": "gpu_8_groups_torch"}
GPU = "h200"
Row = dict[str, Any]


def read(file: Path) -> list[Row]:
    """Rows of a result, none where there is no such file."""
    return list(json.loads(file.read_text("utf-8"))["rows"]) if file.exists() else []


def by_method(rows: list[Row]) -> dict[tuple[str, int, str], Row]:
    """Rows by method, tokens and kernels: times and launches of one method in one.

    A note says that what was measured is no longer there.
    """
    merged: dict[tuple[str, int, str], Row] = {}
    for row in rows:
        if "note" in row:
            continue
        merged.setdefault((row["method"], row["tokens"], row["kernels"]), {}).update(row)
    return merged


def predictions() -> dict[tuple[str, int, str], Row]:
    """The roofline's rows, by the same."""
    found = {}
    for kernels, name in PREDICTED.items():
        rows = [row for row in read(RESULTS / f"{name}.json") if row["gpu"] == GPU]
        plain = {row["tokens"]: row["peak_gb"] for row in rows if row["method"] == "none"}
        for row in rows:
            row["peak_ratio"] = row["peak_gb"] / plain[row["tokens"]]
            found[row["method"], row["tokens"], kernels] = row
    return found


def cost_table(folder: Path = RESULTS / "gpu", kernels: str = "auto") -> str:
    """Ratios to the unmodified model: a row for each method, columns by phase and length."""
    measured, predicted = by_method(read(folder / "methods.json")), predictions()
    lengths = sorted({tokens for _, tokens, choice in measured or predicted if choice == kernels})
    columns = [(phase, n) for phase in ("prefill", "decode") for n in lengths]
    words = {"prefill": "prefill", "decode": "generated token"}
    heads = [f"{words[phase]}, {n / 1000:.1f}k".replace(".0k", "k") for phase, n in columns]
    lines = [f"| method | {' | '.join(heads)} |", "| --- |" + " ---: |" * len(columns)]
    known = [name for name, _, choice in (*measured, *predicted) if choice == kernels]
    for method in dict.fromkeys(known):
        if (measured or method == "none") and (method, lengths[0], kernels) not in measured:
            continue  # a prediction alone; the unmodified model against itself shows the noise
        cells = []
        for phase, tokens in columns:
            key = (method, tokens, kernels)
            ours, theirs = (
                f"{row[f'{phase}_ratio']:.2f}" if f"{phase}_ratio" in row else ""
                for row in (measured.get(key, {}), predicted.get(key, {}))
            )
            failed = "failed" if "error" in measured.get(key, {}) else ""
            cells.append(" ".join(filter(None, (ours or failed, theirs and f"({theirs})"))))
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def short_costs(folder: Path = RESULTS / "gpu", tokens: int = 3300) -> dict[str, str]:
    """In a few words, of each method that a GPU has measured."""
    return {
        method: f"prefill {row['prefill_ratio']:.2f}, token {row['decode_ratio']:.2f}"
        for (method, count, kernels), row in by_method(read(folder / "methods.json")).items()
        if (count, kernels) == (tokens, "auto") and "prefill_ratio" in row and method != "none"
    }


def launch_table(folder: Path) -> str:
    """Kernels launched per layer, by method."""
    measured, predicted = by_method(read(folder / "methods.json")), predictions()
    lines = ["| method | kernels | prefill | generated token |", "| --- | --- | ---: | ---: |"]
    for key, row in measured.items():
        if "prefill_launches" in row:
            cells = [
                f"{row[f'{phase}_launches'] / row['layers']:.1f}"
                + (
                    f" ({predicted[key][f'{phase}_launches_per_layer']:.0f})"
                    if key in predicted
                    else ""
                )
                for phase in ("prefill", "decode")
            ]
            lines.append(f"| `{key[0]}` | {key[2]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def kernel_table(rows: list[Row]) -> str:
    """Milliseconds, ratios to the unmodified call and errors, by operator and shape."""
    lines = ["| operator | shape | tokens | way | ms | ratio | error | far rows |"]
    lines += ["| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |"]
    for row in rows:
        way = row.get("note", row["way"])
        head = " | ".join(map(str, (row["operator"], row["shape"], row["tokens"], way)))
        numbers = row.get("error") or " | ".join(
            f"{row[name]:.3g}" if name in row else ""
            for name in ("ms", "ratio", "relative_error", "far_rows")
        )
        lines.append(f"| {head} | {numbers} |")
    return "\n".join(lines)


def main() -> None:
    """Print what the files of a folder hold."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / "gpu"
    tests = folder / "tests.json"
    if tests.exists():
        about = json.loads(tests.read_text("utf-8"))["provenance"]
        print("; ".join(filter(None, (about["summary"], about.get("note")))), end="\n\n")
        for row in read(tests):
            print(f"- `{row['test']}`: {row['error'].partition(chr(10))[0]}")
    print("", cost_table(folder), cost_table(folder, "torch"), launch_table(folder), sep="\n\n")
    print("", kernel_table(read(folder / "kernels.json")), sep="\n")
    for row in read(folder / "methods.json"):
        if "error" in row:
            print(f"\n- `{row['method']}`, {row['tokens']}, {row['kernels']}: {row['error']}")


if __name__ == "__main__":
    main()
