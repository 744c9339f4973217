"""Code blocks of the documentation do what they say, with the tests' reader for any model.

Python blocks of a page run one after the other, in one namespace. Of console blocks, every command
is parsed and the quick ones run. ``<!-- not run: reason -->`` before a block leaves it out.
"""

import json
import re
import shlex
import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from llama_index.core import Settings
from typer.main import get_command
from typer.testing import CliRunner
from weighted_documents import WeightedDocuments

from rag_middle.cli.app import app
from rag_middle.methods import METHODS
from tests.reader import READER_PROFILE, reader_path
from tests.reader.world import draw_entries

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path
    for pattern in ("README.md", "docs/**/*.md", "integrations/*/README.md", "examples/*/README.md")
    for path in ROOT.glob(pattern)
)
MODEL = re.compile(r"Qwen/[\w.-]+|my-model(?!\.json)")
QUICK = {"ask", "generate", "index", "methods"}
SLOW = {
    "README.md",
    "docs/evaluation.md",
    "docs/integrations/llama_index.md",
    "integrations/langchain/README.md",
    "integrations/llama_index/README.md",
}


@dataclass(frozen=True)
class Block:
    """A fenced block, the line that it begins in, and why it is not run (``None``: it is)."""

    language: str
    code: str
    line: int
    excuse: str | None


def blocks(page: Path, language: str, *, excused: bool = False) -> list[Block]:
    """A page's blocks of one language that are to be run; with `excused`, those that are not."""
    text = page.read_text(encoding="utf-8")
    pattern = r"(?:^<!-- not run: (.+?) -->\n\n?)?^```(\w+)\n(.*?)^```"
    every = [
        Block(match[2], match[3], text[: match.start(2)].count("\n") + 1, match[1])
        for match in re.finditer(pattern, text, flags=re.DOTALL | re.MULTILINE)
    ]
    return [
        block
        for block in every
        if block.language == language and (block.excuse is not None) == excused
    ]


def pages(language: str) -> list[object]:
    """Those of the pages that have such blocks."""
    names = {str(page.relative_to(ROOT)): page for page in PAGES if blocks(page, language)}
    return [
        pytest.param(page, id=name, marks=[pytest.mark.slow] * (name in SLOW))
        for name, page in names.items()
    ]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files that the documentation speaks of."""
    (tmp_path / "docs").mkdir()
    for number, entry in enumerate(draw_entries(Random(0), 12)):
        (tmp_path / "docs" / f"{number}.md").write_text(f"# {entry.title}\n\n{entry.body}\n")
    line = {"question": "Where does Ada live?", "answers": ["Lyon"], "gold": "Ada lives in Lyon."}
    others = {"distractors": [f"Person {number} lives in Nantes." for number in range(19)]}
    questions = [line | others | {"id": str(number)} for number in range(2)]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    shutil.copy(READER_PROFILE, tmp_path / "my-model.json")
    (tmp_path / "prompt.txt").write_text("[[rm:doc]]Ada lives in Lyon.[[/rm:doc]]\nWhere?")
    (tmp_path / "rag_middle").symlink_to(ROOT / "rag_middle")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rag_middle.answering.answerer.default_model", lambda: str(reader_path()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # As if examples/weighted_documents were installed.
    monkeypatch.setattr(METHODS, "_targets", METHODS._targets.copy())
    monkeypatch.setattr(METHODS, "_loaded", METHODS._loaded.copy())
    METHODS.register("weighted_documents", WeightedDocuments)
    for name in vars(Settings):  # which pages set, and other tests would read
        monkeypatch.setattr(Settings, name, None)
    return tmp_path


@pytest.mark.filterwarnings("ignore:The function `load` is in beta")  # of LangChain
@pytest.mark.parametrize("page", pages("python"))
@pytest.mark.one_in(3)
def test_python_blocks_run(
    page: Path, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace = ModuleType("documentation")
    monkeypatch.setitem(sys.modules, "documentation", namespace)  # dataclasses look it up
    for block in blocks(page, "python"):
        code = MODEL.sub(str(reader_path()), block.code)
        code = re.sub(r"\blimit=\d+", "limit=2", code)
        exec(compile(code, f"{page.name}:{block.line}", "exec"), namespace.__dict__)


@pytest.mark.parametrize("page", pages("console"))
@pytest.mark.one_in(3)
def test_commands_exist_with_their_options(page: Path, desk: Path) -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for block in blocks(page, "console"):
        lines = re.sub(r"\\\n\s*", " ", block.code).splitlines()
        for line in lines:
            assert line.startswith("$ "), f"line {block.line}: {line}"
            program, *arguments = shlex.split(line[2:], comments=True)
            if program == "rag-middle" and arguments[0] != "--version":
                name, *rest = (MODEL.sub(str(reader_path()), word) for word in arguments)
                commands[name].make_context(name, rest[:])
                if name in QUICK:
                    result = CliRunner().invoke(app, [name, *rest], catch_exceptions=False)
                    assert result.exit_code == 0, (line, result.output)
            elif program == "make":
                makefile = (ROOT / "Makefile").read_text()
                assert re.search(rf"^{arguments[0]}:", makefile, flags=re.MULTILINE), line
            elif program == "python" and arguments[0].endswith(".py"):
                assert (ROOT / arguments[0]).is_file(), line
            elif program == "pip":
                check_install(arguments)


def check_install(arguments: list[str]) -> None:
    """Folders and extras that are to be installed exist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for argument in arguments:
        if match := re.fullmatch(r"(\.[\w/.-]*|integrations/\w+)(?:\[([\w,]+)\])?", argument):
            assert (ROOT / match[1] / "pyproject.toml").is_file(), argument
            assert set((match[2] or "demo").split(",")) <= project["optional-dependencies"].keys()


@pytest.mark.parametrize("page", pages("json"))
def test_json_blocks_are_json(page: Path) -> None:
    for block in blocks(page, "json"):
        try:
            json.loads(block.code)
        except json.JSONDecodeError:  # several values, one after the other
            decoder, rest = json.JSONDecoder(), block.code.strip()
            while rest:
                _, end = decoder.raw_decode(rest)
                rest = rest[end:].lstrip()
