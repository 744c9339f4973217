"""No room grows beyond its budget (`tool.rag_middle.lines` in ``pyproject.toml``)."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BUDGETS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "rag_middle"
]["lines"]


def files_of(room: str) -> list[Path]:
    if room == "rag_middle":
        return list((ROOT / room).glob("*.py"))
    if room == "tests":
        return [*(ROOT / room).rglob("*.py"), *(ROOT / "examples").rglob("tests/**/*.py")]
    if room == "integrations/tests":
        shared = ROOT / "integrations" / "conftest.py"
        return [shared, *(ROOT / "integrations").rglob("tests/**/*.py")]
    if room.startswith("integrations/"):
        found = (ROOT / room).rglob("*.py")
        return [file for file in found if not {"build", "tests"} & {*file.parts}]
    return list((ROOT / "rag_middle" / room).rglob("*.py"))


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_keeps_its_budget(room: str) -> None:
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files_of(room))
    assert lines, room
    assert lines <= BUDGETS[room], f"{room}: {lines}, {BUDGETS[room]} in pyproject.toml"


def test_every_room_has_a_budget() -> None:
    folders = {file.parent.name for file in (ROOT / "rag_middle").glob("*/__init__.py")}
    assert folders - set(BUDGETS) == set()
