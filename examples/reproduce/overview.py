"""The README's tables of everything that the papers show, from the configurations themselves."""

from __future__ import annotations

from pathlib import Path

import yaml
from rag_middle_reproduce.config import EvaluationConfig, read_config

from rag_middle import ConfigError

FOLDER = Path(__file__).parent
#: In the order of the table, with the names that titles begin with.
PAPERS = {
    "LPES": "2606.27705",
    "Ms-PoE": "2403.04797",
    "PHS": "2406.02536",
    "PINE": "2407.01100",
    "SIW": "2512.13109",
}


def configurations() -> dict[str, EvaluationConfig]:
    """Every configuration by its path in this folder."""
    paths = sorted(FOLDER.glob("*/[!_]*.yaml"))
    return {path.relative_to(FOLDER).as_posix(): read_config(path) for path in paths}


def runs_here(config: EvaluationConfig) -> str:
    """What a run without the paper's models and data takes."""
    if "times" in config.title:
        return "needs a GPU"
    try:
        shipped = config.on_shipped_questions()
    except ConfigError:
        return "needs data"
    return "yes" if shipped.tasks == config.tasks else "`--shipped`"


def items(paper: str) -> tuple[list[tuple[str, ...]], dict[str, str]]:
    """Rows of a paper's configurations, and why its other tables and figures have none."""
    rows: list[tuple[str, ...]] = []
    for path, config in configurations().items():
        name, item = config.title.split(", ", 1)
        if name == paper:
            rows.append((item, f"`{path}`", runs_here(config), config.differs))
    absent: dict[str, dict[str, str]] = yaml.safe_load(
        (FOLDER / "absent.yaml").read_text(encoding="utf-8")
    )
    return rows, absent[paper]


def markdown() -> str:
    """For each paper a row for each configuration, and the items that have none."""
    lines = []
    for paper, number in PAPERS.items():
        rows, absent = items(paper)
        lines += [f"### {paper}, [{number}](https://arxiv.org/abs/{number})", ""]
        lines += ["| table or figure | command | runs here | differs |", "| --- " * 4 + "|"]
        lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in r)} |" for r in rows]
        left_out = "; ".join(f"{item} ({why})" for item, why in absent.items())
        lines += ["", f"Without a file: {left_out}.", ""]
    return "\n".join(lines)
