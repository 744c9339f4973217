"""A few records of every dataset, which tests read, and ``--try-out`` where there is no data."""

from __future__ import annotations

import gzip
import json
import random
import uuid
from collections import defaultdict
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from rag_middle_reproduce.tasks.judging import SECTIONS

Lines = list[dict[str, Any]]


def _pairs(count: int) -> Lines:
    """nelson-liu/lost-in-the-middle: pairs of UUIDs, cut here: whole ones take a minute to read."""
    draw = random.Random(count)
    records = [
        [str(uuid.UUID(int=draw.getrandbits(128)))[:8] for _ in range(2)] for _ in range(count)
    ]
    return [
        {"ordered_kv_records": records, "key": records[at][0], "value": records[at][1]}
        for at in (3, 1)
    ]


def _retrieved(lines: Lines, documents: int) -> Lines:
    """With so many documents, the gold one among them."""
    return [
        {**line, "ctxs": [gold, *({**other, "title": f"Arlen {n}"} for n in range(1, documents))]}
        for line in lines
        for gold, other in [line["ctxs"]]
    ]


def _samples() -> dict[str, Lines]:
    text = Path(__file__).with_name("tasks").joinpath("samples.yaml").read_text("utf-8")
    files: dict[str, Lines] = defaultdict(list)
    for group in yaml.safe_load(text):
        for line in group["lines"]:
            whole = {**group.get("fields", {}), **line}
            files[group["name"].format(**whole)] += [whole] * group.get("times", 1)
    questions, written, judged = (files.pop(name) for name in ("nq", "pine", "rewardbench"))
    for count, golds in ((10, (0, 4, "4_random", 9)), (20, (0, 4, "4_random", 9, 14, 19))):
        name = f"nq-open-{count}_total_documents_gold_at_"
        files[f"{name}0.jsonl.gz"] = _retrieved(questions, count)
        files |= {f"pine-{name}{gold}.jsonl": written for gold in golds}
    files |= {f"kv-retrieval-{count}_keys.jsonl.gz": _pairs(count) for count in (75, 140)}
    subsets = chain.from_iterable(SECTIONS.values())
    files["rewardbench.jsonl"] = [{**line, "subset": s} for s in subsets for line in judged]
    return files


#: Lines by file name, as `prepare.py` calls the files.
SAMPLES = _samples()


def write_samples(folder: Path) -> Path:
    """Write all files below `folder`, gzipped where their names say so."""
    for name, lines in SAMPLES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
        # mtime: the same bytes every time, so that records of an earlier run are gone on with.
        path.write_bytes(gzip.compress(text, mtime=0) if name.endswith(".gz") else text)
    return folder


def trial_note(*, invented: bool) -> str:
    """What stands beside the numbers of ``--try-out``; `invented`: of questions from here."""
    questions = "invented samples" if invented else "one question of each task"
    return f"Tried out on the default model, {questions}: the numbers mean nothing."
