"""Marked text in engines whose requests name no method, and what `/v1/models` says."""

from __future__ import annotations

import asyncio
import re
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from openai_harmony import Message
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.exceptions import VLLMValidationError
from vllm.renderers import BaseRenderer, ChatParams, renderer_from_config

from rag_middle.documents import ContextPrompt, mark
from rag_middle.markers import MARKER_KEY_VARIABLE, literal
from rag_middle_vllm import register
from rag_middle_vllm.frontend import hook_harmony, hook_texts
from rag_middle_vllm.options import resolved
from tests.reader import READER_LPES, reader_path

PROMPT = ContextPrompt(documents=["Lyon lies on [[rm:doc]].", "b"], suffix="Where is Lyon?")
#: The same, marked with another key.
FOREIGN = re.sub("doc:[0-9a-f]{24}", "doc:" + "0" * 24, PROMPT.marked)
PLAIN = {"type": "text", "text": PROMPT.text}
PARAMS = ChatParams(chat_template_kwargs={"add_generation_prompt": True})
MARKED = {"type": "text", "text": PROMPT.marked}


@pytest.fixture(scope="module")
def renderer() -> Any:
    register()
    return renderer_from_config(EngineArgs(model=str(reader_path())).create_engine_config())


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def chat_tokens(renderer: Any, messages: list[Any], **options: Any) -> list[int]:
    params = ChatParams(chat_template_kwargs={"add_generation_prompt": True, **options})
    _, (rendered,) = renderer.render_chat([messages], params)
    _, (same,) = asyncio.run(
        renderer.render_chat_async(conversations=[messages], chat_params=params)
    )
    assert rendered["prompt_token_ids"] == same["prompt_token_ids"]
    return rendered["prompt_token_ids"]


def completion_tokens(renderer: Any, prompt: dict[str, Any]) -> list[int]:
    (rendered,) = renderer.render_cmpl(prompts=[prompt])
    (same,) = asyncio.run(renderer.render_cmpl_async([prompt]))
    assert rendered["prompt_token_ids"] == same["prompt_token_ids"]
    return rendered["prompt_token_ids"]


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ([user(PROMPT.marked)], [user(PROMPT.text)]),
        ([user([MARKED])], [user([PLAIN])]),
        ([user([PROMPT.marked])], [user([PROMPT.text])]),
        ([user(literal("[[rm:doc]]?"))], [user("[[rm:doc]]?")]),
        (
            [{"role": "system", "content": PROMPT.marked}, user("?")],
            [{"role": "system", "content": PROMPT.text}, user("?")],
        ),
        # Documents of this key: the others are ordinary text beside them.
        ([user(FOREIGN), user(PROMPT.marked)], [user(FOREIGN), user(PROMPT.text)]),
    ],
)
def test_chats_lose_their_markers(renderer: Any, marked: list[Any], plain: list[Any]) -> None:
    unhooked = BaseRenderer.render_chat.__wrapped__  # type: ignore[attr-defined]
    _, (expected,) = unhooked(renderer, [plain], PARAMS)
    assert chat_tokens(renderer, marked) == expected["prompt_token_ids"]


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ([{"title": "L", "text": mark("a")}], [{"title": "L", "text": "a"}]),
        ([mark("b")], ["b"]),
        (
            [{"text": FOREIGN}, {"text": "[[/rm:doc]]"}],
            [{"text": FOREIGN}, {"text": "[[/rm:doc]]"}],
        ),
        (None, None),
    ],
)
def test_documents_for_the_template_lose_their_markers(marked: Any, plain: Any) -> None:
    handed: list[Any] = []

    class Renderer:
        def render_chat(self, conversations: Any, chat_params: Any) -> None:
            handed.append(chat_params.chat_template_kwargs)

        def render_cmpl(self, prompts: Any) -> None: ...

        render_chat_async, render_cmpl_async = render_chat, render_cmpl

    hook_texts(Renderer)
    params = ChatParams(chat_template_kwargs={"documents": marked, "other": 1})
    Renderer().render_chat([[user("?")]], params)
    Renderer().render_chat(conversations=[[user("?")]], chat_params=params)
    assert handed == [{"documents": plain, "other": 1}] * 2


def test_a_renderer_without_one_of_the_functions_stays_as_it_is() -> None:
    class Renderer:
        def render_chat(self, conversations: Any, chat_params: Any) -> None: ...

    render_chat = Renderer.render_chat
    with pytest.raises(AttributeError, match="render_chat_async"):
        hook_texts(Renderer)
    assert Renderer.render_chat is render_chat


def test_documents_of_another_key_are_refused(renderer: Any) -> None:
    for messages in ([user(FOREIGN)], [user([{"type": "text", "text": FOREIGN}])]):
        with pytest.raises(VLLMValidationError, match=MARKER_KEY_VARIABLE):
            chat_tokens(renderer, messages)
    with pytest.raises(VLLMValidationError, match=MARKER_KEY_VARIABLE):
        completion_tokens(renderer, {"prompt": FOREIGN})
    with pytest.raises(VLLMValidationError, match=MARKER_KEY_VARIABLE):
        chat_tokens(renderer, [user([{**MARKED, "text": FOREIGN, "role": "assistant"}])])
    said = {"role": "assistant", "content": FOREIGN}  # by the model, in an earlier turn
    assert chat_tokens(renderer, [user("?"), said, user("?")])


def test_messages_of_gpt_oss_lose_their_markers() -> None:
    module = ModuleType("online_renderer")
    module.render_for_completion = lambda messages: messages[0].content[0].text  # type: ignore[attr-defined]
    hook_harmony(module)
    hook_harmony(module)
    render: Any = module.render_for_completion
    assert render([Message.from_role_and_content("user", PROMPT.marked)]) == PROMPT.text
    with pytest.raises(VLLMValidationError, match=MARKER_KEY_VARIABLE):
        render([Message.from_role_and_content("user", FOREIGN)])


@pytest.mark.parametrize(
    ("option", "served"),
    [
        (None, None),
        (
            {"method": READER_LPES},
            {"methods": ["profile:lpes"], "default_method": "profile:lpes"},
        ),
        (
            {
                **resolved({"method": READER_LPES}),
                "source": "profile:/somewhere/own.json",
            },
            {"methods": ["profile:own"], "default_method": "profile:own"},
        ),
        ({"documents": {"rotor": {}}}, {"methods": ["none", "rotor"], "default_method": "none"}),
    ],
)
def test_models_say_what_the_engine_was_started_with(option: Any, served: Any) -> None:
    register()
    given = {} if option is None else {"hf_overrides": {"rag_middle": option}}
    config = EngineArgs(model=str(reader_path()), max_model_len=64, **given).create_engine_config()
    engine: Any = SimpleNamespace(
        vllm_config=config, model_config=config.model_config, renderer=None, input_processor=None
    )
    models = OpenAIServingModels(engine, [BaseModelPath("reader", "path")])
    (card,) = asyncio.run(models.show_available_models()).model_dump()["data"]
    assert card["id"] == "reader"
    assert card.get("rag_middle") == served
