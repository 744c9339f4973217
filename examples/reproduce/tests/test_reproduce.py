"""Every configuration runs, with a tiny model on a few rows; wrong ones are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import overview
import prepare
import pytest
from rag_middle_reproduce import ModelConfig, read_config
from rag_middle_reproduce.__main__ import load_model, main
from rag_middle_reproduce.samples import write_samples

from rag_middle import ConfigError, RagMiddleModel
from rag_middle.passages import passages_path
from rag_middle.profiles import read_profile, write_profile
from tests.reader import READER_PROFILE

FOLDER = Path(__file__).parents[1]
CONFIGS = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/[!_]*.yaml"))
#: What files share.
BASES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/_*.yaml"))
#: Those that are run every time: one of each kind that takes little time.
QUICK = (
    *("ms_poe/table_1", "ms_poe/figure_6", "positional_hidden_states/table_4", "lpes/table_1."),
    *("lpes/table_10", "lpes/table_11.", "siw/table_3", "siw/table_4", "siw/figure_6"),
    *("positional_hidden_states/figure_6", "positional_hidden_states/figure_9"),
)
#: Tables and figures of the papers.
NUMBERS: dict[str, dict[str, Iterable[int]]] = {
    "LPES": {"table": [*range(1, 9), 10, 11, *range(13, 18)], "figure": [5]},
    "Ms-PoE": {"table": range(1, 5), "figure": range(3, 7)},
    "PHS": {
        "table": [1, 2, 3, 4, 6],
        "figure": [1, 2, 3, *range(5, 13)],
    },
    "SIW": {"table": range(1, 5), "figure": range(2, 8)},
    "PINE": {"table": [1, 2, 3, *range(5, 16)], "figure": [4, 5]},
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


@pytest.mark.thorough
@pytest.mark.parametrize("paper", NUMBERS)
def test_every_table_and_figure_of_a_paper_has_a_row(paper: str) -> None:
    numbers: dict[str, set[int]] = {"table": set(), "figure": set()}
    rows, absent = overview.items(paper)
    for row in (*(row[0] for row in rows), *absent):
        for kind, first, link, last in re.findall(
            r"\b(table|figure)s? (\d+)(?: (to|and) (\d+))?", row.replace(", 7 and", " to")
        ):
            stop = int(last or first)
            both = {int(first), stop}
            numbers[kind] |= set(range(int(first), stop + 1)) if link == "to" else both
    for kind, wanted in NUMBERS[paper].items():
        assert set(wanted) <= numbers[kind], kind


@pytest.mark.thorough
def test_a_file_is_called_by_its_number_and_says_what_a_run_here_takes() -> None:
    for path, config in overview.configurations().items():
        number = re.search(r"/(table|figure)s?_(\d+)", path)
        assert config.title.partition(", ")[0] in overview.PAPERS
        assert number is None or re.search(rf"\b{number[1]}s? {number[2]}\b", config.title), path
    takes = {path: overview.runs_here(c) for path, c in overview.configurations().items()}
    assert takes["positional_hidden_states/figure_1.yaml"] == "yes"
    assert takes["ms_poe/table_4.yaml"] == "`--shipped`"
    assert takes["pine/table_1.yaml"] == "needs data"
    assert takes["lpes/table_10.yaml"] == "needs a GPU"


def test_what_files_share_is_used() -> None:
    text = "".join((FOLDER / path).read_text(encoding="utf-8") for path in CONFIGS)
    assert all(Path(path).name in text for path in BASES)


@pytest.mark.thorough
def test_every_dataset_of_a_configuration_is_one_that_prepare_fetches(data: Path) -> None:
    for path in CONFIGS:
        config = read_config(FOLDER / path)
        config.check(data)
        for task in config.tasks:
            for name in ("data", "shots"):
                if name in task.options:
                    assert task.options[name] in {source.name for source in prepare.SOURCES}


@pytest.mark.thorough
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=() if any(map(path.count, QUICK)) else pytest.mark.slow)
        for path in CONFIGS
    ],
)
@pytest.mark.one_in(3)
def test_a_configuration_runs_on_the_default_model(path: str, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("rouge_score", reason="needs rouge-score (extra eval)")
    main([str(FOLDER / path), "--data", str(data), "--try-out", "--out", str(tmp_path)])
    tried = read_config(FOLDER / path).tried_out()
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    page = (tmp_path / "results.md").read_text(encoding="utf-8")
    if tried.view is not None:
        assert results["shown"]
        assert list(tmp_path.glob("*.png")) or "| --- |" in page
        return
    assert len(results["cells"]) == sum(1 + len(task.also) for task in tried.tasks)
    for cell in results["cells"]:
        labels = [method["label"] for method in cell["summary"]["methods"]]
        assert labels == ["none", *(method.label for method in tried.methods)]
    assert all(f"| {average} | none |" in page for average in tried.averages)


@pytest.mark.thorough
def test_published_numbers_are_of_models_tasks_and_positions_that_are_there(data: Path) -> None:
    for path, config in overview.configurations().items():
        entries = {entry.name: entry for entry in config.models}
        assert not config.published or {"arXiv", "theirs"} <= set(re.findall(r"\w+", config.source))
        for model, tasks in config.published.items():
            asked = {cell.label: cell for cell in config.asked(data, entries[model])}
            assert set(tasks) <= {*asked, *config.averages}, path
            for label, methods in tasks.items():
                for numbers in filter(lambda found: isinstance(found, list), methods.values()):
                    _, task, measurement = asked[label]
                    assert len(numbers) == len(measurement.gold_positions(task)), path


def test_lpes_needs_fitted_factors(tmp_path: Path) -> None:
    unfitted = {"name": "lpes", "options": {"factors": 1.5}}
    with pytest.raises(ConfigError, match="position interpolation, not LPES"):
        read_config(written(tmp_path, methods=[unfitted])).check(tmp_path)


def test_a_profile_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    config = read_config(FOLDER / "lpes/table_1.yaml")
    with pytest.raises(ConfigError, match="calibrate --method lpes:paper --model lmsys"):
        config.methods_of(config.models[0], tmp_path)


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
    for text, message in (("base: nothing.yaml", r"nothing\.yaml.*No such"), ("a: [", "read")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_config(path)


def test_the_command_writes_tables_and_goes_on_from_its_records(
    model: RagMiddleModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RagMiddleModel, "from_pretrained", lambda *_, **__: model)
    path = written(
        tmp_path,
        models=[{"name": "a/model", "methods": ["ms_poe"]}],
        source="their paper",
        published={"a/model": {"three": {"none": [10, 15], "another method": 12.5}}},
        averages={"mean": ["three"], "mean of means": ["mean"]},
        cost=True,
    )
    out = tmp_path / "out"
    main([str(path), "--limit", "2", "--out", str(out)])
    page = (out / "results.md").read_text(encoding="utf-8")
    assert "published (their paper)" in page
    assert "| 12.5 (10 15) |" in page
    assert "| another method (not run) |" in page
    assert "| mean of means | ms_poe |" in page
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
        ({"tasks": [TASK, TASK]}, "under different names"),
        (
            {"tasks": [{"task": "own_questions", "options": {"data": "no.jsonl"}}]},
            r"no\.jsonl.*prepare\.py --data",
        ),
        ({"methods": ["mspoe"]}, "Did you mean 'ms_poe'"),
        ({"averages": {"all": ["four"]}}, "no tasks"),
        ({"methods": [{"fit": "nothing"}]}, "fit must be one of channel"),
    ],
)
def test_a_wrong_configuration_is_refused_before_a_model_is_loaded(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        main([str(written(tmp_path, **changes)), "--out", str(tmp_path / "out")])


def test_another_model_runs_the_same_experiment_with_what_is_not_fitted(tmp_path: Path) -> None:
    own = ["ms_poe", "positional_hidden_states:llama-2-7b-chat", "profile:a.json"]
    fit = {"fit": "initial_token", "text": ":", "label": "colon"}
    pairs = {"task": "json_pairs", "options": {"data": "kv-retrieval-140_keys.jsonl.gz"}}
    questions = "nq-open-10_total_documents_gold_at_0.jsonl.gz"
    asked = {"task": "multi_document_qa", "options": {"data": questions, "ranks": True}}
    path = written(
        tmp_path,
        models=[{"name": "a/model", "methods": own}],
        methods=["pine", fit, {"name": "siw", "options": {"layers": [30]}}],
        tasks=[pairs, asked],
        published={"a/model": {}},
    )
    config = read_config(path)
    assert config.on_models([]) == config
    other = config.on_models(["b/model"]).on_shipped_questions()
    assert [model.name for model in other.models] == ["b/model"]
    assert [getattr(spec, "label", spec) for spec in other.methods] == ["pine", "colon", "ms_poe"]
    assert "same experiment, other model" in other.title
    assert other.published == {}
    first, second = other.tasks
    assert first.options == {"keys": 140}
    assert (second.options["documents"], second.options["ranks"]) == (10, True)
    assert "shipped questions" in second.label
    other.check(tmp_path)
    with pytest.raises(ConfigError, match="needs its data"):
        read_config(FOLDER / "pine/table_1.yaml").on_shipped_questions()


def test_format_and_device_of_a_configuration_reach_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments: dict[str, Any] = {}
    monkeypatch.setattr(
        RagMiddleModel, "from_pretrained", lambda path, **options: arguments.update(options)
    )
    entry = ModelConfig(name="a/model", dtype="float16", quantization_config="4bit")
    load_model(entry, "cpu", "eager")
    chosen = ("dtype", "quantization_config", "device", "attn_implementation")
    assert [arguments[name] for name in chosen] == ["float16", "4bit", "cpu", "eager"]
