"""What benchmarks state beside their figures, and how they write them."""

from __future__ import annotations

import gc
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from threading import Timer
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
    write(rows, known, output)


def write(rows: Sequence[Mapping[str, Any]], known: Facts, output: Path) -> None:
    """Write facts and rows to ``output``, ending in .json."""
    output.parent.mkdir(parents=True, exist_ok=True)
    record = json.dumps({"provenance": known, "rows": list(rows)}, indent=2)
    output.with_suffix(".json").write_text(record + "\n")


class Rows:
    """Rows written as they come, so that a run that is cut short keeps those it has.

    What raises is a row with its error. A GPU that answers no more is lost to its process: the row
    says so, and the program is started again for the rows that are not there yet.

    Args:
        output: file.
        known: facts.
        names: columns that tell a row from the others.
        resume: keep the rows of the file.
    """

    def __init__(
        self, output: Path | None, known: Facts, names: Sequence[str], *, resume: bool
    ) -> None:
        self._output, self._known, self._names = output, known, names
        self.rows: list[dict[str, Any]] = []
        if resume and output is not None:
            self.rows = json.loads(output.with_suffix(".json").read_text())["rows"]

    def __contains__(self, key: Mapping[str, Any]) -> bool:
        return any(all(row[name] == key[name] for name in self._names) for row in self.rows)

    @contextmanager
    def row(self, key: dict[str, Any], *, seconds: float = 60) -> Iterator[dict[str, Any]]:
        """A row to fill; after so many seconds it is given up."""
        row = dict(key)
        timer = Timer(seconds, self._lost, [row, f"no end after {seconds:.0f} s"])
        timer.daemon = True
        timer.start()
        try:
            yield row
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:600]
        finally:
            timer.cancel()
        if "error" in row and torch.cuda.is_available():
            gc.collect()
            try:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
            except Exception:
                self._lost(row, row["error"])
        self._add(row)

    def _lost(self, row: dict[str, Any], error: str) -> None:
        self._add({**row, "error": error})
        options = sys.argv if "--resume" in sys.argv else [*sys.argv, "--resume"]
        if self._output is not None:
            os.execv(sys.executable, [sys.executable, *options])

    def _add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        if self._output is not None:
            write(self.rows, self._known, self._output)


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
