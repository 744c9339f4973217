"""Prompt templates for a question and its documents."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from rag_middle.documents import ContextPrompt, Document
from rag_middle.errors import PromptError
from rag_middle.plain_data import parse_json

TEMPLATE_FILE = "prompt_template.json"
"""File beside a model's weights with the prompt template that the model was trained on."""

_FIELD = re.compile(r"\{(\w+)\}")
_FIELDS = {
    "prefix": ("question",),
    "document": ("title", "text"),
    "separator": (),
    "suffix": ("question",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTemplate:
    """Text with fields in braces, from which a prompt is made.

    Values of fields are not searched for fields, and braces around anything but one word stay as
    they are.

    Attributes:
        prefix: text before the documents; may hold ``{question}``.
        document: form of a document with a title, with ``{title}`` and ``{text}``. A document
            without a title is its text alone; a title is not repeated before a text that begins
            with it in this form.
        separator: written after every document.
        suffix: text after the documents; may hold ``{question}``.

    Raises:
        PromptError: the field of the question or of a document's text is missing, or a field is
            unknown.
    """

    prefix: str = ""
    document: str = "{title}\n{text}"
    separator: str = "\n\n"
    suffix: str = "Question: {question}\nAnswer:"

    def __post_init__(self) -> None:
        for part, allowed in _FIELDS.items():
            for name in _FIELD.findall(getattr(self, part)):
                if name not in allowed:
                    expected = ", ".join(f"{{{it}}}" for it in allowed) or "none"
                    raise PromptError(
                        f"{part} of a prompt template has no field {{{name}}}. Fields there: "
                        f"{expected}."
                    )
        if "{question}" not in self.prefix + self.suffix or "{text}" not in self.document:
            raise PromptError(
                "A prompt template needs {question} in its prefix or its suffix, and {text} in its "
                f"document, got {self}."
            )

    def prompt(
        self,
        question: str,
        documents: Iterable[Document],
        history: Iterable[tuple[str, str]] = (),
    ) -> ContextPrompt:
        """The prompt that asks `question` about `documents`, in their order.

        Earlier questions and answers stand before the documents, written as this question is.
        """
        asked = self.suffix if "{question}" in self.suffix else "{question}"
        earlier = "".join(f"{_fill(asked, question=q)} {answer}\n\n" for q, answer in history)
        return ContextPrompt(
            prefix=_fill(self.prefix, question=question) + earlier,
            documents=[self.write(document) for document in documents],
            suffix=_fill(self.suffix, question=question),
            separator=self.separator,
        )

    def write(self, document: Document) -> Document:
        """The document with its title written into its text."""
        title = document.title
        if not title:
            return document
        text = document.text
        lead = self.document.partition("{text}")[0]
        if "{title}" not in lead or not text.startswith(_fill(lead, title=title)):
            text = _fill(self.document, title=title, text=text)
        return replace(document, text=text, title=None)

    @classmethod
    def load(cls, path: str | Path) -> PromptTemplate:
        """A template from a JSON file: an object with any of the attributes.

        Raises:
            PromptError: there is no such file, or it holds something else.
        """
        try:
            return cls(**parse_json(Path(path).read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise PromptError(
                f"The prompt template {str(path)!r} cannot be read ({error}). Pass the path of a "
                f"JSON file, an object with any of {', '.join(_FIELDS)}."
            ) from error

    @classmethod
    def of_model(cls, model: str | Path) -> PromptTemplate:
        """The template in a model's folder (:data:`TEMPLATE_FILE`), else :data:`DEFAULT_TEMPLATE`.

        Raises:
            PromptError: the file holds no template.
        """
        path = Path(os.path.expanduser(model)) / TEMPLATE_FILE
        # A model that comes from no folder has the empty name.
        return cls.load(path) if str(model) and os.path.isfile(path) else DEFAULT_TEMPLATE


def _fill(template: str, **values: str) -> str:
    # In one pass: a document that says {question} keeps its words.
    return _FIELD.sub(lambda field: values.get(field[1], field[0]), template)


DEFAULT_TEMPLATE = PromptTemplate(
    prefix=(
        "Answer the question from the documents below, briefly. Begin the answer with the title, "
        "in parentheses, of the document that it comes from. If the documents do not answer the "
        "question, say that they do not.\n\n"
    )
)
"""For models that follow instructions."""
