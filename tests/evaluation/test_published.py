"""Files in the formats of published long-context benchmarks; the content is invented."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rag_middle.errors import (
    EvaluationConfigError,
    EvaluationDataError,
    EvaluationRecordsError,
)
from rag_middle.evaluation import Measurement, run
from rag_middle.evaluation.conditions import AS_GIVEN, CLOSED_BOOK, GOLD_ONLY, position
from rag_middle.evaluation.tasks import Task, data_files, task_for_file
from rag_middle.evaluation.tasks.base import require_gold_documents
from rag_middle.evaluation.tasks.published import PublishedTask
from rag_middle.generation import RagMiddleModel
from tests.evaluation.test_tasks import keeps_the_contract, written

FILES = Path(__file__).parent / "published"
NEEDLES = FILES / "nolima" / "needlesets" / "needle_set.json"

#: By file: task, questions, documents of a prompt whose gold document is moved.
EXPECTED = {
    "ruler_niah_single.jsonl": ("ruler", 2, 20),
    "ruler_niah_essay.jsonl": ("ruler", 2, 20),
    "ruler_niah_multivalue.jsonl": ("ruler", 1, 0),
    "ruler_vt.jsonl": ("ruler", 1, 0),
    "ruler_cwe.jsonl": ("ruler", 1, 0),
    "ruler_fwe.jsonl": ("ruler", 1, 0),
    "ruler_qa.jsonl": ("ruler", 2, 3),
    "helmet_rag.jsonl": ("helmet", 2, 4),
    "helmet_json_kv.jsonl": ("helmet", 2, 12),
    "helmet_niah.jsonl": ("helmet", 2, 20),
    "longbench_v2.json": ("longbench_v2", 2, 0),
    "mrcr_openai.jsonl": ("mrcr", 2, 0),
    "mrcr_v2.csv": ("mrcr", 1, 0),
    "nolima/needlesets/needle_set.json": ("nolima", 10, 26),
}


def entries(name: str) -> list[dict[str, Any]]:
    text = (FILES / name).read_text(encoding="utf-8")
    return json.loads(text) if text[0] == "[" else [json.loads(line) for line in text.splitlines()]


def right(task: Task, answer: str, question: int = 0) -> float:
    item = task.items(None, 0)[question]
    [score] = task.scores(item, AS_GIVEN, answer).values()
    return score


@pytest.mark.parametrize("name", EXPECTED)
def test_published_formats_are_recognised_and_keep_the_contract(name: str) -> None:
    task = task_for_file(FILES / name)
    assert (task.name, task.num_questions, task.num_positions) == EXPECTED[name]
    keeps_the_contract(task)
    assert f"in {Path(name).name}: " in task.description


def test_the_page_names_every_format_with_its_source() -> None:
    page = (Path(__file__).parents[2] / "docs" / "published_benchmarks.md").read_text("utf-8")
    assert "format checked, data not included" in page
    for name in EXPECTED:
        task = task_for_file(FILES / name)
        assert isinstance(task, PublishedTask)
        assert f"| `{task.name}` |" in page
        assert f"`{task.metrics[0]}`" in page
        assert task.source.partition(" ")[0] in page


# -- RULER ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.startswith("ruler")])
def test_prompts_of_ruler_are_the_files(name: str) -> None:
    task = task_for_file(FILES / name, moved=False)
    assert not task.num_positions
    for item, entry in zip(task.items(None, 0), entries(name), strict=True):
        published = entry["input"] + entry["answer_prefix"]
        # Where a context has no lines, one space stands after its last passage too.
        assert task.prompt(item, AS_GIVEN).text.replace(" \n", "\n") == published.replace(
            " \n", "\n"
        )
        assert len(item.documents) in (3, 4, 20)


def test_needles_of_ruler_are_moved_with_their_passages() -> None:
    task = task_for_file(FILES / "ruler_niah_essay.jsonl")
    for item in task.items(None, 0):
        assert item.gold is not None
        assert item.answers[0] in item.gold.text
        assert all(item.answers[0] not in other.text for other in item.others)
        assert task.prompt(item, position(0)).documents[0] is item.gold
        lengths = [len(document.text) for document in item.documents]
        assert max(lengths) < 3 * min(lengths)


def test_documents_of_ruler_have_the_ranks_of_their_positions() -> None:
    task = task_for_file(FILES / "ruler_qa.jsonl")
    item = task.items(None, 0)[0]
    assert item.gold is not None
    assert "Ada Pell" in item.gold.text
    assert item.others[1].text.endswith("leans.\n\nNobody knows why.")
    texts = [document.text for document in task.prompt(item, position(2)).documents]
    assert [text.partition("\n")[0] for text in texts] == [f"Document {n}:" for n in (1, 2, 3)]
    assert texts[2] == f"Document 3:\n{item.gold.text}"
    assert "1 of 3 left out" in task.description


def test_a_context_that_begins_again_and_again_is_read(tmp_path: Path) -> None:
    """In linear time: each beginning of a needle's sentence was searched for its end."""
    entry = entries("ruler_niah_essay.jsonl")[0]
    head, end, rest = entry["input"].partition("afterwards.\n")
    assert end
    entry["input"] = head + end + "special magic a is hidden " * 20_000 + rest
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps(entry), encoding="utf-8")
    [item] = task_for_file(path, moved=False).items(None, 0)
    assert len(item.documents) == 20


def test_ruler_scores_all_answers_or_any() -> None:
    values = entries("ruler_niah_multivalue.jsonl")[0]["outputs"]
    task = task_for_file(FILES / "ruler_niah_multivalue.jsonl")
    assert right(task, f"{values[0]} and {values[2]}") == 0.5
    assert task.max_new_tokens == 128
    assert not task.by_likelihood
    assert right(task_for_file(FILES / "ruler_vt.jsonl"), "none") == 0
    assert right(task_for_file(FILES / "ruler_qa.jsonl"), "it is PELL") == 1


# -- HELMET ---------------------------------------------------------------------------------------


def test_helmet_asks_a_question_once_and_moves_its_passage() -> None:
    task = task_for_file(FILES / "helmet_rag.jsonl")
    assert "3 of 5 left out: not exactly one gold document, or another depth" in task.description
    first, second = task.items(None, 0)
    assert first.gold is not None
    assert first.gold.text == "Document (Title: Sarrowby): Sarrowby lies on the river Ouzel."
    assert second.gold is not None
    assert "pears" in second.gold.text
    assert right(task, "the Ouzel.\nOr another") == 1
    assert right(task, "Another\nOuzel") == 0  # generation of the benchmark ends with the line
    as_given = task_for_file(FILES / "helmet_rag.jsonl", moved=False)
    assert [item.gold_position for item in as_given.items(None, 0)[:4]] == [0, 3, 0, 3]


def test_pairs_of_helmet_are_documents_of_a_json_object() -> None:
    task = task_for_file(FILES / "helmet_json_kv.jsonl", documents=5, asked="Key: {question} is")
    item, entry = task.items(None, 0)[0], entries("helmet_json_kv.jsonl")[0]
    text = task.prompt(item, position(3)).text
    assert text.startswith("JSON data:\n{")
    assert text.endswith(f"Key: {item.question} is")
    pairs = json.loads(text[text.index("{") : text.rindex("}") + 1].replace(",\n }", "}"))
    assert list(pairs).index(entry["question"]) == 3
    assert pairs[entry["question"]] == entry["answer"]
    assert len(pairs) == 5


# -- LongBench v2 ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("**The correct answer is (B)**", 1),
        ("I think The correct answer is B.", 1),
        ("The correct answer is (C), not (B)", 0),
        ("The correct answer is B, or The correct answer is (A)", 0),  # brackets count first
        ("the correct answer is (B)", 0),
        ("B", 0),
    ],
)
def test_longbench_v2_takes_the_letter_of_the_sentence(answer: str, score: float) -> None:
    assert right(task_for_file(FILES / "longbench_v2.json"), answer) == score


def test_contexts_of_longbench_v2_are_cut_into_passages() -> None:
    path = FILES / "longbench_v2.json"
    [entry, _] = entries("longbench_v2.json")
    for count in (None, 7):
        task = task_for_file(path, documents=count)
        item = task.items(1, 0)[0]
        assert len(item.documents) == (count or 20)
        assert entry["context"] in task.prompt(item, AS_GIVEN).text
    assert "(B) teal\n(C) grey\n" in task.prompt(item, CLOSED_BOOK).text
    with pytest.raises(EvaluationDataError, match="too few words for 9999 passages"):
        task_for_file(path, documents=9999)


# -- MRCR -----------------------------------------------------------------------------------------


def test_mrcr_of_both_publishers_keeps_the_conversation() -> None:
    task = task_for_file(FILES / "mrcr_openai.jsonl")
    first, second = task.items(None, 0)
    assert (first.gold_position, second.gold_position) == (2, 3)
    prompt = task.prompt(second, AS_GIVEN)
    messages = json.loads(entries("mrcr_openai.jsonl")[1]["prompt"])
    assert prompt.prefix.startswith(messages[0]["content"])
    assert len(prompt.documents) == 4
    assert prompt.suffix == f"User: {messages[-1]['content']}\n\nAssistant:"
    with (FILES / "mrcr_v2.csv").open(newline="", encoding="utf-8") as file:
        [row] = csv.DictReader(file)
    [item] = (second_version := task_for_file(FILES / "mrcr_v2.csv")).items(None, 0)
    # A reply that quotes "User: " after a blank line stays one.
    assert len(item.documents) == 3
    assert item.gold_position == 2
    assert second_version.prompt(item, AS_GIVEN).text == row["queries"].rstrip()


def test_mrcr_scores_need_the_random_text() -> None:
    openai, deepmind = (task_for_file(FILES / f"mrcr_{n}") for n in ("openai.jsonl", "v2.csv"))
    answers = [task.items(1, 0)[0].answers[0] for task in (openai, deepmind)]
    assert right(openai, answers[0]) == 1
    assert right(openai, f" {answers[0]}") == 1
    assert right(openai, f"Sure: {answers[0]}") == 0  # must begin with it
    assert right(deepmind, f"Zx81LmN0pQrS no. \n{answers[1]}\n") == 1  # the last one counts
    assert right(deepmind, answers[1][12:]) == 0
    assert 0 < right(openai, answers[0][:40]) < 1


def test_an_order_that_says_what_is_right_is_not_changed(model: RagMiddleModel) -> None:
    task = task_for_file(FILES / "mrcr_openai.jsonl")
    with pytest.raises(EvaluationConfigError, match="depend on the order"):
        run(model, task, measurement=Measurement(orders=2))
    with pytest.raises(EvaluationConfigError, match="their order says what is right"):
        require_gold_documents(task)
    with pytest.raises(EvaluationConfigError, match="none can be moved"):
        task_for_file(FILES / "mrcr_openai.jsonl", moved=True)


# -- NoLiMa ---------------------------------------------------------------------------------------


def test_needles_of_nolima_stand_between_passages_of_a_book() -> None:
    task = task_for_file(NEEDLES, words=300, documents=11)
    first, *rest = task.items(None, 0)
    assert first.id == "9001_T1_onehop_rand_book_1"
    assert first.question == "Who has been to Belvane?"
    assert first.gold is not None
    assert first.gold.text == f"Yesterday {first.answers[0]} moved in beside the Clockwork Museum."
    [distractor] = [other for other in first.others if "postcard of Belvane" in other.text]
    text = task.prompt(first, position(5)).text
    book = (FILES / "nolima/haystack/rand_shuffle/rand_book_1.txt").read_text(encoding="utf-8")
    needle, hint = f"{first.gold.text}\n", f"\n{distractor.text.rpartition(chr(10))[2]}"
    assert book.startswith(
        text.split("book.\n\n")[1].split("\n\n")[0].replace(needle, "").replace(hint, "")
    )
    # All tests in one book first, so that a limit leaves out books.
    assert [item.id.rpartition("_")[2] for item in (first, *rest)] == 5 * ["1"] + 5 * ["2"]
    last = rest[-1]
    assert task.prompt(last, GOLD_ONLY).text == (
        "You read carefully.\n\nBook:\nOnly the umbrella stood by the door.\n"
        "Asked: What stood at the entrance?\nReply with one word."
    )
    assert task.scores(last, GOLD_ONLY, "an Umbrella")["answer_contained"] == 1
    assert task.scores(last, GOLD_ONLY, "UMBRELLA")["answer_contained"] == 0


def test_records_know_the_books_of_nolima(tmp_path: Path) -> None:
    shutil.copytree(FILES / "nolima", tmp_path / "nolima")
    path = tmp_path / "nolima" / "needlesets" / "needle_set.json"
    before = task_for_file(path).to_dict()
    (tmp_path / "nolima/haystack/rand_shuffle/rand_book_2.txt").unlink()
    assert task_for_file(path).to_dict() != before
    with pytest.raises(EvaluationDataError, match=r"no book \(\.txt\)"):
        task_for_file(path, haystack=tmp_path)


# -- files ----------------------------------------------------------------------------------------


def test_parquet_rows_are_read_as_lines_are(tmp_path: Path) -> None:
    if not find_spec("pyarrow"):
        pytest.skip("needs pyarrow")
    import pyarrow
    from pyarrow import parquet

    rows = entries("mrcr_openai.jsonl")
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "2needle_0.parquet")
    task = task_for_file(tmp_path / "2needle_0.parquet")
    assert task.items(None, 0) == task_for_file(FILES / "mrcr_openai.jsonl").items(None, 0)
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(EvaluationDataError, match=r"torn\.parquet.*cannot be read as Parquet"):
        task_for_file(tmp_path / "torn.parquet")


def parquet_tables() -> dict[str, Any]:
    """Tables that take a few kilobytes on the disk, and 16 MiB or more in memory."""
    import pyarrow

    def repeated(times: int, value: Any) -> Any:
        values = pyarrow.array([value])
        return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * times), values)

    def one_list(values: Any) -> Any:
        return pyarrow.ListArray.from_arrays(pyarrow.array([0, len(values)]), values)

    text, none = "x" * 2**16, pyarrow.nulls(2**21, pyarrow.int8())
    rows = {
        "a text in many rows": repeated(256, text),
        "a text in a list": one_list(repeated(256, text)),
        "a text in a field of objects": pyarrow.StructArray.from_arrays(
            [repeated(256, text)], names=["a"]
        ),
        "a list of nothing": one_list(none),
    }
    return {name: pyarrow.table({"question": column}) for name, column in rows.items()}


@pytest.mark.parametrize("stored_types", [True, False])
@pytest.mark.parametrize("kind", ["many rows", "list", "field of objects", "nothing"])
def test_parquet_files_that_would_fill_the_memory_are_refused(
    kind: str, stored_types: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not find_spec("pyarrow"):
        pytest.skip("needs pyarrow")
    from pyarrow import parquet

    [table] = [table for name, table in parquet_tables().items() if name.endswith(kind)]
    path = tmp_path / "questions.parquet"
    parquet.write_table(table, path, compression="zstd", store_schema=stored_types)
    assert path.stat().st_size < 2**13
    assert sum(1 for _ in data_files.read_entries(path)) == table.num_rows
    monkeypatch.setattr(data_files, "_MOST_UNPACKED", 2**23)
    with pytest.raises(EvaluationDataError, match="unpacked it has more than 8 MiB"):
        list(data_files.read_entries(path))


def test_parquet_files_are_regular_files_of_text(tmp_path: Path) -> None:
    if not find_spec("pyarrow"):
        pytest.skip("needs pyarrow")
    import pyarrow
    from pyarrow import parquet

    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "questions.parquet")
    with pytest.raises(EvaluationDataError, match="no regular file"):
        task_for_file(tmp_path / "pipe" / "questions.parquet")
    texts = pyarrow.array([b"\xff"]).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"question": texts}), tmp_path / "bytes.parquet")
    with pytest.raises(EvaluationDataError, match=r"cannot be read as Parquet.*can't decode"):
        task_for_file(tmp_path / "bytes.parquet")
    kinds = {"m": pyarrow.array([[("k", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int8()))}
    kinds["c"] = pyarrow.array(["a"]).dictionary_encode()
    kinds["n"] = pyarrow.array([3]).dictionary_encode()
    parquet.write_table(pyarrow.table(kinds), tmp_path / "kinds.parquet")
    [(_, row)] = data_files.read_entries(tmp_path / "kinds.parquet")
    assert row == {"m": [("k", 1)], "c": "a", "n": 3}


def test_torn_lists_and_rows_are_named(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text('[{"question": ')
    (tmp_path / "numbers.json").write_text("[1]")
    (tmp_path / "rows.csv").write_text("queries,answer\nonly one\n")
    (tmp_path / "none.csv").write_text("queries,answer\n")
    for name, message in (
        ("list.json", r"list\.json begins as a JSON list"),
        ("numbers.json", r"numbers\.json: entry 1 should be a JSON object, got int"),
        ("rows.csv", r"rows\.csv: row 1 has not as many fields"),
        ("none.csv", "is empty"),
    ):
        with pytest.raises(EvaluationDataError, match=message):
            task_for_file(tmp_path / name)


def _drop(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda entry: {key: value for key, value in entry.items() if key != name}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("ruler_vt.jsonl", {"input": "Tell me."}, r"2: 'input' has the words of none of RULER"),
        ("ruler_vt.jsonl", {"outputs": []}, r"2: 'outputs': the answers should be"),
        ("ruler_vt.jsonl", {"outputs": "x"}, r"2: 'outputs' should be a list, got str"),
        ("ruler_vt.jsonl", {"answer_prefix": 3}, r"2: 'answer_prefix' should be a str, got int"),
        ("helmet_rag.jsonl", {"ctxs": ["x", 3]}, r"2: 'ctxs': a document should be"),
        ("helmet_rag.jsonl", {"answers": None}, r"2: 'answers' should be a list"),
        ("helmet_json_kv.jsonl", {"question": "x"}, r"2: 'context' should hold the key 'x'"),
        ("helmet_json_kv.jsonl", {"context": "{}"}, r"2: 'context' should hold a JSON object"),
        ("helmet_niah.jsonl", {"query": 3}, r"2: 'query' should be a str"),
        ("helmet_niah.jsonl", {"type_needle_v": 3}, r"2: 'type_needle_v' should be a str"),
        ("longbench_v2.json", {"answer": "AB"}, r"2: 'answer' should be one of the letters"),
        ("longbench_v2.json", {"choice_C": None}, r"2: 'choice_C' should be a str, got NoneType"),
        ("mrcr_openai.jsonl", {"answer": "x"}, r"2: 'answer' should begin with the text"),
        ("mrcr_openai.jsonl", {"prompt": "["}, r"2: 'prompt' should be a JSON list"),
        ("mrcr_openai.jsonl", {"prompt": []}, r"2: 'prompt' should be messages with 'role'"),
        ("mrcr_openai.jsonl", {"answer": "kQ3vLx0TzB?"}, r"2: no reply .* of 'answer'"),
    ],
)
def test_bad_entries_are_named_with_file_line_and_field(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    [entry, *_] = entries(name)
    path = written(tmp_path / "bad.jsonl", entry, {**entry, **change})
    with pytest.raises(EvaluationDataError, match=rf"bad\.jsonl:{message}"):
        task_for_file(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tests": {"T1": {"input_args": "x"}}}, "test 'T1': 'input_args' should be a list"),
        ({"tests": {"T1": {}}}, "test 'T1' has no field 'input_args'"),
        ({"tests": {"T1": 1}}, "test 'T1' should be an object"),
        ({"needle": "No name.", "tests": {"T1": {"input_args": []}}}, "'gold_answers': the ans"),
        ({"character_set": "Ivo"}, "'character_set' should be a list"),
        ({"questions": []}, "'questions' should be a dict"),
        ({"task_template": "{question}"}, "'task_template' should hold"),
    ],
)
def test_bad_needles_are_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    [entry, _] = entries("nolima/needlesets/needle_set.json")
    (tmp_path / "set.json").write_text(json.dumps([{**entry, **change}]))
    books = FILES / "nolima" / "haystack" / "rand_shuffle"
    with pytest.raises(EvaluationDataError, match=rf"set\.json: entry 1: {message}|{message}"):
        task_for_file(tmp_path / "set.json", haystack=books)


def test_what_a_file_cannot_give_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationDataError, match="no question has exactly one document"):
        task_for_file(FILES / "ruler_vt.jsonl", moved=True)
    with pytest.raises(EvaluationDataError, match="a question with 4 documents"):
        task_for_file(FILES / "helmet_rag.jsonl", documents=5)
    with pytest.raises(EvaluationConfigError, match="with the documents that they have"):
        task_for_file(FILES / "helmet_rag.jsonl", documents=3, moved=False)
    with pytest.raises(EvaluationConfigError, match="asked must hold"):
        task_for_file(FILES / "helmet_rag.jsonl", asked="?")
    mixed = [*entries("ruler_vt.jsonl"), *entries("ruler_cwe.jsonl")]
    with pytest.raises(EvaluationDataError, match=r":2: 'input' is of another kind \(common"):
        task_for_file(written(tmp_path / "mixed.jsonl", *mixed))
    reranking = {"qid": "1", "query": "?", "ctxs": [{"id": "1", "text": "a", "label": 1}]}
    with pytest.raises(EvaluationDataError, match="none of HELMET's kinds"):
        task_for_file(written(tmp_path / "rerank.jsonl", reranking))


def test_methods_are_compared_on_questions_without_positions(model: RagMiddleModel) -> None:
    task = task_for_file(FILES / "longbench_v2.json", documents=3)
    results = run(model, task, ["pine"], Measurement(controls=True, max_new_tokens=2))
    summary = results.summary()
    assert [method.label for method in summary.methods] == ["none", "pine"]
    assert summary.questions == 2


def test_prompts_cut_to_another_length_are_another_measurement(
    model: RagMiddleModel, tmp_path: Path
) -> None:
    path, how = tmp_path / "records.jsonl", Measurement(controls=False, max_new_tokens=2)
    task = task_for_file(FILES / "longbench_v2.json")
    shorter = RagMiddleModel(model.model, model.tokenizer, context_window=150)
    first = run(shorter, task, [], replace(how, limit=1), records=path)
    assert {record.prompt_tokens for record in first.records.values()} <= {*range(149)}
    run(shorter, task, [], how, records=path)
    with pytest.raises(EvaluationRecordsError, match="most_prompt_tokens is 148 there and"):
        run(model, task, [], how, records=path)


def test_a_text_that_does_not_fit_is_not_said_to_fit_in_fewer_passages(
    model: RagMiddleModel,
) -> None:
    task = task_for_file(FILES / "ruler_niah_single.jsonl")
    with pytest.raises(EvaluationConfigError, match="larger context window, or shorter documents"):
        run(model, task, measurement=Measurement(max_new_tokens=3000))
