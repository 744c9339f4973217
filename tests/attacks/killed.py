"""Works that keep what they have done on disk, killed at random moments and started again.

Arguments: folder, kills of each work. One process loads everything and forks itself for each life
of a work, so that a life costs no start of Python. Prints, as JSON by work: how often it was
killed, how many of these lives had written something, and what was wrong afterwards.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import LlamaConfig

from rag_middle import ContextPrompt, Document, DocumentCache, RagMiddleModel
from rag_middle.calibration import Example, LayerSearch, calibrate
from rag_middle.evaluation import Measurement
from rag_middle.evaluation.trials import run
from rag_middle.retrieval import FaissIndex, build_index
from tests.reader.questions import InventedDocuments
from tests.retrieval.embedding import HashingEmbedder
from tests.tiny_models import build, tiny
from tests.tokenizers import byte_level_bpe

TOKENIZER = byte_level_bpe(bos=True)
MODEL = build("killed", tiny(LlamaConfig, vocab_size=len(TOKENIZER)), "sdpa")
PROMPTS = [
    ContextPrompt("Read.\n", [f"{at}. The fox of town {at % 7}." for at in range(n, n + 6)], "Who?")
    for n in range(0, 36, 3)
]


def evaluating(folder: Path) -> None:
    how = Measurement(limit=5, positions=2, orders=0, max_new_tokens=2, max_batch_size=1)
    model = RagMiddleModel(MODEL, TOKENIZER)
    run(model, InventedDocuments(documents=3), ["pine"], how, records=folder / "records.jsonl")


def calibrating(folder: Path) -> None:
    texts = [f"The lazy dog {at} jumps over the river." for at in range(6)]
    examples = [
        Example(
            question=text,
            position=0,
            prompt=ContextPrompt("Read.\n", [Document(text, id=text)], "Who?"),
            answer=" fox",
        )
        for text in texts
    ]
    calibrate(
        RagMiddleModel(MODEL, TOKENIZER),
        LayerSearch(control_points=3, population=4, parents=2, mutants=2, crossovers=1),
        examples[:3],
        examples[3:],
        state=folder / "lpes.state",
        out=folder / "lpes.json",
    )


def indexing(folder: Path) -> None:
    documents = folder / "documents"
    documents.mkdir(exist_ok=True)
    for at in range(8):  # each adds to what the one before has saved
        (documents / f"{at}.txt").write_text(f"The fox {at} lives by the river. " * 40)
        build_index(documents, folder / "index", embedder=HashingEmbedder())


def caching(folder: Path) -> None:
    cache = DocumentCache(directory=folder / "cache")
    model = RagMiddleModel(MODEL, TOKENIZER, document_cache=cache, self_check=False)
    for prompt in PROMPTS:
        model.precompute([prompt])
    answers = [model.generate(p, method="ape", max_new_tokens=2).text for p in PROMPTS]
    (folder / "answers").write_text(json.dumps(answers))


def left_by(folder: Path) -> dict[str, Any]:
    """What a work that came to its end leaves, without what may differ."""
    left: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".jsonl" and path.name == "records.jsonl":
            left[name] = sorted(path.read_bytes().splitlines())  # in the order of asking
        elif path.name == "manifest.json":
            index = FaissIndex.load(path.parent, HashingEmbedder())
            left["index"] = sorted((chunk.source, chunk.text) for chunk in index.chunks)
        elif path.is_file() and path.parent.name != "index" and path.suffix != ".lock":
            left[name] = path.read_bytes()
    return left


def begun(work: Callable[[Path], None], folder: Path) -> int:
    """A process that works; exit status 1 where it fails."""
    process = os.fork()
    if process:
        return process
    try:
        warnings.filterwarnings("error", message=".*damaged")  # nothing may be, after a kill
        folder.mkdir(exist_ok=True)
        work(folder)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def attacked(work: Callable[[Path], None], folder: Path, kills: int) -> dict[str, Any]:
    draw, whole, wrong = Random(work.__name__), folder / "whole", []
    folder.mkdir()
    begin = time.monotonic()
    if os.waitpid(begun(work, whole), 0)[1]:
        return {"kills": 0, "wrong": ["it does not work undisturbed"]}
    seconds = time.monotonic() - begin
    expected, left, kept, lives = left_by(whole), kills, 0, 0
    while True:
        lives += 1
        target = folder / str(lives)
        while True:
            process = begun(work, target)
            if left:
                time.sleep(draw.uniform(0, seconds))
                os.kill(process, signal.SIGKILL)
            status = os.waitpid(process, 0)[1]
            if not os.WIFSIGNALED(status):
                break
            left -= 1
            kept += any(path.is_file() for path in target.rglob("*"))
            for path in target.rglob("*"):  # an hour passes
                if path.suffix == ".tmp" or path.name.startswith(".lpes.json"):
                    os.utime(path, (0, 0))
        if status:
            wrong.append(f"life {lives} failed")
        elif left_by(target) != expected:
            names = {n for n, v in left_by(target).items() if expected.get(n) != v}
            wrong.append(f"life {lives} left something else in {names or 'missing files'}")
        if not left:
            return {"kills": kills, "with files": kept, "wrong": wrong}


if __name__ == "__main__":
    torch.set_num_threads(1)  # a process with threads must not fork
    print(
        json.dumps(
            {
                work.__name__: attacked(work, Path(sys.argv[1]) / work.__name__, int(sys.argv[2]))
                for work in (evaluating, calibrating, indexing, caching)
            }
        )
    )
