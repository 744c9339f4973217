"""A few records of every dataset, invented here, in the format in which it is published.

Tests read them, and ``--try-out`` where there is no data.

Fields, nesting and encodings are those of the hub's dataset cards and the papers' repositories:
LooGLE's questions are a string with a Python literal, answers of C-Eval are letters and those of
MMLU numbers, ZeroSCROLLS has a line for each reference.
"""

from __future__ import annotations

import gzip
import json
import random
import uuid
from itertools import chain
from pathlib import Path
from typing import Any

from rag_middle_reproduce.tasks.judging import SECTIONS

__all__ = ["SAMPLES", "trial_note", "write_samples"]

_TOWNS = ("Arlen", "Bexton", "Corvale", "Dunmere", "Elsford", "Farrow", "Glinton")


def _retrieved(documents: int) -> list[dict[str, Any]]:
    """nelson-liu/lost-in-the-middle: passages as a retriever ranked them, one of them gold."""
    lines = []
    for number in range(3):
        contexts = [
            {
                "id": None if rank == 0 else f"{1000 + rank}",
                "title": f"{_TOWNS[(number + rank) % 7]} {rank}",
                "text": "It lies on the Ister." if rank == 0 else f"It has {rank} mills.",
                "score": None if rank == 0 else f"1.0{rank:02}",
                "hasanswer": rank == 0,
                "isgold": rank == 0,
                "original_retrieval_index": None if rank == 0 else rank,
            }
            for rank in range(documents)
        ]
        lines.append(
            {
                "question": f"on which river is {_TOWNS[number].lower()}",
                "answers": ["Ister", "the Ister"],
                "ctxs": contexts,
                "nq_annotated_gold": {"title": contexts[0]["title"], "short_answers": ["Ister"]},
            }
        )
    return lines


def _pairs(count: int) -> list[dict[str, Any]]:
    """nelson-liu/lost-in-the-middle: pairs of UUIDs, cut here: whole ones take a minute to read."""
    draw = random.Random(count)
    records = [
        [str(uuid.UUID(int=draw.getrandbits(128)))[:8] for _ in range(2)] for _ in range(count)
    ]
    return [
        {"ordered_kv_records": records, "key": records[at][0], "value": records[at][1]}
        for at in (3, 1)
    ]


def _longbench(dataset: str, context: str, question: str, answer: str, **more: Any) -> Any:
    record = {
        "input": question,
        "context": context,
        "answers": [answer],
        "length": len(context.split()),
        "dataset": dataset,
        "language": "en",
        "all_classes": None,
        "_id": f"{dataset}-0",
        **more,
    }
    return [record, {**record, "_id": f"{dataset}-1"}]


_PASSAGES = "Passage 1:\nArlen\nIt lies on the Ister.\n\nPassage 2:\nBexton\nIt has two mills.\n"
_CLASSES = ["Date", "City", "Other location", "Other entity"]
_TEXTS = {
    "narrativeqa": ("A miller lived in Arlen.", "Where did the miller live?", "Arlen"),
    "qasper": ("We train on 300 letters.", "How many letters?", "300"),
    "multifieldqa_en": ("The fair is in May.", "When is the fair?", "in May"),
    "hotpotqa": (_PASSAGES, "Which river is Arlen on?", "the Ister"),
    "2wikimqa": (_PASSAGES, "Which town has two mills?", "Bexton"),
    "musique": (_PASSAGES, "Which river is Arlen on?", "Ister"),
    "gov_report": ("The bridge was repaired in 1931.", "", "A bridge was repaired."),
    "qmsum": ("A: We build. B: Agreed.", "What was agreed?", "They agreed to build."),
    "multi_news": ("Passage 1:\nRain fell.\n", "", "It rained."),
    "trec": ("Question: Where is it?\nType: City\n", "Question: In which town?\nType:", "City"),
    "triviaqa": (
        "Passage:\nArlen has a mill.\nQuestion: ?\nAnswer: Arlen\n",
        "Q\nAnswer:",
        "Arlen",
    ),
    "samsum": ("Dialogue: A: Hi\nSummary: A greets.\n", "Dialogue: B: Bye\nSummary: ", "B leaves."),
    "passage_count": ("Paragraph 1: a\n\nParagraph 2: a\n", "", "1"),
    "passage_retrieval_en": ("Paragraph 1: a\n\nParagraph 2: b\n", "About b.", "Paragraph 2"),
    "lcc": ("def double(x):\n", "", "    return 2 * x"),
    "repobench-p": ("# path: a.py\ndef double(x):\n", "print(", "double(2))"),
}

_TIMELINE = {
    "Q": "Reorder the timeline of below events:\n1. The bridge fell.\n2. The mill was built.\n"
    "3. The town was founded.",
    "A": "3,2,1",
    "type": "时间线",
    "S": ["The town was founded in 1208.", 'The "old" mill dates from 1300.'],
}
_LOOGLE = {
    "input": "The town was founded in 1208. A mill followed in 1300. The bridge fell in 1431.",
    "title": "Arlen",
    "qa_pairs": repr(
        [
            {"Q": "How old is the mill?", "A": "old", "type": "computation", "S": []},
            _TIMELINE,
            {**_TIMELINE, "A": "3,1,2", "type": "timeline_reorder"},
        ]
    ),
    "output": "None",
}


def _mmlu(count: int) -> list[dict[str, Any]]:
    subjects = ("abstract_algebra", "virology")
    return [
        {
            "question": f"Which is {number}?",
            "subject": subject,
            "choices": [str((number + step) % 9) for step in range(4)],
            "answer": number % 4,
        }
        for subject in subjects
        for number in range(count)
    ]


_CEVAL = [
    {
        "id": number,
        "question": f"下列数中等于{number}的是____。",
        **{letter: str(number + step) for step, letter in enumerate("ABCD")},
        "answer": "A",
        "explanation": "",
        "subject": "high_school_physics",
    }
    for number in range(6)
]

_JUDGED = [
    {
        "prompt": "What is 2 + 2?",
        "chosen": "It is 4.",
        "chosen_model": "human",
        "rejected": "It is 5.",
        "rejected_model": "GPT4-PRM",
        "subset": subset,
        "id": number,
    }
    for number, subset in enumerate(chain.from_iterable(SECTIONS.values()))
]


def _written(count: int) -> list[dict[str, Any]]:
    """wzq016/PINE: a prompt in parts, documents among them, with signs for the chat template."""
    documents = [f"Document [1](Title: {_TOWNS[i % 7]}) It has {i} mills.\n" for i in range(count)]
    parts = [
        "[INST]Write a high-quality one-sentence answer for the given question.\n\n",
        documents,
        "\nQuestion: which town has two mills?[/INST]",
        "",
    ]
    return [{"parts": parts, "answers": ["Corvale"]}]


def _zeroscrolls(document: str, query: str, *answers: str) -> list[dict[str, Any]]:
    text = f"You are given a text. Do as asked.\n\nText:\n{document}\n\n{query}"
    start = text.index(document)
    return [
        {
            "id": "z1",
            "pid": f"z1_{number}",
            "input": text,
            "output": answer,
            "document_start_index": start,
            "document_end_index": start + len(document),
            "query_start_index": text.index(query),
            "query_end_index": len(text),
            "truncation_seperator": "... [The rest of the text is omitted]\n\n",
        }
        for number, answer in enumerate(answers)
    ]


def _leval(question: str, answer: str, **more: str) -> list[dict[str, Any]]:
    return [
        {
            "instructions": [question, question],
            "outputs": [answer, answer],
            "input": "The mill of Arlen was built in 1300.",
            "source": "made here",
            "evaluation": "exam",
            **more,
        }
    ]


#: Lines by file name, as `prepare.py` calls the files.
SAMPLES: dict[str, list[dict[str, Any]]] = {
    "nq-open-10_total_documents_gold_at_0.jsonl.gz": _retrieved(10),
    "nq-open-20_total_documents_gold_at_0.jsonl.gz": _retrieved(20),
    "kv-retrieval-75_keys.jsonl.gz": _pairs(75),
    "kv-retrieval-140_keys.jsonl.gz": _pairs(140),
    **{f"longbench/{name}.jsonl": _longbench(name, *text) for name, text in _TEXTS.items()},
    "longbench/trec.jsonl": _longbench("trec", *_TEXTS["trec"], all_classes=_CLASSES),
    "loogle-longdep_qa.jsonl": [_LOOGLE],
    "mmlu-test.jsonl": _mmlu(3),
    "mmlu-dev.jsonl": _mmlu(5),
    "ceval-val.jsonl": _CEVAL[5:],
    "ceval-dev.jsonl": _CEVAL[:5],
    "rewardbench.jsonl": _JUDGED,
    **{
        f"pine-nq-open-{count}_total_documents_gold_at_{gold}.jsonl": _written(count)
        for count, golds in ((10, (0, 4, "4_random", 9)), (20, (0, 4, "4_random", 9, 14, 19)))
        for gold in golds
    },
    "zeroscrolls/gov_report.jsonl": _zeroscrolls("The bridge fell.", "Summary:", "It fell."),
    "zeroscrolls/summ_screen_fd.jsonl": _zeroscrolls("A: Hi", "Summary:", "A greets."),
    "zeroscrolls/qmsum.jsonl": _zeroscrolls(
        "A: We build.", "Query: What?\n\nAnswer:", "They agreed to build."
    ),
    "zeroscrolls/squality.jsonl": _zeroscrolls(
        "A tale.", "Question: ?\n\nAnswer:", "He left town.", "B."
    ),
    "zeroscrolls/qasper.jsonl": _zeroscrolls("300 letters.", "Question: ?\n\nAnswer:", "300", "3"),
    "zeroscrolls/narrative_qa.jsonl": _zeroscrolls("A tale.", "Question: ?\n\nAnswer:", "a tale"),
    "zeroscrolls/quality.jsonl": _zeroscrolls("A tale.", "(A) x (B) y\n\nAnswer:", "(B) y"),
    "zeroscrolls/musique.jsonl": _zeroscrolls("Ister.", "Question: ?\n\nAnswer:", "Ister"),
    "zeroscrolls/space_digest.jsonl": _zeroscrolls(
        "Good. Bad.", "Percentage of positive reviews:", "50%"
    ),
    "zeroscrolls/book_sum_sort.jsonl": _zeroscrolls("1. b 2. a 3. c", "Order:", "2, 1, 3"),
    "l_eval/coursera.jsonl": _leval("Question 1. Which?\nA. a\nB. b", "AB"),
    "l_eval/quality.jsonl": _leval("Why?\n\n (A) a \n (B) b", "(B) b"),
    "l_eval/tpo.jsonl": _leval("when\nA. 1300\nB. 1400", "A"),
    "l_eval/gsm100.jsonl": _leval("Question: 9 + 9?\nLet's think step by step\n", "18"),
    "l_eval/topic_retrieval_longchat.jsonl": _leval(
        "What is the first topic?", "The mill of Arlen"
    ),
    "l_eval/sci_fi.jsonl": _leval("1.\tIt is old, True or False?", "True [fact: False]"),
}


def write_samples(folder: Path) -> Path:
    """Write all files below `folder`, gzipped where their names say so."""
    for name, lines in SAMPLES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
        # mtime: the same bytes every time, so that records of an earlier run are gone on with.
        path.write_bytes(gzip.compress(text, mtime=0) if name.endswith(".gz") else text)
    return folder


def trial_note(*, invented: bool) -> str:
    """What stands beside the numbers of ``--try-out``; `invented`: of questions from here."""
    questions = "invented samples" if invented else "one question of each task"
    return f"Tried out on the default model, {questions}: the numbers mean nothing."
