"""The README's table of everything that the papers show, from the configurations themselves."""

from __future__ import annotations

from pathlib import Path

import yaml
from rag_middle_reproduce.config import EvaluationConfig, read_config

from rag_middle import ConfigError

__all__ = ["markdown", "runs_here"]

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
    return "yes" if shipped.tasks == config.tasks else "yes, `--shipped`"


def markdown() -> str:
    """A row for each configuration, and for each item that has none."""
    absent = yaml.safe_load((FOLDER / "absent.yaml").read_text(encoding="utf-8"))
    rows = []
    for path, config in configurations().items():
        paper, item = config.title.split(", ", 1)
        rows.append((paper, item, f"`{path}`", runs_here(config), config.differs))
    rows += [(paper, item, "", "", why) for paper in PAPERS for item, why in absent[paper].items()]
    order = list(PAPERS)
    rows.sort(key=lambda row: order.index(row[0]))  # stable: files before what has none
    lines = ["| paper | table or figure | command | runs here | differs |", "| --- " * 5 + "|"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join(lines)
