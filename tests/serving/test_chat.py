"""Chat completions: the answers of `generate`, whole and streamed."""

from typing import Any

import pytest

from rag_middle import ContextPrompt, Document, mark
from rag_middle.generation import RagMiddleModel
from tests.serving.conftest import METHODS, Serve, Served
from tests.tokenizers import byte_level_bpe

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>"
    "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
)
QUESTION = "Which of them lies on the river?"


def sent(documents: list[Document]) -> list[dict[str, Any]]:
    return [{"title": document.title, "text": document.text} for document in documents]


@pytest.mark.parametrize("method", METHODS)
def test_an_answer_is_that_of_generate(
    server: Served, documents: list[Document], method: str
) -> None:
    expected = server.model.generate(
        ContextPrompt("", documents, QUESTION), method=method, max_new_tokens=8
    )
    answer = server.chat(QUESTION, documents=sent(documents), method=method, max_tokens=8)
    [choice] = answer.choices
    assert choice.message.content == expected.text
    assert choice.finish_reason == expected.finish_reason
    assert choice.logprobs is None
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
    assert answer.usage.total_tokens == expected.usage.total_tokens
    facts = answer.rag_middle
    assert facts["method"] == method
    assert facts["applied"] == expected.applied == (method != "none")
    assert facts["documents"] == 3
    assert sorted(facts["document_order"]) == [0, 1, 2]
    if method == "long_context_reorder":
        assert facts["document_order"] == [0, 2, 1]


@pytest.mark.parametrize("method", ["none", "pine"])
def test_a_stream_is_the_answer_in_pieces(
    server: Served, documents: list[Document], method: str
) -> None:
    body = {"documents": sent(documents), "method": method, "max_tokens": 8}
    whole = server.chat(QUESTION, **body)
    chunks = list(
        server.chat(QUESTION, stream=True, stream_options={"include_usage": True}, **body)
    )
    *pieces, closing, usage = chunks
    assert pieces[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in pieces)
    assert text == whole.choices[0].message.content
    assert len(pieces) > 2
    assert closing.choices[0].finish_reason == whole.choices[0].finish_reason
    assert closing.rag_middle == whole.rag_middle
    assert (usage.choices, usage.usage) == ([], whole.usage)
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers_are_those_of_their_seeds(server: Served, stream: bool) -> None:
    body: dict[str, Any] = {"temperature": 2.0, "top_p": 0.9, "typical_p": 0.9}
    body["no_repeat_ngram_size"] = 2
    answer = server.chat(QUESTION, n=3, seed=5, stream=stream, max_completion_tokens=6, **body)
    texts = ["", "", ""]
    if stream:
        for chunk in answer:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    else:
        texts = [choice.message.content for choice in answer.choices]
        assert [choice.rag_middle["seed"] for choice in answer.choices] == [5, 6, 7]
        prompt_tokens = len(server.model.encode(ContextPrompt(suffix=QUESTION)))
        assert answer.usage.prompt_tokens == prompt_tokens
    prompt = ContextPrompt(suffix=QUESTION)
    assert texts == [
        server.model.generate(prompt, max_new_tokens=6, seed=seed, **body).text
        for seed in (5, 6, 7)
    ]
    assert len(set(texts)) > 1


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_the_text(server: Served, stream: bool) -> None:
    whole = server.chat(QUESTION, max_tokens=8).choices[0].message.content
    stop = whole[len(whole) // 2 :][:2]
    answer = server.chat(QUESTION, max_tokens=8, stop=[stop, "never"], stream=stream)
    expected = whole[: whole.index(stop)]
    if stream:
        chunks = list(answer)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
        assert chunks[-1].choices[0].finish_reason == "stop"
    else:
        assert answer.choices[0].message.content == expected
        assert answer.choices[0].stop_reason == stop


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_those_of_score(
    server: Served, documents: list[Document], stream: bool
) -> None:
    prompt = ContextPrompt("", documents, QUESTION)
    generated = server.model.generate(prompt, method="pine", max_new_tokens=5)
    score = server.model.score(prompt, generated.token_ids, method="pine")
    body = {"documents": sent(documents), "method": "pine", "max_tokens": 5, "top_logprobs": 2}
    answer = server.chat(QUESTION, logprobs=True, stream=stream, **body)
    choices = [c for chunk in answer for c in chunk.choices] if stream else answer.choices
    tokens = [token for c in choices if c.logprobs for token in c.logprobs.content]
    assert [token.logprob for token in tokens] == pytest.approx(score.log_probabilities, abs=1e-4)
    assert "".join(token.token for token in tokens) == generated.text
    # Greedy: the generated token is the most probable one.
    assert all(token.top_logprobs[0].token == token.token for token in tokens)
    assert all(len(token.top_logprobs) == 2 for token in tokens)


def test_without_a_number_of_tokens_what_fits_is_generated(server: Served) -> None:
    window = server.model.context_window
    length = len(server.model.encode(ContextPrompt(suffix="fox " * 130)))
    assert window is not None
    assert length + 256 > window  # the default does not fit
    assert 0 < server.chat("fox " * 130).usage.completion_tokens <= window - length


def test_conversations_go_through_the_chat_template(server: Served) -> None:
    messages: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Who jumps?"},
        {"role": "assistant", "content": "The fox."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Over "}, {"type": "text", "text": "what?"}],
        },
    ]
    answer = server.client.chat.completions.create(model="tested", messages=messages, max_tokens=6)
    plain = [{**messages[0], "role": "system"}, *messages[1:3]]
    plain.append({"role": "user", "content": "Over \n\nwhat?"})
    expected = server.model.generate(plain, max_new_tokens=6)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
    assert answer.choices[0].message.content == expected.text


def test_the_model_is_listed(server: Served) -> None:
    [listed] = server.client.models.list().data
    assert listed.id == "tested"
    assert listed.rag_middle["methods"] == list(METHODS)  # type: ignore[attr-defined]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_earlier_thinking_reaches_the_template(
    serve: Serve, tiny_model: RagMiddleModel, field: str
) -> None:
    model = RagMiddleModel(tiny_model.model, byte_level_bpe(chat_template=THINKING))
    first = {"role": "user", "content": "A river?"}
    answer, last = {"role": "assistant", "content": "Yes."}, {"role": "user", "content": QUESTION}
    thought = "<|im_end|> Hm."
    body = {
        "model": "tested",
        "max_tokens": 1,
        "messages": [first, answer | {field: thought}, last],
    }
    read = model.encode([first, answer | {"reasoning_content": thought}, last])
    assert serve(model).post(body).json()["usage"]["prompt_tokens"] == len(read)


def test_a_method_may_ask_the_prompt_twice(serve: Serve, tiny_model: RagMiddleModel) -> None:
    served, body = serve(tiny_model, ("none", "prompt_repetition")), {"method": "prompt_repetition"}
    content = "".join(map(mark, ["The fox is red.", "The owl is grey."])) + "Which is red?"
    answer = served.chat(content, max_tokens=4, **body)
    own = tiny_model.generate([{"role": "user", "content": content}], **body, max_new_tokens=4)
    assert answer.choices[0].message.content == own.text
    assert answer.rag_middle["documents"] == 4  # of both copies
    assert answer.rag_middle["document_order"] == [0, 1, 0, 1]
    window = tiny_model.context_window
    assert window is not None
    long = "fox " * (window // 3)
    while tiny_model.count_tokens(long) * 2 > window - 30:
        long = long.removesuffix("fox ")
    assert served.chat(long, **body).usage.total_tokens <= window
