"""Every configuration runs, with a tiny model on a few rows; wrong ones are refused."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rag_middle import ConfigError, RagMiddleModel, UnknownNameError
from rag_middle.passages import passages_path
from rag_middle.profiles import read_profile, write_profile

pytest.importorskip("yaml", reason="needs pyyaml (extra eval)")
import prepare
from rag_middle_reproduce import read_config
from rag_middle_reproduce.__main__ import main
from rag_middle_reproduce.samples import write_samples

from tests.reader import READER_PROFILE

FOLDER = Path(__file__).parents[1]
README = (FOLDER / "README.md").read_text(encoding="utf-8")
CONFIGS = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/[!_]*.yaml"))
#: What files share.
BASES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/_*.yaml"))
#: Commands of the README's table, where a file stands for the command that runs it.
COMMANDS = re.findall(
    r"`python -m (rag_middle_reproduce[\w.]*) ([^`]*(?:--model|\.yaml)[^`]*)`", README
)
COMMANDS += [
    ("rag_middle_reproduce", f"{path} --data DATA")
    for path in re.findall(r"\| `(\w+/\w+\.yaml)` \|", README)
]
#: The rows that take least time.
QUICK = (
    *("ms_poe/table_1", "ms_poe/figure_4", "positional_hidden_states/table_4"),
    *("lpes/table_1.yaml", "siw/table_1", "--crop"),
)
#: Tables and figures of the papers, by folder and its name in the README's table.
NUMBERS: dict[tuple[str, str], dict[str, Iterable[int]]] = {
    ("lpes", "LPES"): {"table": [*range(1, 9), 10, 11, *range(13, 18)], "figure": [5]},
    ("ms_poe", "Ms-PoE"): {"table": range(1, 5), "figure": range(3, 7)},
    ("positional_hidden_states", "PHS"): {
        "table": [1, 2, 3, 4, 6],
        "figure": [1, 2, 3, *range(5, 13)],
    },
    ("siw", "SIW"): {"table": range(1, 5), "figure": range(2, 8)},
    ("pine", "PINE"): {"table": [1, 2, 3, *range(5, 16)], "figure": [4, 5]},
}
TASK = {
    "task": "own_questions",
    "label": "three",
    "options": {"data": str(passages_path()), "documents": 3},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few records of every dataset, and the profiles that a search would have left."""
    folder = write_samples(tmp_path_factory.mktemp("data"))
    for path in (*CONFIGS, *BASES):
        text = (FOLDER / path).read_text(encoding="utf-8")
        for name in re.findall(r"\b(?:profile|mean):([^\"]+\.json)", text):
            write_profile(read_profile(READER_PROFILE), folder / name)
    return folder


def test_the_table_has_every_configuration_and_names_none_that_is_not_there() -> None:
    named = {path for _, arguments in COMMANDS for path in re.findall(r"\S+\.yaml", arguments)}
    assert named == set(CONFIGS)


@pytest.mark.parametrize(("folder", "paper"), NUMBERS)
def test_every_table_and_figure_of_a_paper_has_a_row(folder: str, paper: str) -> None:
    rows = re.findall(rf"^\| {paper}\b[^|]*\|([^|]*)\|", README, re.MULTILINE)
    page = (FOLDER / folder / "README.md").read_text(encoding="utf-8")
    rows += re.findall(r"^\|([^|]*)\|", page, re.MULTILINE)
    numbers: dict[str, set[int]] = {"table": set(), "figure": set()}
    for row in rows:
        for kind, first, link, last in re.findall(
            r"\b(table|figure)s? (\d+)(?: (to|and) (\d+))?", row
        ):
            stop = int(last or first)
            both = {int(first), stop}
            numbers[kind] |= set(range(int(first), stop + 1)) if link == "to" else both
    for kind, wanted in NUMBERS[folder, paper].items():
        assert set(wanted) <= numbers[kind], kind


def test_a_file_named_by_a_number_stands_in_the_row_of_that_number() -> None:
    rows = [line for line in README.splitlines() if line.startswith("|")]
    for path in CONFIGS:
        number = re.search(r"/(table|figure)s?_(\d+)", path)
        if number is not None:
            [row] = [row for row in rows if re.search(rf"[ `]{path}[ `]", row)]
            assert re.search(rf"\b{number[1]}s? {number[2]}\b", row), path


def test_what_files_share_is_used() -> None:
    text = "".join((FOLDER / path).read_text(encoding="utf-8") for path in CONFIGS)
    assert all(f"base: {Path(path).name}" in text for path in BASES)


def test_every_dataset_of_a_configuration_is_one_that_prepare_fetches(data: Path) -> None:
    for path in CONFIGS:
        config = read_config(FOLDER / path)
        config.check(data)
        for task in config.tasks:
            for name in ("data", "shots"):
                if name in task.options:
                    assert task.options[name] in {file.name for file in prepare.FILES}


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        pytest.param(
            *command, marks=() if any(map(" ".join(command).count, QUICK)) else pytest.mark.slow
        )
        for command in COMMANDS
    ],
    ids=lambda value: value if value.count(" ") else "",
)
@pytest.mark.one_in(3)
def test_a_command_of_the_table_runs_on_the_default_model(
    module: str,
    arguments: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("rouge_score", reason="needs rouge-score (extra eval)")
    monkeypatch.chdir(FOLDER)
    out = tmp_path / "out"
    words = shlex.split(arguments.replace("DATA", str(data)))
    package = module in ("rag_middle_reproduce", "rag_middle_reproduce.perturbations")
    run = import_module(f"{module}.__main__" if package else module).main
    draws = module.endswith(("attention", "hidden_states"))
    writes = draws or module == "rag_middle_reproduce"
    run([*words, "--try-out", *(("--out", str(out)) if writes else ())])
    if draws:
        pytest.importorskip("matplotlib")
        assert list(out.glob("*.png"))
    elif writes:
        tried = read_config(FOLDER / words[0]).tried_out()
        cells = json.loads((out / "results.json").read_text(encoding="utf-8"))["cells"]
        assert len(cells) == sum(1 + len(task.also) for task in tried.tasks)
        for cell in cells:
            labels = [method["label"] for method in cell["summary"]["methods"]]
            assert labels == ["none", *(method.label for method in tried.methods)]
    else:
        assert "| --- |" in capsys.readouterr().out


def test_published_numbers_are_of_models_and_tasks_that_are_there() -> None:
    for path in CONFIGS:
        config = read_config(FOLDER / path)
        for published in config.published:
            assert published.model in {entry.name for entry in config.models}
            assert published.task in {task.label for task in config.tasks}
            assert "arXiv" in config.source
            assert "theirs" in config.source


def test_lpes_needs_fitted_factors(data: Path, tmp_path: Path) -> None:
    unfitted = {"name": "lpes", "options": {"factors": 1.5}}
    with pytest.raises(ConfigError, match="position interpolation, not LPES"):
        read_config(written(tmp_path, methods=[unfitted])).check(data)
    missing = read_config(FOLDER / "lpes/table_1.yaml")
    with pytest.raises(ConfigError, match="calibrate --method lpes:paper --model lmsys"):
        missing.methods_of(missing.models[0], tmp_path)


def written(tmp_path: Path, **changes: Any) -> Path:
    content = {
        "title": "A comparison",
        "models": [{"name": "a/model"}],
        "tasks": [TASK],
        "methods": [{"name": "position_interpolation", "options": {"scale": 1.5}}],
        "measurement": {"limit": 3, "max_new_tokens": 2, "positions": [0, 2]},
        **changes,
    }
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(content), encoding="utf-8")  # which is YAML, too
    return path


def test_fields_replace_those_of_the_base_and_a_later_base_those_of_an_earlier(
    tmp_path: Path,
) -> None:
    written(tmp_path, methods=["ms_poe"])
    (tmp_path / "_methods.yaml").write_text("methods: [pine]\nsource: theirs")
    path = tmp_path / "table.yaml"
    path.write_text("base: [config.yaml, _methods.yaml]\nsource: ours")
    config = read_config(path)
    assert (config.title, config.methods, config.source) == ("A comparison", ("pine",), "ours")
    path.write_text("base: nothing.yaml")
    with pytest.raises(ConfigError, match=r"table\.yaml names as its base"):
        read_config(path)
    path.write_text("base: table.yaml")
    with pytest.raises(ConfigError, match="its own base"):
        read_config(path)


def test_the_command_writes_tables_and_goes_on_from_its_records(
    model: RagMiddleModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RagMiddleModel, "from_pretrained", lambda *_, **__: model)
    score = {"model": "a/model", "task": "three", "method": "none", "mean": 12.5}
    path = written(
        tmp_path,
        models=[{"name": "a/model", "methods": ["ms_poe"]}],
        source="their paper",
        published=[score, {**score, "method": "another method"}],
        cost=True,
    )
    out = tmp_path / "out"
    main([str(path), "--limit", "2", "--out", str(out)])
    page = (out / "results.md").read_text(encoding="utf-8")
    assert "published (their paper)" in page
    assert "| another method (not run) |" in page
    [cell] = json.loads((out / "results.json").read_text(encoding="utf-8"))["cells"]
    labels = [method["label"] for method in cell["summary"]["methods"]]
    assert labels == ["none", "position_interpolation", "ms_poe"]
    assert cell["time_ratios"]["ms_poe"] > 0
    [records] = (out / "records").glob("*.jsonl")
    before = records.read_bytes()
    main([str(path), "--limit", "2", "--out", str(out)])
    assert records.read_bytes() == before


def test_a_trial_says_that_it_is_one_and_goes_on_from_its_records(
    model: RagMiddleModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RagMiddleModel, "from_pretrained", lambda *_, **__: model)
    name = "nq-open-10_total_documents_gold_at_0.jsonl.gz"
    task = {"task": "multi_document_qa", "options": {"data": name}}
    path, out = written(tmp_path, tasks=[task]), tmp_path / "out"
    for seconds in (1e9, 2e9):
        monkeypatch.setattr("time.time", lambda seconds=seconds: seconds)
        main([str(path), "--try-out", "--out", str(out)])
        note = json.loads((out / "results.json").read_text(encoding="utf-8"))["note"]
        assert "default model, invented samples" in note
        assert note in (out / "results.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ["a"]}, "'model'"),
        ({"models": []}, "at least one of its models"),
        ({"models": [{"dtype": "float32"}]}, "'name'"),
        ({"tasks": [TASK, TASK]}, "under different names"),
        ({"tasks": [{**TASK, "measurement": {"position": 3}}]}, "no 'position'"),
        ({"tasks": [{**TASK, "options": {"document": 3}}]}, "Did you mean 'documents'"),
        (
            {"tasks": [{"task": "own_questions", "options": {"data": "no.jsonl"}}]},
            r"no\.jsonl.*prepare\.py --data",
        ),
        ({"tasks": [{**TASK, "measurement": {"metric": "charm"}}]}, "no metric 'charm'"),
        ({"methods": ["mspoe"]}, "Did you mean 'ms_poe'"),
        ({"published": [3]}, "Published"),
    ],
)
def test_a_wrong_configuration_is_refused_before_a_model_is_loaded(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        main([str(written(tmp_path, **changes)), "--out", str(tmp_path / "out")])


def test_models_and_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="It has a/model"):
        read_config(written(tmp_path)).with_models(["b/model"])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "nothing.yaml")
    (tmp_path / "broken.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "broken.yaml")
    with pytest.raises(UnknownNameError, match="own_questions"):
        read_config(written(tmp_path, tasks=[{"task": "own_question"}])).check(tmp_path)
