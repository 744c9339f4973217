"""What LangChain's ``dumpd`` writes and ``load`` reads: names and options, no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.load.serializable import (
    Serializable,
    SerializedConstructor,
    SerializedNotImplemented,
)

from langchain_rag_middle.documents import DocumentPrompt
from rag_middle.options import LOADING_OPTIONS, without_secrets

if TYPE_CHECKING:
    from rag_middle.methods import Method


class Described(Serializable):
    """A model that ``dumpd`` describes by the arguments that make it again.

    ::

        description = dumpd(model)
        again = load(
            description,
            allowed_objects=[ChatRagMiddle, RagMiddleLLM, DocumentPrompt],
            valid_namespaces=["langchain_rag_middle"],
        )

    What was made with a loaded model, or with an object that JSON cannot say, is described in words
    only, and ``load`` refuses it.
    """

    if TYPE_CHECKING:  # of RagMiddleSettings
        _method: Method

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return True

    @property
    def lc_secrets(self) -> dict[str, str]:
        """``load(secrets_from_env=True)`` takes the token from here."""
        return {"token": "HF_TOKEN"}

    def to_json(self) -> SerializedConstructor | SerializedNotImplemented:
        """The description; never the token of the hub."""
        description = super().to_json()
        if description["type"] != "constructor":
            return description
        fields = dict(description["kwargs"])
        if fields.get("document_prompt") == DocumentPrompt():
            del fields["document_prompt"]
        for name in LOADING_OPTIONS:
            fields[name] = without_secrets(fields.get(name))
        if not isinstance(fields.get("method"), str | None):
            from rag_middle.methods import method_in_words

            words = method_in_words(self._method)
            if words is None:
                return self.to_json_not_implemented()
            fields["method"], fields["method_options"] = words
        nested = {name: fields.pop(name) for name in ("document_prompt", "token") if name in fields}
        try:
            plain = json.loads(json.dumps(fields, default=_plain))
        except TypeError:  # a loaded model, a tokenizer
            return self.to_json_not_implemented()
        kwargs = {name: value for name, value in {**plain, **nested}.items() if value != {}}
        return {**description, "kwargs": kwargs}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if type(value).__module__ == "torch":  # a dtype, a device
        return str(value).removeprefix("torch.")
    if type(value).__name__.endswith("Config"):  # of quantisation
        return value.to_dict()
    raise TypeError(f"{type(value).__name__} is no JSON")
