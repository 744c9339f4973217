"""What users of HuggingFacePipeline and ChatHuggingFace write, and what older callbacks read."""

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage
from transformers import pipeline

from langchain_rag_middle import ChatRagMiddle, RagMiddleLLM
from rag_middle import UnsupportedGenerationError

CLASSES = [ChatRagMiddle, RagMiddleLLM]


@pytest.mark.parametrize("kind", CLASSES)
class TestConstructors:
    def test_it_takes_what_pipelines_are_made_of(self, kind: Any, saved: Path) -> None:
        options: dict[str, Any] = {
            "model_kwargs": {"torch_dtype": "float32", "token": "t", "cache_dir": "/tmp/none"},
            "pipeline_kwargs": {"max_new_tokens": 3, "do_sample": True, "return_full_text": False},
        }
        model = kind(model_id=str(saved), **options)
        assert (model.dtype, model.max_tokens, model.temperature) == ("float32", 3, 1.0)
        same = kind.from_model_id(str(saved), device=-1, batch_size=2, **options)
        assert (same.dtype, same.max_tokens, same.temperature) == ("float32", 3, 1.0)
        assert (same.device, same.max_batch_size) == ("cpu", 2)
        with pytest.raises(UnsupportedGenerationError, match="only 'text-generation'"):
            kind.from_model_id(str(saved), "summarization")
        assert model.model_options == model.tokenizer_options == {"cache_dir": "/tmp/none"}

    def test_what_a_pipeline_could_not_do_here_is_refused(self, kind: Any) -> None:
        for options, reason in (
            ({"pipeline_kwargs": {"max_length": 5}}, "'max_length' here. Did you mean 'max_tok"),
            ({"load_in_8bit": True}, "Did you mean 'quantization_config'"),
            ({"pipeline_kwargs": {"temperature": 1.0}, "temperature": 0.5}, "pass it once"),
        ):
            with pytest.raises(UnsupportedGenerationError, match=reason):
                kind(model="some/model", **options)

    def test_a_loaded_model_comes_with_its_tokenizer(
        self, kind: Any, tiny: Any, saved: Path
    ) -> None:
        given = {"model": tiny.model, "max_tokens": 2, "context_window": 100}
        by_object = kind(tokenizer=tiny.tokenizer, **given)
        assert by_object.rag_middle_model.model is tiny.model
        assert by_object.rag_middle_model.context_window == 100
        by_name = kind(tokenizer=saved, **given)
        expected = kind(model=tiny, max_tokens=2).invoke("Hello")
        for model in (by_object, by_name):
            answer = model.invoke("Hello")
            assert getattr(answer, "content", answer) == getattr(expected, "content", expected)

    def test_a_pipeline_brings_its_options(self, kind: Any, tiny: Any) -> None:
        parts = {"model": tiny.model, "tokenizer": tiny.tokenizer}
        made = pipeline("text-generation", max_new_tokens=3, do_sample=False, **parts)
        assert kind(model=made).max_tokens == 3
        model = kind(model=made, max_tokens=2, pipeline_kwargs={"repetition_penalty": 2.0})
        assert (model.max_tokens, model.temperature, model.repetition_penalty) == (2, 0.0, 2.0)
        assert model.rag_middle_model.model is tiny.model
        made.task = "summarization"
        with pytest.raises(
            UnsupportedGenerationError, match="only pipelines for 'text-generation'"
        ):
            kind(model=made)


class TestSeveralAnswers:
    def test_they_are_those_of_seeds_that_follow_one_another(self, tiny: Any) -> None:
        options: dict[str, Any] = {"max_tokens": 4, "temperature": 2.0}
        model = ChatRagMiddle(model=tiny, n=3, seed=5, **options)
        alone = [
            ChatRagMiddle(model=tiny, seed=seed, **options).invoke("Hello").content
            for seed in (5, 6, 7)
        ]
        (texts,) = model.generate([[HumanMessage("Hello")]]).generations
        assert [generation.text for generation in texts] == alone
        llm = RagMiddleLLM(model=tiny, **options)
        result = llm.generate(["Hello", "Why?"], num_return_sequences=2, seed=5)
        assert [generation.text for generation in result.generations[0]] == alone[:2]
        assert [len(texts) for texts in result.generations] == [2, 2]

    def test_what_they_cannot_be_is_refused(self, tiny: Any) -> None:
        with pytest.raises(UnsupportedGenerationError, match="set a temperature"):
            ChatRagMiddle(model=tiny, n=2)
        with pytest.raises(UnsupportedGenerationError, match="n must be a whole number"):
            ChatRagMiddle(model=tiny).invoke("Hello", n=0)
        with pytest.raises(UnsupportedGenerationError, match="A stream has one answer"):
            list(ChatRagMiddle(model=tiny).stream("Hello", n=2, temperature=1.0))


class TestOlderCallbacks:
    def test_they_find_usage_model_and_finish_reason(self, tiny: Any) -> None:
        model = ChatRagMiddle(model=tiny, max_tokens=2)
        result = model.generate([[HumanMessage("Hello")]])
        assert result.llm_output is not None
        usage = result.llm_output["token_usage"]
        assert usage["completion_tokens"] == 2
        assert usage["total_tokens"] == usage["prompt_tokens"] + 2
        assert result.llm_output["model_name"] == model.model_name
        [[generation]] = result.generations
        info = generation.generation_info
        assert info == {"model_name": model.model_name, "finish_reason": "length"}


class TestLogProbabilities:
    def test_they_have_the_shape_of_openai(self, tiny: Any) -> None:
        model = ChatRagMiddle(model=tiny, max_tokens=3, logprobs=True, top_logprobs=2)
        answer = model.invoke("Hello")
        content = answer.response_metadata["logprobs"]["content"]
        assert "".join(entry["token"] for entry in content) == answer.content
        assert all(entry["logprob"] == entry["top_logprobs"][0]["logprob"] for entry in content)
        assert {len(entry["top_logprobs"]) for entry in content} == {2}
        merged: Any = AIMessageChunk("")
        for chunk in model.stream("Hello"):
            merged = merged + chunk
        assert merged.response_metadata["logprobs"] == answer.response_metadata["logprobs"]
        llm = RagMiddleLLM(model=tiny, max_tokens=3, logprobs=True)
        [[text]] = llm.generate(["Hello"]).generations
        info = text.generation_info
        assert info is not None
        assert [e["logprob"] for e in info["logprobs"]["content"]] == pytest.approx(
            [e["logprob"] for e in content]
        )
