"""The package from outside."""

from __future__ import annotations

import subprocess
import sys

import langchain_rag_middle

EXPECTED = [
    "ChatRagMiddle",
    "DocumentPrompt",
    "FaissRetriever",
    "IgnoredArgumentWarning",
    "LongContextReorder",
    "MarkDocuments",
    "RagMiddleLLM",
    "format_docs",
]


def test_every_public_name_is_there() -> None:
    assert sorted(langchain_rag_middle.__all__) == EXPECTED
    assert all(hasattr(langchain_rag_middle, name) for name in EXPECTED)


def test_importing_loads_no_deep_learning_library() -> None:
    code = (
        "import sys, langchain_rag_middle;"
        "print([m for m in ('torch', 'transformers', 'faiss') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
