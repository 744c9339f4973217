"""How a question and its documents are written."""

import json
from pathlib import Path

import pytest

from rag_middle.answering import DEFAULT_TEMPLATE, TEMPLATE_FILE, PromptTemplate
from rag_middle.documents import Document
from rag_middle.errors import PromptError

LYON = Document("Lyon lies on the Rhône.", title="Lyon", id="l", metadata={"score": 0.5})


def test_the_default_writes_titles_on_lines_of_their_own() -> None:
    prompt = DEFAULT_TEMPLATE.prompt("Where?", [LYON, Document("No title.")])
    assert prompt.text.endswith(
        "\n\nLyon\nLyon lies on the Rhône.\n\nNo title.\n\nQuestion: Where?\nAnswer:"
    )
    assert "in parentheses" in prompt.prefix
    [written, _] = prompt.documents
    assert (written.id, written.metadata) == ("l", {"score": 0.5})


def test_parts_are_written_as_asked_for() -> None:
    template = PromptTemplate(
        prefix="{question}\n", document="<{title}>{text}</>", separator="\n", suffix="Again:"
    )
    assert template.prompt("Where?", [LYON]).text == (
        "Where?\n<Lyon>Lyon lies on the Rhône.</>\nAgain:"
    )


def test_a_text_that_begins_with_its_title_is_not_given_it_again() -> None:
    template = PromptTemplate(document="({title}) {text}")
    opening = Document("(Lyon) Lyon lies on the Rhône.", title="Lyon")
    assert template.write(opening).text == template.write(LYON).text == opening.text
    after = PromptTemplate(document="{text} ({title})")
    assert after.write(LYON).text == "Lyon lies on the Rhône. (Lyon)"
    other = Document("(Lyons) is a corner house.", title="Lyon")
    assert template.write(other).text == "(Lyon) (Lyons) is a corner house."


def test_what_is_put_into_a_field_is_not_searched_for_fields() -> None:
    document = Document("It says {question} and {title}.", title="{text}")
    prompt = PromptTemplate().prompt("What is {text}?", [document])
    assert prompt.text == (
        "{text}\nIt says {question} and {title}.\n\nQuestion: What is {text}?\nAnswer:"
    )


def test_earlier_questions_stand_before_the_documents() -> None:
    history = [("Where is {text}?", "On the {title}.")]
    prompt = PromptTemplate(prefix="Read.\n").prompt("And Lyon?", [LYON], history)
    assert prompt.prefix == "Read.\nQuestion: Where is {text}?\nAnswer: On the {title}.\n\n"
    assert prompt.suffix == "Question: And Lyon?\nAnswer:"
    asking_first = PromptTemplate(prefix="{question}\n", suffix="Answer:")
    assert asking_first.prompt("And?", [], history).prefix == (
        "And?\nWhere is {text}? On the {title}.\n\n"
    )


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"suffix": "Answer:"}, r"needs \{question\} in its prefix or its suffix"),
        ({"document": "{title}"}, r"and \{text\} in its document, got PromptTemplate\("),
        ({"prefix": "{documents}"}, r"no field \{documents\}. Fields there: \{question\}"),
    ],
)
def test_a_template_that_loses_something_is_refused(parts: dict[str, str], message: str) -> None:
    with pytest.raises(PromptError, match=message):
        PromptTemplate(**parts)


def test_a_models_own_template_is_read_from_its_folder(tmp_path: Path) -> None:
    assert PromptTemplate.of_model(tmp_path) is DEFAULT_TEMPLATE
    assert PromptTemplate.of_model("somebody/a-model-on-the-hub") is DEFAULT_TEMPLATE
    (tmp_path / TEMPLATE_FILE).write_text('{"document": "({title}) {text}"}')
    assert PromptTemplate.of_model(tmp_path) == PromptTemplate(document="({title}) {text}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read .*Pass the path of a JSON file"),
        ("{", "cannot be read .*Expecting"),
        (json.dumps({"sufix": "{question}"}), "argument 'sufix'"),
    ],
)
def test_files_that_hold_no_template_are_refused(
    tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "template.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(PromptError, match=message):
        PromptTemplate.load(path)
