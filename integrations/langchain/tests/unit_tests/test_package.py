"""The package from outside."""

import subprocess
import sys

import langchain_rag_middle
from rag_middle.options import OPTIONS


def test_options_are_those_of_the_library() -> None:
    settings = langchain_rag_middle.ChatRagMiddle.model_fields
    names = {"max_new_tokens": "max_tokens"}
    others = {"allow_control_tokens", "cancel", "missing_documents_hint", "system"}
    others |= {"tools", "tool_choice", "response_format"}
    for name, declaration in OPTIONS.items():
        field = settings.get(names.get(name, name))
        assert (field is None) == (name in others)
        if field is not None:
            assert field.description == declaration.help
            assert (field.default or None) == (declaration.default or None)


def test_importing_loads_no_deep_learning_library() -> None:
    code = (
        "import sys, langchain_rag_middle;"
        "print([m for m in ('torch', 'transformers', 'faiss') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
