"""What is sent to a server, what is made of its replies, and under which methods."""

import socket
import time
from typing import Any

import pytest

from rag_middle.documents import ContextPrompt, Document
from rag_middle.endpoint import EndpointModel, EndpointWarning
from rag_middle.endpoint.model import _api_key
from rag_middle.errors import ConfigError, EndpointError, PromptError, UnsupportedGenerationError
from rag_middle.methods import METHODS, LongContextReorder
from rag_middle.notices import MissingDocumentsWarning
from tests.endpoint.server import Reply, Request, Said, answer, events, saying, serving

pytestmark = pytest.mark.thorough

KEY = "sk-secret-0123456789abcdef"
DOCUMENTS = [
    Document("first", id="a", metadata={"score": 0.1}),
    Document("second", id="b", metadata={"score": 0.9}),
    Document("third", id="c", metadata={"score": 0.5}),
]
PROMPT = ContextPrompt("Read.\n\n", DOCUMENTS, "Which?")


def _scripted(*replies: Said) -> Reply:
    """The replies one after the other, the last one again and again."""
    waiting = list(replies)
    return lambda request: waiting.pop(0) if len(waiting) > 1 else waiting[0]


def _failed(status: int, message: str, **more: Any) -> Said:
    return Said({"error": {"message": message, **more}}, status)


# -- replies --------------------------------------------------------------------------------------


def test_failures_that_may_pass_are_tried_again() -> None:
    cut = Said(b'{"choices"', headers={"Content-Length": "5000", "Connection": "close"})
    with serving(_scripted(_failed(503, "busy"), cut, Said(answer("there")))) as server:
        assert EndpointModel(server.url).generate(PROMPT).text == "there"
        assert len(server.asked) == 3


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (_failed(400, "maximum context length is 512"), "context length is 512"),
        (
            _failed(404, "no such model"),
            r"404: no such model\. It has .*: tiny\. ",
        ),
        (_failed(500, "out of memory"), "500: out of memory.*goes on"),
        (Said(b"<html>Login</html>"), r"Check the address"),
    ],
)
def test_replies_without_an_answer_are_told(said: Said, told: str) -> None:
    with serving(_scripted(said)) as server, pytest.raises(EndpointError, match=told):
        EndpointModel(server.url, retries=0).generate(PROMPT)


def test_a_wrong_address_is_told_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(EndpointError, match=r"Connection.*--endpoint"):
        EndpointModel(url, retries=50)


def test_a_server_that_does_not_answer_in_time() -> None:
    def late(request: Request) -> Said:
        time.sleep(1)
        return Said(answer("late"))

    with serving(late) as server:
        model = EndpointModel(server.url, timeout=0.2, retries=1)
        with pytest.raises(EndpointError, match=r"timed out.*timeout"):
            model.generate(PROMPT)


REFUSED = {"content": None, "refusal": "no"}
FILTERED = _failed(400, "The prompt was filtered", code="content_filter")


@pytest.mark.parametrize(
    ("said", "text", "reason"),
    [
        (Said(answer("The Loi", finish_reason="content_filter")), "The Loi", "content_filter"),
        (Said(answer("", message=REFUSED)), "", "content_filter"),
        (FILTERED, "", "content_filter"),
        (Said(answer("", message={"content": None})), "", "stop"),
        (Said(answer("Loire", finish_reason="length")), "Loire", "length"),
        (Said({**answer("Loire"), "usage": None}), "Loire", "stop"),
    ],
    ids=str,
)
def test_ends_of_answers(said: Said, text: str, reason: str) -> None:
    with serving(_scripted(said)) as server:
        generation = EndpointModel(server.url).generate(PROMPT)
    assert (generation.text, generation.finish_reason) == (text, reason)


# -- streams --------------------------------------------------------------------------------------


def test_a_streamed_answer_comes_in_pieces() -> None:
    with serving(_scripted(_failed(503, "busy"), events("The ", "Loire", " é"))) as server:
        stream = EndpointModel(server.url).stream(PROMPT, max_new_tokens=9)
        assert list(stream) == ["The ", "Loire", " é"]
        assert stream.result.text == "The Loire é"
        assert stream.result.usage.completion_tokens == 3
        assert server.asked[0].body["stream"] is True


@pytest.mark.parametrize(
    ("cut", "told"),
    [
        (events("The ", finish=None), "no end of an answer, which is 'The '"),
        (events("The ", finish=None, last={"error": {"message": "engine died"}}), "engine died"),
    ],
)
def test_a_stream_that_is_cut_in_the_middle_is_no_answer(cut: Said, told: str) -> None:
    with serving(_scripted(cut)) as server:
        stream = EndpointModel(server.url).stream(PROMPT)
        assert next(stream) == "The "
        with pytest.raises(EndpointError, match=told):
            next(stream)


def test_a_stream_that_is_closed_ends() -> None:
    with serving(_scripted(events(*"abcdef"))) as server:
        stream = EndpointModel(server.url).stream(PROMPT)
        next(stream)
        stream.close()
        assert stream.result.finish_reason in ("cancelled", "stop")


@pytest.mark.parametrize(
    "said",
    [
        events("The ", finish="content_filter"),
        events("The ", finish=None, last={"error": {"message": "no", "code": "content_filter"}}),
    ],
)
def test_streams_that_a_filter_ended_are_told(said: Said) -> None:
    with serving(_scripted(said)) as server:
        stream = EndpointModel(server.url).stream(PROMPT)
        assert "".join(stream) == "The "
    assert stream.result.finish_reason == "content_filter"


# -- address and key ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["localhost:8000", "http://u:hunter2@host/v1", "https://h/?k=hunter2"]
)
def test_what_is_no_address_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        EndpointModel(url)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(("variable", "sent"), [("OTHER_KEY", KEY), ("", "none"), (None, "usual")])
def test_the_key_is_in_the_header_and_in_no_message(
    variable: str | None, sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "usual")
    monkeypatch.setenv("OTHER_KEY", KEY)
    with serving(_scripted(_failed(401, "no"))) as server:
        model = EndpointModel(server.url, api_key_env=variable)
        with pytest.raises(EndpointError) as raised:
            model.generate(PROMPT)
        assert server.asked[0].headers["Authorization"] == f"Bearer {sent}"
    assert KEY not in f"{raised.value} {raised.value.__cause__} {model.identity()}"
    assert _api_key(None, "https://host/v1") == "usual"
    assert _api_key(None, "http://host/v1") is None  # unencrypted, and not named for it


# -- what is sent ---------------------------------------------------------------------------------


def test_a_prompt_goes_out_as_the_unmodified_model_reads_it() -> None:
    extra = {"temperature": None, "reasoning_effort": "low"}
    with serving(saying("yes")) as server:
        model = EndpointModel(server.url)
        thinking = {"enable_thinking": False}
        model.generate(
            PROMPT, max_new_tokens=5, system="Be brief.", stop=["\n"], template_options=thinking
        )
        EndpointModel(server.url, extra_body=extra).generate(
            PROMPT, temperature=0.5, seed=3, top_p=0.9
        )
    chat, sampled = (request.body for request in server.asked)
    text = "Read.\n\nfirst\n\nsecond\n\nthird\n\nWhich?"
    user = {"role": "user", "content": text}
    assert chat == {
        "model": "tiny",
        "messages": [{"role": "system", "content": "Be brief."}, user],
        "max_tokens": 5,
        "temperature": 0.0,
        "stop": ["\n"],
        "chat_template_kwargs": thinking,
    }
    assert sampled["messages"] == [user]
    assert (sampled["top_p"], sampled["seed"], sampled["reasoning_effort"]) == (0.9, 3, "low")
    assert "temperature" not in sampled


@pytest.mark.parametrize("options", [{"num_beams": 2}, {"template": "raw"}])
def test_options_that_the_interface_does_not_have(options: dict[str, Any]) -> None:
    with (
        serving(saying("yes")) as server,
        pytest.raises(UnsupportedGenerationError, match="no option of the OpenAI interface"),
    ):
        EndpointModel(server.url).generate(PROMPT, **options)


def test_the_model_has_to_be_named_where_there_are_several() -> None:
    with serving(saying("yes")) as server:
        assert EndpointModel(server.url).name == "tiny"
        server.models = Said({"data": [{"id": "small"}, {"id": "large"}]})
        with pytest.raises(ConfigError, match="large, small"):
            EndpointModel(server.url)
        for said in (Said({"error": "no path"}, 404), Said({"data": None}), Said({"data": []})):
            server.models = said  # not every server lists its models
            assert EndpointModel(server.url, "any").generate(PROMPT).text == "yes"
        with pytest.raises(ConfigError, match="does not list them"):
            EndpointModel(server.url)


def test_a_prompt_that_the_server_cuts_is_warned_of() -> None:
    """Ollama cuts prompts to its context length without a word, and counts what is left."""
    prompt = ContextPrompt("Read.\n", ["Tours lies on the Loire. " * 4], "Which?")
    words = len(prompt.text.split())
    for counted in (words - 1, words, 0):  # 0: a server that counts nothing
        said = Said({**answer("Tours"), "usage": {"prompt_tokens": counted}})
        with serving(_scripted(said)) as server:
            if counted == words - 1:
                with pytest.warns(EndpointWarning, match=rf"read {counted} tokens of {words}"):
                    EndpointModel(server.url).generate(prompt)
            else:
                EndpointModel(server.url).generate(prompt)


# -- methods --------------------------------------------------------------------------------------


def test_documents_are_reordered() -> None:
    with serving(saying("yes")) as server:
        generation = EndpointModel(server.url).generate(PROMPT, method="long_context_reorder")
        assert server.asked[0].text == "Read.\n\nsecond\n\nfirst\n\nthird\n\nWhich?"
    assert generation.document_ids == ("b", "a", "c")
    assert generation.method == "long_context_reorder"
    assert generation.applied


def test_every_method_acts_around_a_model_or_says_what_to_do() -> None:
    around = set()
    with serving(saying("yes")) as server:
        model = EndpointModel(server.url)
        for name in METHODS:
            method = METHODS.get(name).example() if name != "compose" else LongContextReorder()
            try:
                model.generate(PROMPT, method=method)
                around.add(name)
            except EndpointError:
                with pytest.raises(EndpointError, match="rag-middle serve"):
                    model.checked_method(method)
    assert around >= {"none", "long_context_reorder"}
    assert not around & {
        "permutation",
        "pine",
        "lpes",
        "attention_sorting",
        "attention_buckets",
        "moice",
    }


def test_prompts_that_cannot_be_arranged_are_told() -> None:
    with serving(saying("yes")) as server:
        model = EndpointModel(server.url, method=LongContextReorder())
        with pytest.warns(MissingDocumentsWarning):
            assert not model.generate("Which?").applied
        with pytest.raises(PromptError, match="a string or a ContextPrompt"):
            model.generate([{"role": "user", "content": "Which?"}])


# -- servers that apply a method ------------------------------------------------------------------


def test_our_server_gets_documents_and_has_to_read_them() -> None:
    served = {"method": "pine", "documents": 3, "applied": True, "document_order": [2, 0, 1]}
    with serving(_scripted(Said({**answer("yes"), "rag_middle": served}))) as server:
        named = {"methods": ["pine"], "default_method": "pine"}
        entry = {"id": "tiny", "owned_by": "rag-middle", "rag_middle": named}
        server.models = Said({"data": [entry]})
        model = EndpointModel(server.url)
        generation = model.generate(PROMPT)
        assert (generation.method, generation.applied) == ("pine", True)
        assert generation.document_ids == ("c", "a", "b")
        assert model.identity()["name"] == "tiny under pine"
        content = server.asked[0].body["messages"][0]["content"]
        assert [part["text"] for part in content] == [
            *("Read.\n\n", "first", "second", "third", "Which?")
        ]
        assert [part.get("id") for part in content] == [None, "a", "b", "c", None]
        server.reply = saying("yes")
        with pytest.raises(EndpointError, match="read all 3 documents"):
            model.generate(PROMPT)


def test_vllm_gets_text_and_its_method_is_shown() -> None:
    with serving(saying("yes")) as server:
        served = {"methods": ["lpes"], "default_method": "lpes"}
        server.models = Said({"data": [{"id": "v", "owned_by": "vllm", "rag_middle": served}]})
        generation = EndpointModel(server.url).generate(PROMPT)
        assert server.asked[0].text == PROMPT.text
    assert (generation.method, generation.applied) == ("lpes", True)
