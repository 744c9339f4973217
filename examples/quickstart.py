"""Documents in, a question, an answer with its sources out.

    python examples/quickstart.py                                    this repository's docs
    python examples/quickstart.py FOLDER QUESTION MODEL [METHOD]     yours

Without a model the default one answers, SmolLM2-135M-Instruct, which is very small.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rag_middle.answering import Answerer

PAGES = Path(__file__).parents[1] / "docs"
QUESTION = "Which exit status does a command have that was stopped by Ctrl-C?"


def main(
    docs: str | Path = PAGES,
    question: str = QUESTION,
    model: str | Path | None = None,
    method: str = "none",
    **how: Any,
) -> None:
    """Index `docs` (once; later only what has changed), find, read, answer."""
    answerer = Answerer.over(docs, model=model, method=method, **how)
    answer = answerer.ask(question, max_new_tokens=64)
    print(f"{question}\n{answer.text}\n")
    for source in answer.sources[:3]:
        print(f"{source.score:.2f}  {source.path}  {'cited' if source.cited else ''}".rstrip())
    print(f"\n{answer.method}, {answer.usage.prompt_tokens} tokens, {answer.timings.total:.2f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
