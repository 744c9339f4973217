"""Methods around a model behind an HTTP address, and those that our own server applies."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rag_middle.answering import Answerer
from rag_middle.conventions.documents import parsed_document
from rag_middle.documents import ContextPrompt, Document, parse
from rag_middle.endpoint import EndpointModel
from rag_middle.errors import ConfigError, EndpointError, PromptError, WeightsNeededError
from rag_middle.generation import RagMiddleModel
from rag_middle.methods import METHODS, LongContextReorder, Method, Permutation
from rag_middle.notices import MissingDocumentsWarning
from rag_middle.serving.prompts import chat_prompt, text_prompt
from rag_middle.serving.schema import ChatMessage
from tests.endpoint.server import Request, Said, answer, events, saying, serving
from tests.retrieval.embedding import HashingEmbedder

DOCUMENTS = [
    Document("first", id="a", metadata={"score": 0.1}),
    Document("second", id="b", metadata={"score": 0.9}),
    Document("third", id="c", metadata={"score": 0.5}),
]
PROMPT = ContextPrompt("Read.\n", DOCUMENTS, "Which?", separator="\n")
#: Which documents that travel by themselves leave as it is.
AS_READ = ContextPrompt("Read.\n\n", DOCUMENTS, "Which?")


def test_reordering_is_that_of_the_model_here(model: RagMiddleModel) -> None:
    local = model.generate(PROMPT, method="long_context_reorder", max_new_tokens=1)
    with serving(saying("yes")) as server:
        remote = EndpointModel(server.url).generate(PROMPT, method="long_context_reorder")
        assert server.asked[0].text == "Read.\nsecond\nfirst\nthird\nWhich?"
    assert remote.document_ids == local.document_ids == ("b", "a", "c")
    assert (remote.method, remote.applied, remote.documents) == ("long_context_reorder", True, 3)


def _first_word(request: Request) -> Said:
    return Said(answer(request.text.splitlines()[1]))


def test_orders_vote_on_whole_answers() -> None:
    """All orders of three documents: each comes first in two of six, so the given one decides."""
    with serving(_first_word) as server:
        model = EndpointModel(server.url, method=Permutation(orders=6))
        generation = model.generate(PROMPT)
        texts = {request.text for request in server.asked}
        assert len(texts) == len(server.asked) == 6
        assert generation.text == "first"
        assert generation.usage.prompt_tokens == 6 * 7_000
        server.reply = lambda request: Said(answer("Third." if "d\nt" in request.text else "x"))
        assert model.generate(PROMPT).text == "x"
        # A vote has no pieces.
        assert "".join(model.stream(PROMPT)) == model.generate(PROMPT).text


@pytest.mark.parametrize(
    ("answers", "chosen"),
    [
        (["Lyon", "Paris", "paris. "], 1),
        (["a", "b"], 0),
        (["b", "a", "c", "a"], 1),
        (["", "", "x"], 0),
    ],
)
def test_a_vote(answers: list[str], chosen: int) -> None:
    assert Permutation().vote(answers) == chosen


def test_parts_of_a_composition_act_one_after_the_other() -> None:
    with serving(_first_word) as server:
        generation = EndpointModel(server.url).generate(
            PROMPT, method="long_context_reorder+permutation"
        )
        assert len(server.asked) == 4
        assert generation.method == "long_context_reorder+permutation"
        with pytest.raises(WeightsNeededError, match="positional_hidden_states"):
            EndpointModel(server.url).checked_method(
                "long_context_reorder+positional_hidden_states:vicuna-7b-v1.5-16k"
            )


def test_every_method_acts_around_a_model_or_says_what_to_do() -> None:
    around, reasons = set(), {}
    with serving(saying("yes")) as server:
        model = EndpointModel(server.url)
        for name in METHODS:
            if name == "compose":
                continue
            method: Method = METHODS.get(name).example()
            try:
                model.generate(PROMPT, method=method)
            except WeightsNeededError as error:
                reasons[name] = str(error)
            else:
                around.add(name)
    assert all(name in text and "rag-middle serve" in text for name, text in reasons.items())
    assert around >= {"none", "long_context_reorder", "permutation"}
    assert not around & {"pine", "lpes", "attention_sorting", "attention_buckets", "moice"}


def test_without_documents_methods_say_so() -> None:
    with serving(saying("yes")) as server:
        model = EndpointModel(server.url, method=LongContextReorder())
        with pytest.warns(MissingDocumentsWarning):
            assert not model.generate("Which?").applied
        with pytest.raises(PromptError):
            model.generate("Which?", on_missing_documents="error")


def test_prompts_of_other_kinds_are_refused(model: RagMiddleModel) -> None:
    with serving(saying("yes")) as server:
        remote = EndpointModel(server.url)
        for prompt in ([{"role": "user", "content": "Which?"}], model.encode("Which?")):
            with pytest.raises(PromptError, match="a string or a ContextPrompt"):
                remote.generate(prompt)


# -- a server that applies methods ----------------------------------------------------------------


def _documents(body: dict[str, Any]) -> list[dict[str, str]]:
    """The documents that a request holds by themselves."""
    content = body["messages"][-1]["content"] if "messages" in body else ""
    blocks = [block for block in content if isinstance(block, dict)]
    documents = [*body.get("documents", ()), *(b for b in blocks if b["type"] == "text-plain")]
    return [{name: d[name] for name in ("id", "title", "text")} for d in documents]


def _ours(request: Request) -> Said:
    """What our own server says besides: which documents it has read, under which method."""
    seen = len(_documents(request.body) or parse(request.text).documents)
    served = {"method": request.body.get("method", "rotor"), "documents": seen, "applied": True}
    return Said({**answer("yes"), "rag_middle": served})


def test_documents_as_a_field_and_the_method_by_name() -> None:
    with serving(_ours) as server:
        model = EndpointModel(server.url, send_documents="field")
        assert model.generate(AS_READ, method="pine").method == "pine"
        assert model.generate(AS_READ).method == "rotor"  # as the server has it
        assert model.generate(AS_READ, method="none").method == "none"
        model.generate(AS_READ, method="long_context_reorder")
        pine, served, base, reordered = (request.body for request in server.asked)
    assert "method" not in served
    first, *_, last = pine["messages"][0]["content"]
    assert (first["text"], last["text"]) == ("Read.\n\n", "Which?")
    assert _documents(pine) == [
        {"id": "a", "title": "", "text": "first"},
        {"id": "b", "title": "", "text": "second"},
        {"id": "c", "title": "", "text": "third"},
    ]
    assert (pine["method"], base["method"], reordered["method"]) == ("pine", "none", "none")
    assert [document["id"] for document in _documents(reordered)] == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("prompt", "template"),
    [
        (AS_READ, "chat"),
        (ContextPrompt("", DOCUMENTS, "Which?"), "chat"),
        (ContextPrompt("", DOCUMENTS, "Which?"), "raw"),
        (ContextPrompt("Read.\n\n", [], "Which?"), "chat"),
    ],
)
def test_our_server_reads_documents_of_a_request_where_the_prompt_has_them(
    prompt: ContextPrompt, template: Any
) -> None:
    assert _read(prompt, template) == prompt.text


def _read(prompt: ContextPrompt, template: Any) -> str:
    """The text that `rag-middle serve` makes of the client's request."""
    with serving(_ours) as server:
        EndpointModel(server.url, send_documents="field").generate(prompt, template=template)
        body = server.asked[-1].body
    documents = [parsed_document(document, "A document") for document in body["documents"]]
    if template == "raw":
        read = text_prompt(body["prompt"], documents, trusted=False).prompt
    else:
        messages = [ChatMessage(**message) for message in body["messages"]]
        [message] = chat_prompt(messages, documents, trusted=False).prompt
        read = message["content"]
    return read.text if isinstance(read, ContextPrompt) else str(read)


def test_what_acts_here_acts_whatever_the_server_says_of_its_own_method() -> None:
    idle = {"method": "none", "documents": 3, "applied": False}
    with serving(lambda _: Said({**answer("yes"), "rag_middle": idle})) as server:
        for model in (
            EndpointModel(server.url, send_documents="field"),
            EndpointModel(server.url, send_documents="text"),
        ):
            for method in ("long_context_reorder", "permutation"):
                assert model.generate(AS_READ, method=method).applied
            assert not model.generate(AS_READ, method="none").applied


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "positional_hidden_states:vicuna-7b-v1.5-16k",
            "positional_hidden_states:vicuna-7b-v1.5-16k",
        ),
        ("none", "none"),
    ],
)
def test_the_method_that_a_server_uses_unasked_is_shown(said: object, shown: str) -> None:
    reply = {**answer("yes"), "rag_middle": {"method": said, "documents": 0, "applied": True}}
    with serving(lambda _: Said(reply)) as server:
        answered = EndpointModel(server.url).generate(AS_READ)
    assert answered.method == shown
    assert answered.applied == (shown != "none")


@pytest.mark.parametrize(
    ("order", "read"),
    [([2, 0, 1], "cab"), (None, "abc")],
)
def test_documents_are_listed_in_the_order_in_which_the_server_read_them(
    order: object, read: str
) -> None:
    served = {"method": "pine", "documents": 3, "applied": True, "document_order": order}
    with serving(lambda _: Said({**answer("yes"), "rag_middle": served})) as server:
        model = EndpointModel(server.url, send_documents="field")
        answered = model.generate(AS_READ, method="pine")
    assert answered.document_ids == tuple(read)


def _listed(*methods: str) -> Said:
    served = {"methods": list(methods), "default_method": methods[0]}
    return Said({"data": [{"id": "tiny", "owned_by": "rag-middle", "rag_middle": served}]})


def test_no_file_is_read_because_a_server_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def noted(path: Any, *args: Any, **options: Any) -> int:
        opened.append(str(path))
        return os_open(path, *args, **options)

    os_open = os.open
    with serving(_ours) as server:
        server.models = _listed("pine", "none", "profile:secret.json", "+siw+profile:secret.json")
        model = EndpointModel(server.url)
        monkeypatch.setattr(os, "open", noted)
        assert model.offered_methods == ("pine",)
    assert not [path for path in opened if path.endswith("secret.json")]


def test_our_server_gets_documents_and_says_what_it_offers() -> None:
    with serving(_ours) as server:
        server.models = _listed("pine", "none", "mine=profile:x")
        model = EndpointModel(server.url)
        assert model.offered_methods == ("pine",)
        assert model.generate(AS_READ, method="pine").method == "pine"
        assert len(_documents(server.asked[-1].body)) == 3
        with pytest.raises(WeightsNeededError, match="--allow-method rotor"):
            model.checked_method("rotor")
        server.models = _listed("pine")
        with pytest.raises(WeightsNeededError, match="--allow-method none"):
            EndpointModel(server.url).checked_method("none")


def test_vllm_gets_text_whatever_its_plugin_says() -> None:
    with serving(saying("yes")) as server:
        served = {
            "methods": ["positional_hidden_states:vicuna-7b-v1.5-16k"],
            "default_method": "positional_hidden_states:vicuna-7b-v1.5-16k",
        }
        server.models = Said({"data": [{"id": "v", "owned_by": "vllm", "rag_middle": served}]})
        model = EndpointModel(server.url)
        assert (
            model.generate(AS_READ, method="none").method
            == "positional_hidden_states:vicuna-7b-v1.5-16k"
        )
        assert "documents" not in server.asked[-1].body
        assert model.identity()["name"] == "v under positional_hidden_states:vicuna-7b-v1.5-16k"


def test_a_model_served_under_a_method_is_called_so() -> None:
    with serving(_ours) as server:
        server.models = _listed("positional_hidden_states:vicuna-7b-v1.5-16k", "none")
        assert EndpointModel(server.url).identity()["name"] == "tiny"  # `none` is asked for
        model = EndpointModel(server.url, send_documents="text")
        assert model.identity()["name"] == "tiny under positional_hidden_states:vicuna-7b-v1.5-16k"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_method_without_effect_on_text_is_no_measurement(streamed: bool) -> None:
    reply = {**answer("yes"), "rag_middle": {"method": "pine", "documents": 0, "applied": False}}
    stream = events("yes")
    stream.content.insert(0, f"data: {json.dumps(reply)}\n\n".encode())
    with serving(lambda _: stream if streamed else Said(reply)) as server:
        model = EndpointModel(server.url, send_documents="text")
        ask = (lambda p, **o: model.stream(p, **o).result) if streamed else model.generate
        with pytest.raises(EndpointError, match="'pine', which had no effect"):
            ask(AS_READ)
        assert "yes" in ask("Which?", on_missing_documents="ignore").text


def test_the_method_of_the_model_list_stands_in_for_replies_without_one() -> None:
    shown = "positional_hidden_states:vicuna-7b-v1.5-16k"
    with serving(saying("yes")) as server:
        server.models = Said({"data": [{"id": "served", "rag_middle": {"default_method": shown}}]})
        model = EndpointModel(server.url)
        assert model.generate(AS_READ).method == shown
        # A reply that names a method knows better.
        server.reply = lambda _: Said({**answer("yes"), "rag_middle": {"method": "none"}})
        assert model.generate(AS_READ).method == "none"


def test_marked_documents_need_a_shared_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(_ours) as server:
        with pytest.raises(ConfigError, match="RAG_MIDDLE_MARKER_KEY"):
            EndpointModel(server.url, send_documents="marked")
        with monkeypatch.context() as patch:
            patch.setenv("RAG_MIDDLE_MARKER_KEY", "k" * 32)
            model = EndpointModel(server.url, send_documents="marked")
            assert model.generate(AS_READ, method="pine").applied
            assert model.generate("Which?", on_missing_documents="ignore").text == "yes"
        assert "documents" not in server.asked[0].body


@pytest.mark.parametrize(
    "served",
    [
        None,
        {},
        {"method": "none", "documents": 3},
        {"method": "pine", "documents": 0},
        {"method": "pine", "documents": None},
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_server_that_has_not_read_the_documents_is_no_measurement(
    served: dict[str, Any] | None, streamed: bool
) -> None:
    reply = {**answer("yes"), "rag_middle": served}
    stream = events("yes")
    stream.content.insert(
        0, f"data: {reply}\n\n".replace("'", '"').replace("None", "null").encode()
    )
    with serving(lambda request: stream if streamed else Said(reply)) as server:
        model = EndpointModel(server.url, send_documents="field")
        ask = (lambda p, **o: model.stream(p, **o).result) if streamed else model.generate
        with pytest.raises(EndpointError, match="3 documents under pine"):
            ask(AS_READ, method="pine")


def test_a_method_with_parameters_of_its_own_has_no_name_to_be_asked_for_by() -> None:
    with serving(_ours) as server:
        model = EndpointModel(server.url, send_documents="field")
        preset = model.checked_method("positional_hidden_states:vicuna-7b-v1.5-16k")
        assert preset.name == "positional_hidden_states"
        with pytest.raises(WeightsNeededError, match="start the server with it"):
            model.checked_method("lpes", {"factors": 1.5})


def test_questions_that_name_no_method_run_under_the_servers(tmp_path: Path) -> None:
    (tmp_path / "nantes.md").write_text("Nantes lies on the Loire.", encoding="utf-8")
    with serving(_ours) as server:
        server.models = _listed("pine", "none")
        answerer = Answerer.over(
            tmp_path, model=EndpointModel(server.url), embedder=HashingEmbedder()
        )
        answerer.ask("Which?")
        assert "method" not in server.asked[-1].body
        answerer.ask("Which?", method="none")
        assert server.asked[-1].body["method"] == "none"
        named = Answerer(answerer.model, answerer.retriever, method="none")
        named.ask("Which?")
        assert server.asked[-1].body["method"] == "none"
