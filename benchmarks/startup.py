"""How long commands take that a new user types first: help, refusals, an index, an answer.

Each command is a process of its own, started in turn with the others; the first round is not
counted (it compiles and reads files that later ones find in memory).

    python benchmarks/startup.py --output benchmarks/results/startup_cpu
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reporting import Facts, facts, report, write_pages

MISSPELT = "pien"

#: Seconds of wall time that a command may take on an idle machine; None: the model decides.
COMMANDS: Mapping[str, tuple[tuple[str, ...], float | None]] = {
    "--help": (("--help",), 0.5),
    "methods": (("methods",), 0.5),
    "a misspelt method": (("generate", "--method", MISSPELT, "--prompt", "x"), 0.5),
    "index, unchanged folder": (("index", "{docs}", "--out", "{index}"), 2.0),
    "verify, shipped cases": (("verify",), 20.0),
    "ask, existing index": (("ask", "Who wrote it?", "--index", "{index}"), None),
}


def run(arguments: Sequence[str]) -> tuple[float, float]:
    """Wall and user seconds of one command, which must not fail unless it is misspelt."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    start = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-m", "rag_middle", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    wall = time.perf_counter() - start
    expected = 2 if MISSPELT in arguments else 0
    if ended.returncode != expected:
        raise SystemExit(f"rag-middle {' '.join(arguments)} failed:\n{ended.stderr}")
    return wall, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown, in bold what takes longer than it may."""
    lines = ["| command | wall | user | at most |", "| --- | ---: | ---: | ---: |"]
    for row in rows:
        wall = f"{row['wall_s']:.2f} s"
        limit = row["limit_s"]
        if limit is not None and row["wall_s"] > limit:
            wall = f"**{wall}**"
        allowed = "" if limit is None else f"{limit:g} s"
        lines.append(f"| {row['command']} | {wall} | {row['user_s']:.2f} s | {allowed} |")
    return "\n".join(lines)


def page(rows: Sequence[Mapping[str, Any]], known: Facts) -> str:
    """The page that `--output` writes."""
    return (
        "# How long commands take\n\n"
        f"Medians of {known['rounds']} runs of each command, in turn, each a process of its own, "
        "after one that is not counted. `user` is CPU time of the process, all threads together. "
        f"{known['note']}\n\n{table(rows)}\n\n"
        f"Repeat with `{known['command']}`. {known['date']}; {known['processor']}, "
        f"{known['cores']} cores; Python {known['python']}; torch {known['torch']}; transformers "
        f"{known['transformers']}; rag-middle {known['rag_middle']}.\n"
    )


def main() -> None:
    """Measure, print a table, and write the numbers where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--note", default="The machine had nothing else to do.")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write FILE.json and FILE.md")
    args = parser.parse_args()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        places = {"docs": f"{folder}/docs", "index": f"{folder}/index"}
        write_pages(Path(places["docs"]), 400)
        run(["index", places["docs"], "--out", places["index"]])
        for number in range(args.rounds + 1):
            for name, (arguments, _) in COMMANDS.items():
                took = run([argument.format(**places) for argument in arguments])
                if number:  # the first round warms up
                    times[name].append(took)
    rows = [
        {
            "command": name,
            "wall_s": statistics.median(wall for wall, _ in times[name]),
            "user_s": statistics.median(user for _, user in times[name]),
            "limit_s": limit,
            "runs": times[name],
        }
        for name, (_, limit) in COMMANDS.items()
    ]
    known = facts(None, clock="wall", cores=os.cpu_count(), rounds=args.rounds, note=args.note)
    report(table(rows), rows, known, args.output)
    if args.output:
        args.output.with_suffix(".md").write_text(page(rows, known), encoding="utf-8")


if __name__ == "__main__":
    main()
