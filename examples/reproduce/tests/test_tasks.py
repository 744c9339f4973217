"""Questions, prompts and scores of the papers' tasks, on records in the published formats."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import Any

import pytest
from rag_middle_reproduce.samples import SAMPLES, write_samples
from rag_middle_reproduce.tasks.file_task import BENCHMARKS, FileTask
from rag_middle_reproduce.tasks.judging import SECTIONS, PairwiseJudge
from rag_middle_reproduce.tasks.metrics import classification, order_deviations

from rag_middle import ConfigError, FileFormatError, RagMiddleModel
from rag_middle.evaluation import AS_GIVEN, CLOSED_BOOK, Measurement, make_task, position, run
from tests.evaluation.test_tasks import keeps_the_contract
from tests.reader.questions import write_lines


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("data"))


def options_of(name: str) -> tuple[str, dict[str, Any]]:
    """The task that reads a file, and its options."""
    folder, _, stem = name.removesuffix(".jsonl").rpartition("/")
    if folder:
        return folder, {"dataset": stem}
    if stem.startswith("ceval"):
        return "multiple_choice", {"wording": "ceval"}
    kinds = {
        "loogle": "timeline_order",
        "mmlu": "multiple_choice",
        "pine": "written_qa",
        "rewardbench": "pairwise_judge",
    }
    return kinds[stem.partition("-")[0]], {}


@pytest.mark.parametrize("name", [name for name in SAMPLES if name.endswith(".jsonl")])
def test_every_dataset_is_read_and_its_right_answers_score_best(data: Path, name: str) -> None:
    kind, options = options_of(name)
    if any(metric in name for metric in ("summ", "qmsum", "gov", "squality", "news", "samsum")):
        pytest.importorskip("rouge_score", reason="needs rouge-score (extra eval)")
    task = make_task(kind, {"data": data / name, **options})
    assert isinstance(task, FileTask)
    keeps_the_contract(task)


@pytest.mark.parametrize(
    ("name", "answer", "score"),
    [
        ("longbench/trec", "City\nDate", 1),  # the first line counts
        ("longbench/trec", "City or Date", 0.5),
        ("longbench/triviaqa", "\nArlen\nQuestion", 1),
        ("longbench/passage_count", "1, or 2", 0.5),
        ("longbench/passage_retrieval_en", "Paragraph 2", 1),
        ("longbench/passage_retrieval_en", "none", 0),
        ("longbench/lcc", "# doubled\n    return 2 * x\n", 1),
        ("longbench/lcc", "```python\n    return 2 * y\n", 0.94),
        ("zeroscrolls/quality", "(A) or (B)", 0),
        ("zeroscrolls/space_digest", "About 60 %", 0.5),
        ("zeroscrolls/book_sum_sort", "2, 3, 1", 2 / 3),
        ("zeroscrolls/book_sum_sort", "2, 1", 0),
        ("zeroscrolls/qasper", "3 letters", 2 / 3),
        ("l_eval/coursera", "A", 0.25),
        ("l_eval/coursera", "AC", 0),
        ("l_eval/coursera", "The options are A. and B.", 1),
        ("l_eval/quality", "(B) because of (A)", 1),
        ("l_eval/gsm100", "9 + 9 = 18\n\nQuestion: 7", 1),
        ("l_eval/gsm100", "The answer is 18.", 1),
        ("l_eval/gsm100", "The answer is 19, not 18", 0),
        ("l_eval/topic_retrieval_longchat", "the mill of  Arlen.", 1),
        ("l_eval/sci_fi", "It is False", 0),
    ],
)
def test_scores_are_the_benchmarks(data: Path, name: str, answer: str, score: float) -> None:
    kind, options = options_of(f"{name}.jsonl")
    task = make_task(kind, {"data": data / f"{name}.jsonl", **options})
    [value] = task.scores(task.items(1, 0)[0], AS_GIVEN, answer).values()
    assert value == pytest.approx(score)


# -- LongBench ------------------------------------------------------------------------------------


def test_longbench_prompts_are_the_benchmarks() -> None:
    """All of those of LongBench/config/dataset2prompt.json, commit 2e00731, by their digest."""
    datasets = BENCHMARKS["longbench"].items()
    prompts = "\n".join(f"{name}: {settings['prompt']}" for name, settings in datasets)
    assert hashlib.sha256(prompts.encode()).hexdigest()[:12] == "65ac4bc46250"


def test_a_longbench_prompt_is_the_whole_text(data: Path) -> None:
    options = {"data": data / "longbench/hotpotqa.jsonl", "dataset": "hotpotqa"}
    record = SAMPLES["longbench/hotpotqa.jsonl"][0]
    for passages, count in ((False, 1), (True, 2)):
        task = make_task("longbench", {**options, "passages": passages})
        item = task.items(1, 0)[0]
        prompt = task.prompt(item, AS_GIVEN)
        template = BENCHMARKS["longbench"]["hotpotqa"]["prompt"]
        assert prompt.text == template.format(context=record["context"], input=record["input"])
        assert len(prompt.documents) == count
        assert task.prompt(item, CLOSED_BOOK).documents == ()


def test_a_longbench_dataset_decides_length_and_metric(data: Path) -> None:
    task = make_task("longbench", {"data": data / "longbench/samsum.jsonl", "dataset": "samsum"})
    assert (task.metrics, task.max_new_tokens, task.stop) == (("rouge_l",), 128, ("\n",))
    with pytest.raises(ConfigError, match="one of narrativeqa"):
        make_task("longbench", {"data": data / "longbench/samsum.jsonl", "dataset": "lsht"})
    with pytest.raises(FileFormatError, match="no question for"):
        make_task("longbench", {"data": data / "longbench/samsum.jsonl"}).items(None, 0)


def test_classes_that_are_part_of_the_label_do_not_count() -> None:
    classes = ["location", "Other", "Other location"]
    assert classification("Other location", "Other location", classes) == 1


# -- LooGLE ---------------------------------------------------------------------------------------


def test_timelines_are_found_in_a_literal_of_python(data: Path) -> None:
    task = make_task("timeline_order", {"data": data / "loogle-longdep_qa.jsonl"})
    first, second = task.items(None, 0)
    assert (first.answers, second.answers) == (("3,2,1",), ("3,1,2",))
    text = task.prompt(first, AS_GIVEN).text
    assert text == (
        "Please answer the question based on the long texts below. \n"
        f"{SAMPLES['loogle-longdep_qa.jsonl'][0]['input']}\nQuestion: {first.question}\nAnswer: "
    )


@pytest.mark.parametrize(
    ("answer", "sd"),
    [
        ("3,2,1", 0),
        ("III, II, I", 0),
        ("3. The town was founded in 1208.\n2. The mill.\n1. The bridge.", 0),
        ("3, 1, 2", -1),
        ("1, 3, 2", -2),
        ("3, 2", -2),
        ("I do not know", -2),
    ],
)
def test_orders_are_read_in_arabic_and_roman_numbers(data: Path, answer: str, sd: float) -> None:
    task = make_task("timeline_order", {"data": data / "loogle-longdep_qa.jsonl"})
    assert task.scores(task.items(1, 0)[0], AS_GIVEN, answer)["sd"] == sd


def greedy_swap_distance(places: list[int]) -> int:
    """Swap what gains most per place, until nothing is wrong (LooGLE's rule)."""
    places, distance = list(places), 0
    while places != sorted(places):

        def gain(i: int, j: int) -> float:
            before = abs(places[i] - i) + abs(places[j] - j)
            return (before - abs(places[j] - i) - abs(places[i] - j)) / (j - i)

        i, j = max(itertools.combinations(range(len(places)), 2), key=lambda pair: gain(*pair))
        places[i], places[j] = places[j], places[i]
        distance += j - i
    return distance


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_deviations_are_as_defined_and_the_largest_are_those_of_no_order(n: int) -> None:
    wanted = list(range(1, n + 1))
    largest = dict.fromkeys(("lsd", "lmd", "sd", "sdd"), 0.0)
    for order in itertools.permutations(wanted):
        deviations = order_deviations(order, wanted)
        places = [order.index(thing) for thing in wanted]
        assert -deviations["lsd"] == pytest.approx(
            sum((p - i) ** 2 for i, p in enumerate(places)) / n
        )
        assert -deviations["sdd"] == greedy_swap_distance(places)
        for name, value in deviations.items():
            largest[name] = max(largest[name], -value)
    for name, value in order_deviations([], wanted).items():
        assert -value == pytest.approx(largest[name])


# -- multiple choice ------------------------------------------------------------------------------


def test_shots_are_five_of_the_same_subject_and_a_limit_takes_all_subjects(data: Path) -> None:
    options = {"data": data / "mmlu-test.jsonl", "shots": data / "mmlu-dev.jsonl"}
    task = make_task("multiple_choice", options)
    first, second = task.items(2, 0)
    assert task.items(None, 0)[:2] == [first, second]
    assert first.question.startswith(
        "The following are multiple choice questions (with answers) about abstract algebra.\n\n"
        "Which is 0?\nA. 0\nB. 1\nC. 2\nD. 3\nAnswer: A\n\n"
    )
    assert first.question.endswith("\n\nWhich is 0?\nA. 0\nB. 1\nC. 2\nD. 3\nAnswer:")
    assert first.question.count("Answer:") == second.question.count("Answer:") == 6
    assert "virology" in second.question
    assert "virology" not in first.question
    with pytest.raises(FileFormatError, match="5 examples of 'abstract_algebra'; 6 stand"):
        make_task("multiple_choice", {**options, "num_shots": 6}).items(None, 0)


def test_ceval_is_asked_in_chinese(data: Path) -> None:
    options = {"data": data / "ceval-val.jsonl", "shots": data / "ceval-dev.jsonl"}
    [item] = make_task("multiple_choice", {**options, "wording": "ceval"}).items(None, 0)
    assert item.question.startswith("以下是中国关于high school physics考试的单项选择题")
    assert item.question.endswith("A. 5\nB. 6\nC. 7\nD. 8\n答案：")
    assert item.question.count("答案： A") == 5


# -- RewardBench ----------------------------------------------------------------------------------


def test_an_answer_keeps_its_letter_in_both_orders(tmp_path: Path) -> None:
    line = SAMPLES["rewardbench.jsonl"][0]
    task = make_task("pairwise_judge", {"data": write_lines(tmp_path / "p.jsonl", *[line] * 20)})
    items = task.items(None, 0)
    assert {item.answers[0] for item in items} == {"[[A]]", "[[B]]"}
    for item in items:
        first, second = (task.prompt(item, position(at)).documents for at in (0, 1))
        assert first == second[::-1]
        assert item.gold is not None
        assert (
            f"[The Start of Assistant {item.answers[0][2]}'s Answer]\nIt is 4.\n" in item.gold.text
        )


def test_the_prompt_of_the_judge_is_that_of_pines_code(data: Path) -> None:
    """Instruction: allenai/reward-bench, 0362d99; form: eval/rewardbench_sxs.py, 1c1755d."""
    task = make_task("pairwise_judge", {"data": data / "rewardbench.jsonl"})
    item = next(item for item in task.items(None, 0) if item.answers == ("[[B]]",))
    line = SAMPLES["rewardbench.jsonl"][int(item.id)]
    assert task.system is not None
    assert hashlib.sha256(task.system.encode()).hexdigest()[:12] == "c3fbb6111953"
    assert task.prompt(item, position(1)).text == (
        f"[User Question]\n {line['prompt']} \n"
        f"\n[The Start of Assistant A's Answer]\n{line['rejected']}\n"
        "[The End of Assistant A's Answer]\n"
        f"\n[The Start of Assistant B's Answer]\n{line['chosen']}\n"
        "[The End of Assistant B's Answer]\n"
    )


def test_the_judge_reads_its_instruction_as_a_system_message(
    data: Path, model: RagMiddleModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, seen = PairwiseJudge(data=data / "rewardbench.jsonl"), set()
    complete = RagMiddleModel.as_completed

    def watched(self: RagMiddleModel, prompts: Any, **options: Any) -> Any:
        seen.add(options["system"])
        return complete(self, prompts, **options)

    monkeypatch.setattr(RagMiddleModel, "as_completed", watched)
    run(model, task, [], Measurement(limit=1, max_new_tokens=1))
    assert seen == {task.system}


def test_sections_are_rewardbenchs(data: Path) -> None:
    path = data / "rewardbench.jsonl"
    counts = {
        s: len(make_task("pairwise_judge", {"data": path, "section": s}).items(None, 0))
        for s in SECTIONS
    }
    assert counts == {"chat": 5, "chat_hard": 6, "safety": 5, "math": 1, "code": 6}
    assert (
        len(make_task("pairwise_judge", {"data": path, "subset": "math-prm"}).items(None, 0)) == 1
    )
    with pytest.raises(ConfigError, match="one of chat, chat_hard"):
        make_task("pairwise_judge", {"data": path, "section": "reasoning"})


@pytest.mark.parametrize(
    ("answer", "right"),
    [("[[A]]", 1), ("So: [[B]].", 0), ("Answer A", 0.5), ("[[B]] not [[A]]", 1), ("", 0.5)],
)
def test_verdicts_are_read_as_rewardbench_reads_them(data: Path, answer: str, right: float) -> None:
    task = make_task("pairwise_judge", {"data": data / "rewardbench.jsonl"})
    item = next(item for item in task.items(None, 0) if item.answers == ("[[A]]",))
    assert task.scores(item, position(0), answer) == {"accuracy": right}


# -- ZeroSCROLLS and L-Eval -----------------------------------------------------------------------


def test_zeroscrolls_prompts_are_those_of_the_data(data: Path) -> None:
    path = data / "zeroscrolls/squality.jsonl"
    task = make_task("zeroscrolls", {"data": path, "dataset": "squality"})
    [item] = task.items(None, 0)  # two lines, one for each reference
    assert item.answers == ("He left town.", "B.")
    prompt = task.prompt(item, AS_GIVEN)
    assert prompt.text == SAMPLES["zeroscrolls/squality.jsonl"][0]["input"]
    assert [document.text for document in prompt.documents] == ["A tale."]


def test_answers_that_are_kept_back_are_said_to_be(tmp_path: Path) -> None:
    line = {**SAMPLES["zeroscrolls/quality.jsonl"][0], "output": ""}
    path = write_lines(tmp_path / "test.jsonl", line)
    with pytest.raises(FileFormatError, match="take the split 'validation'"):
        make_task("zeroscrolls", {"data": path, "dataset": "quality"}).items(None, 0)


@pytest.mark.parametrize(
    ("dataset", "digest"),
    [
        ("coursera", "4201769f9f5e"),
        ("quality", "c69304dd4e3b"),
        ("tpo", "c69304dd4e3b"),
        ("gsm100", "676ea94667c6"),
        ("topic_retrieval_longchat", "bd666e7f7b48"),
        ("sci_fi", "b72b3bc8f17e"),
    ],
)
def test_l_eval_prompts_are_the_benchmarks(data: Path, dataset: str, digest: str) -> None:
    """Instructions of LEval_config.py, forms of llama2-chat-test.py; LEval, commit cd34b05."""
    task = make_task("l_eval", {"data": data / f"l_eval/{dataset}.jsonl", "dataset": dataset})
    instruction, rest = task.prompt(task.items(1, 0)[0], AS_GIVEN).text.split("\n\n", 1)
    assert hashlib.sha256(instruction.encode()).hexdigest()[:12] == digest
    line = SAMPLES[f"l_eval/{dataset}.jsonl"][0]
    document, question = line["input"], line["instructions"][0]
    form = f"{document}\n\n{question}"
    if dataset not in ("gsm100", "topic_retrieval_longchat"):
        form = (
            f"Document is as follows. {document} \nQuestion: {question}.  Please directly give the "
            "answer without any additional output or explanation \nAnswer:"
        )
    assert rest == form


# -- what is wrong is said ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("rewardbench.jsonl", {"rejected": None}, "'rejected' should be a str"),
        ("mmlu-test.jsonl", {"answer": 4}, "one of the letters ABCD"),
        ("loogle-longdep_qa.jsonl", {"qa_pairs": "[{'Q': "}, "as Python writes it"),
        ("loogle-longdep_qa.jsonl", {"qa_pairs": "[3]"}, "a list of questions"),
        (
            "loogle-longdep_qa.jsonl",
            {"qa_pairs": [{"Q": "?", "A": "later", "type": "timeline_reorder"}]},
            "an order of events",
        ),
        ("longbench/hotpotqa.jsonl", {"context": 3}, "should be a str"),
        ("l_eval/tpo.jsonl", {"outputs": ["A"]}, "2 instructions and 1 outputs"),
    ],
)
def test_a_wrong_line_is_named(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    kind, options = options_of(name)
    path = write_lines(tmp_path / "data.jsonl", {**SAMPLES[name][0], **changes})
    with pytest.raises(FileFormatError, match=rf"data\.jsonl:1.*{message}"):
        make_task(kind, {"data": path, **options}).items(None, 0)


def test_prompts_that_are_written_out_lose_their_signs_for_the_chat_template(
    data: Path, tmp_path: Path
) -> None:
    path = data / "pine-nq-open-10_total_documents_gold_at_4_random.jsonl"
    task = make_task("written_qa", {"data": path})
    [item] = task.items(None, 0)
    prompt = task.prompt(item, AS_GIVEN)
    [line] = SAMPLES[path.name]
    before, documents, after, _ = line["parts"]
    assert prompt.prefix + "".join(doc.text for doc in prompt.documents) + prompt.suffix == (
        before.removeprefix("[INST]") + "".join(documents) + after.removesuffix("[/INST]")
    )
    assert [doc.text for doc in prompt.documents] == documents
    answer = "On the hills.\nThe town is Corvale."
    assert task.scores(item, AS_GIVEN, answer) == {"best_subspan_em": 1.0}
    broken = write_lines(tmp_path / "broken.jsonl", {"parts": ["a", "b"], "answers": []})
    with pytest.raises(FileFormatError, match="got 2 parts"):
        make_task("written_qa", {"data": broken}).items(None, 0)
