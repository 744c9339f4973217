"""Every method has its page, and what the page says about options is what the code does."""

import re
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import pytest

from rag_middle.methods import METHODS
from rag_middle.profiles import published_profiles

DOCS = Path(__file__).parent.parent / "docs"
OURS = [name for name, kind in METHODS.items() if kind.__module__.startswith("rag_middle.")]
HEADINGS = [
    "Idea",
    "Helps when",
    "Hurts when",
    "Cost",
    "Options",
    "Reproduce",
    "Differences from the authors' code",
    "References",
]


def _page(name: str) -> str:
    return (DOCS / "methods" / f"{name}.md").read_text(encoding="utf-8")


def _rows(text: str, first_cell: str) -> list[list[str]]:
    """Cells of the table whose heading row begins with `first_cell`; none where there is none."""
    found = re.search(rf"^\| {first_cell} \|.*\n\| ---.*\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    lines = found.group(1).splitlines() if found else []
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("name", OURS)
def test_every_method_has_a_page_with_the_same_headings(name: str) -> None:
    assert re.findall(r"^## (.+)$", _page(name), flags=re.MULTILINE) == HEADINGS


def test_every_page_is_of_a_method_and_is_linked_from_the_index() -> None:
    pages = sorted(page.stem for page in (DOCS / "methods").glob("*.md"))
    assert pages == sorted(OURS)
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert [name for name in OURS if f"](methods/{name}.md)" not in index] == []


@pytest.mark.parametrize("name", OURS)
def test_the_options_on_the_page_are_those_of_the_class(name: str) -> None:
    options: tuple[Field[Any], ...] = fields(METHODS.get(name))  # type: ignore[arg-type]
    assert all(option.default is not MISSING or "example" in option.metadata for option in options)
    on_page = [tuple(row[:2]) for row in _rows(_page(name), "option")]
    assert on_page == [(f"`{option.name}`", _default(option)) for option in options]


def _default(option: Field[Any]) -> str:
    return "has to be set" if option.default is MISSING else f"`{option.default!r}`"


@pytest.mark.parametrize("name", OURS)
def test_the_examples_on_the_page_run(name: str) -> None:
    for source in re.findall(r"```python\n(.*?)```", _page(name), flags=re.DOTALL):
        made: dict[str, Any] = {}
        exec(source, made)
        assert isinstance(made["method" if "method" in made else "by_document"], METHODS.get(name))


def test_the_presets_on_the_page_are_those_of_the_code() -> None:
    on_page = {row[0]: row[1:] for row in _rows(_page("positional_hidden_states"), "preset")}
    expected = {
        f"`{name}`": [
            ", ".join(map(str, profile.options["channels"])),
            f"{profile.options['factor']:g}",
            f"{min(profile.options['layers'])} to {max(profile.options['layers'])}",
        ]
        for name, profile in published_profiles("positional_hidden_states").items()
    }
    assert on_page == expected


@pytest.mark.parametrize("name", OURS)
def test_the_files_named_on_the_page_exist(name: str) -> None:
    named = re.findall(r"`(rag_middle/[\w/]+\.py)`", _page(name))
    assert [path for path in named if not (DOCS.parent / path).is_file()] == []
