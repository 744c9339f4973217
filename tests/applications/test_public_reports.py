"""Public reports about other packages for local models and retrieval, each tried on this one.

Above each test: where it was reported, and what went wrong there.
"""

import warnings
from typing import Any

import pytest
from haystack import Document as HaystackDocument
from haystack_integrations.components.generators.rag_middle import RagMiddleChatGenerator
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough
from llama_index.llms.rag_middle import RagMiddleLLM

from langchain_rag_middle import ChatRagMiddle, DocumentPrompt, FaissRetriever, format_docs
from rag_middle import PromptError, RagMiddleModel, UnsupportedGenerationError, mark
from rag_middle.generation import MissingDocumentsWarning
from tests.applications.libraries import WordEmbeddings, documents
from tests.applications.world import ANSWER, QUESTION, TEXTS
from tests.reader import reader_path

MARKED = "\n\n".join([*map(mark, TEXTS.values()), f"Question: {QUESTION}\nAnswer:"])


# huggingface/transformers, vllm-project/vllm: an answer that ends in a space was not continued.
@pytest.mark.parametrize("end", [" ", "\n", ""])
def test_an_answer_is_continued_whatever_it_ends_in(reader: RagMiddleModel, end: str) -> None:
    name, price = ANSWER.split(": ")
    messages = [HumanMessage(MARKED), AIMessage(f"{name}:{end}")]
    model = ChatRagMiddle(model=reader, method="pine", max_tokens=16)
    answer = model.invoke(messages, chat_template_kwargs={"continue_final_message": True})
    assert end or str(answer.content).strip() == price  # which it learned to write behind one space
    assert answer.response_metadata["rag_middle"]["documents"] == len(TEXTS)


# vllm-project/vllm, abetlen/llama-cpp-python: template and tokenizer both wrote the first token.
def test_a_prompt_begins_with_one_first_token(reader: RagMiddleModel) -> None:
    tokenizer: Any = reader.tokenizer
    messages = [{"role": "user", "content": QUESTION}]
    written = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    raw = reader.encode(written, template="raw", allow_control_tokens=True)
    assert raw == reader.encode(messages)
    assert raw.input_ids.count(tokenizer.bos_token_id) == 1


# open-webui/open-webui: where no document was relevant enough, the model answered from nothing.
def test_an_answer_from_nothing_is_refused_if_asked(reader: RagMiddleModel) -> None:
    model = ChatRagMiddle(model=reader, method="pine", on_missing_documents="error")
    picky = {"score_threshold": 0.99, "k": 6}
    retriever = FaissRetriever.from_documents(documents(), WordEmbeddings(), search_kwargs=picky)
    prompt = ChatPromptTemplate.from_template("{context}\n\nQuestion: {question}\nAnswer:")
    answering = prompt | model
    chain = {"context": retriever | format_docs, "question": RunnablePassthrough()} | answering
    with (
        pytest.warns(MissingDocumentsWarning, match="retrieval found nothing") as told,
        pytest.raises(PromptError, match="needs documents"),
    ):
        chain.invoke(QUESTION)
    assert [warning.filename for warning in told] == [__file__]  # and no line of a framework


# langchain-ai/langchain: documents that hold JSON or code broke templates by their braces.
@pytest.mark.parametrize("form", ["{a} {page_content}", "{{ a }} {{ page_content }}"])
def test_braces_in_documents_and_metadata_are_text(reader: RagMiddleModel, form: str) -> None:
    text = '{"price": {sum}} {{ page_content }} {% if x %}'
    template = DocumentPrompt(
        template=form, template_format="jinja2" if form.startswith("{{") else "f-string"
    )
    context = format_docs([Document(text, metadata={"a": "{t}"})], document_prompt=template)
    prompt = ChatPromptTemplate.from_template("{context}\n\nWhy?").format(context=context)
    [read] = reader.encode(prompt).documents_ids
    assert str(reader.tokenizer.decode([*read])).strip() == f"{{t}} {text}"


# deepset-ai/haystack: a stop word was cut out, and the model went on; each word made a reply more.
# vllm-project/vllm: streams went on where whole answers stopped.
def test_stop_words_end_the_generation_of_one_reply(reader: RagMiddleModel) -> None:
    options = {"stop": ["dale: $9", "never said"], "max_new_tokens": 30}
    llm = RagMiddleChatGenerator(reader, generation_kwargs=options)
    given = [HaystackDocument(content=text) for text in TEXTS.values()]
    pieces: list[str] = []
    streams: dict[str, Any] = {"streaming_callback": lambda chunk: pieces.append(chunk.content)}
    for more in ({}, streams):
        [reply] = llm.run(f"Question: {QUESTION}\nAnswer:", documents=given, **more)["replies"]
        assert reply.text == ANSWER.partition("dale: $9")[0]
        assert reply.meta["finish_reason"] == "stop"
        assert reply.meta["usage"]["completion_tokens"] <= len(ANSWER)
    assert "".join(pieces) == reply.text


# SynapseKit/SynapseKit: a temperature of 0 counted as none, and the default was taken.
# microsoft/semantic-kernel: options of sampling had no effect, and the model's own config won.
def test_options_of_sampling_count_and_zero_is_one(
    reader: RagMiddleModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader.model.generation_config, "do_sample", True)
    monkeypatch.setattr(reader.model.generation_config, "top_k", 1)
    wild: dict[str, Any] = {"temperature": 50.0, "seed": 3}
    chat = ChatRagMiddle(model=reader, max_tokens=16, **wild)
    llm = RagMiddleLLM(model=reader, max_new_tokens=16, generate_kwargs=wild)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chat.invoke(MARKED).content == llm.complete(MARKED).text != ANSWER
        assert chat.invoke(MARKED, top_k=1).content == ANSWER
        assert chat.invoke(MARKED, temperature=0).content == ANSWER
        assert llm.complete(MARKED, temperature=0.0).text == ANSWER
        assert llm.complete(MARKED, do_sample=False).text == ANSWER


# langchain-ai/langchain: the limit of an answer was 100 tokens, whatever the model was made with.
@pytest.mark.parametrize("way", ["", "pipeline_kwargs", "model_kwargs"])
def test_the_length_that_a_model_is_made_with_holds_everywhere(
    reader: RagMiddleModel, way: str
) -> None:
    limit = {"max_new_tokens": 3}
    model: Any = ChatRagMiddle(model=reader, **({way: limit} if way else limit))
    [streamed] = [chunk for chunk in model.stream(MARKED) if chunk.usage_metadata]
    answers = [model.invoke(MARKED), *model.batch([MARKED] * 2), streamed]
    assert {answer.usage_metadata["output_tokens"] for answer in answers} == {3}


# langchain-ai/langchain: a chat whose last message is no user's was refused.
def test_a_chat_may_end_in_any_message(reader: RagMiddleModel) -> None:
    call = AIMessage("", tool_calls=[{"name": "search", "args": {}, "id": "1"}])
    for messages in (
        [HumanMessage("Hello"), call, ToolMessage("Nothing.", tool_call_id="1")],
        [SystemMessage("Be kind.")],
        [HumanMessage("Hello"), AIMessage("Yes?")],
        [HumanMessage("Hello"), SystemMessage("Be brief.")],
    ):
        assert ChatRagMiddle(model=reader, max_tokens=2).invoke(messages).content


# run-llama/llama_index: names that one class takes were unknown to the next, or broke files.
def test_options_have_the_same_names_everywhere() -> None:
    name = str(reader_path())
    given: Any = {"torch_dtype": "float32", "do_sample": True, "max_tokens": 3, "stop_strings": "x"}
    for more in (given, {"model_kwargs": given}):
        chat: Any = ChatRagMiddle(model=name, **more)
        assert (chat.temperature, chat.stop, chat.max_tokens) == (1.0, "x", 3)
        llm: Any = RagMiddleLLM(model_name=name, **more)
        assert llm.generate_kwargs == {"temperature": 1.0, "stop": "x"}
        assert (llm.max_new_tokens, llm.model_kwargs["dtype"]) == (3, chat.dtype)
    asked = RagMiddleChatGenerator(name, model_kwargs=given).generation_kwargs
    assert asked == {"temperature": 1.0, "max_new_tokens": 3, "stop": "x"}
    unset: Any = {"max_tokens": None, "timeout": None, "stop": None}  # as in many examples
    assert ChatRagMiddle(model=name, **unset).max_tokens == ChatRagMiddle(model=name).max_tokens
    for option, meant in {"max_length": "tokens", "load_in_8bit": "quantization_config"}.items():
        kinds: list[Any] = [ChatRagMiddle, RagMiddleLLM]
        for kind in kinds:
            with pytest.raises(UnsupportedGenerationError, match=f"'{option}' here.*{meant}"):
                kind(model_name=name, **{option: 5})
