"""What benchmarks state beside their figures, and how they write them."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch
import transformers

from rag_middle import __version__
from rag_middle.passages import passages_path

Facts = dict[str, Any]


def facts(
    device: str | None, *, timed: bool = True, command: str | None = None, **more: Any
) -> Facts:
    """With what it was measured: versions, machine, clock, command; and what else is given.

    Args:
        device: of the model; None for the default one.
        timed: whether the figures are times, which have a clock.
        command: what repeats the figures; by default as this run was called.
        more: what one benchmark states besides, or in another way.
    """
    gpu = torch.cuda.get_device_name() if device and device.startswith("cuda") else None
    return {
        "date": date.today().isoformat(),
        "rag_middle": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "processor": gpu or _processor(),
        "device": device or "default",
        "threads": torch.get_num_threads(),
        **({"clock": "wall, synchronised" if gpu else "CPU time of the process"} if timed else {}),
        **more,
        "command": command or "python " + " ".join(sys.argv),
    }


def first_token_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: time to the first token of each way, and its ratio to the unmodified model."""
    lines = ["| | first token | ratio |", "| --- | ---: | ---: |"]
    for row in rows:
        low, high = row["ratio_range"]
        lines.append(
            f"| {row['way']} | {row['first_token_ms']:.1f} ms | {row['ratio']:.3f} "
            f"({low:.3f} to {high:.3f}) |"
        )
    return "\n".join(lines)


def report(
    table: str, rows: Sequence[Mapping[str, Any]], known: Facts, output: Path | None
) -> None:
    """Print table and facts; write facts and rows to ``output``, ending in .json."""
    stated = "\n".join(f"- {name}: {value}" for name, value in known.items())
    print(table, stated, sep="\n\n")
    if output is None:
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    record = json.dumps({"provenance": known, "rows": list(rows)}, indent=2)
    output.with_suffix(".json").write_text(record + "\n")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def write_pages(folder: Path, count: int) -> list[str]:
    """Write the first passages that come with the package as pages; their questions."""
    folder.mkdir(parents=True)
    lines = passages_path().read_text(encoding="utf-8").splitlines()[:count]
    passages = [json.loads(line) for line in lines]
    for number, passage in enumerate(passages):
        page = f"# {passage['title']}\n\n{passage['text']}\n"
        (folder / f"{number:03}.md").write_text(page, encoding="utf-8")
    return [passage["question"] for passage in passages]
