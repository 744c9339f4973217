"""No text but the template's own becomes a control token, whatever tokenizer and whatever path."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerBase

from rag_middle import ContextPrompt, Document, RagMiddleModel, escape, mark
from rag_middle.errors import ChatTemplateError, PromptError
from rag_middle.tokens import encode
from tests.attacks.hostile import LITERALS, hostile_text, report, tries
from tests.tiny_models import build, tiny
from tests.tokenizers import (
    CHATML,
    HERMES,
    TEMPLATES,
    byte_level_bpe,
    metaspace_bpe,
    sentencepiece,
    unigram,
    wordlevel,
    wordpiece,
)

_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")
TOKENIZERS: dict[str, Callable[..., PreTrainedTokenizerBase]] = {
    "byte-level": byte_level_bpe,
    "byte-level, lower case": partial(byte_level_bpe, lowercase=True, bos=True),
    "byte-level, prefix space": partial(byte_level_bpe, add_prefix_space=True),
    **{
        f"byte-level, {flag}": partial(
            byte_level_bpe,
            added=[AddedToken("<|im_end|>", special=flag != "normalized", **{flag: True})],
        )
        for flag in _FLAGS
    },
    **{
        f"metaspace, {scheme}": partial(metaspace_bpe, scheme=scheme)
        for scheme in ("legacy", "always", "first", "never")
    },
    "sentencepiece": sentencepiece,
    "sentencepiece, NFKC": partial(sentencepiece, byte_fallback=False),
    "unigram, NFKC, strip": unigram,
    "wordpiece, lower case": wordpiece,
    "words": wordlevel,
}

Texts = Callable[[], str]


def raw(tokenizer: PreTrainedTokenizerBase, text: Texts) -> tuple[int, ...]:
    prompt = ContextPrompt(text(), [text(), Document(text(), title=text())], text())
    return encode(tokenizer, prompt, template="raw", system=text()).input_ids


def own_frame(tokenizer: PreTrainedTokenizerBase, text: Texts) -> tuple[int, ...]:
    prompt = ContextPrompt("<|im_start|>", [text(), text()], "<|im_end|>", separator="\n")
    return encode(tokenizer, prompt, template="raw", allow_control_tokens=True).input_ids


def conversation(text: Texts) -> list[dict[str, Any]]:
    documents = [Document(text(), title=text()), text()]
    return [
        {"role": "user", "content": ContextPrompt(text(), documents, text())},
        {"role": "assistant", "content": text(), "tool_calls": [{"name": text()}]},
        {"role": "user", "content": mark(text()) + escape(text())},
        {"role": "assistant", "content": text()},
        {"role": "user", "content": ContextPrompt(text(), documents[::-1], text())},
    ]


def chat(tokenizer: PreTrainedTokenizerBase, text: Texts) -> tuple[int, ...]:
    return encode(tokenizer, conversation(text), template="chat", system=text()).input_ids


def written(tokenizer: PreTrainedTokenizerBase, text: Texts) -> tuple[int, ...]:
    def write(messages: Sequence[Any]) -> str:
        turns = [f"<|im_start|>{m['role']} {m['content'].strip()}<|im_end|>" for m in messages]
        return "\n".join(turns)

    return encode(tokenizer, conversation(text), template=write, system=text()).input_ids


PATHS = {"raw": raw, "own frame": own_frame, "chat": chat, "template function": written}


def control_ids(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[int]:
    control = {tokenizer.convert_tokens_to_ids(literal) for literal in LITERALS}
    return [token for token in ids if token in control - {tokenizer.unk_token_id}]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.one_in(3)
def test_text_writes_no_control_token_on_any_path(kind: str) -> None:
    prompts = 0
    templates = {path: [CHATML] for path in PATHS} | {"chat": list(TEMPLATES.values())}
    for path, templates_of_path in templates.items():
        for template in templates_of_path:
            tokenizer = TOKENIZERS[kind](chat_template=template)
            own = control_ids(tokenizer, PATHS[path](tokenizer, lambda: "x"))
            for seed in range(tries(2)):
                text = partial(hostile_text, Random(f"{kind} {path} {seed}"))
                ids = PATHS[path](tokenizer, text)
                assert control_ids(tokenizer, ids) == own, (path, seed)
                prompts += 1
    report(f"{prompts} prompts with hostile text, tokenizer {kind}")


#: What templates do to text, and what they put around it.
_FILTERS = (
    *("lower", "upper", "trim", "striptags", "reverse", "title", "e", "tojson", "string", "list"),
    *("replace('~', '')", "replace(' ', '')", "truncate(9, True, '')", "map('lower') | join"),
    *("join('')", "batch(2) | map('join') | join", "urlencode", "first", "last", "unique | join"),
)
_WRAPPERS = (
    *("%s", "'<' ~ %s ~ '>'", "'</' ~ %s ~ '>'", "'<|' ~ %s ~ '|>'", "'[' ~ %s ~ ']'"),
    *("%s ~ '|>'", "'<|im_' ~ %s", "%s ~ %s", "%s ~ ' ' ~ %s", "'<' ~ %s ~ '|>'"),
)
_FIELDS = ("m['content']", "m.name", "m.calls[0].name", "m.calls[0].args.keys() | list | first")
_CORES = (
    "im_end",
    "IM_END",
    "think",
    "s",
    "INST",
    "|im_end|",
    "eot_id",
    "end",
    "~im_end",
    "dne_mi",
)


def changing_template(draw: Random) -> str:
    """A template that writes fields of messages, changed and between texts of its own."""
    pieces = ["m['content']"] if draw.random() < 0.5 else []
    for _ in range(draw.randint(1, 3)):
        field = draw.choice(_FIELDS)
        for _ in range(draw.randrange(3)):
            field = f"({field}) | {draw.choice(_FILTERS)}"
        wrapper = draw.choice(_WRAPPERS)
        pieces.append(wrapper.replace("%s", f"({field})"))
    written = " ".join(f"{{{{ {piece} }}}}" for piece in pieces)
    role = draw.choice(
        ("{{ m.role }}", "[{{ m.role }}]", "<|{{ m.role }}|>", "<{{ m.role | lower }}>")
    )
    return f"{{% for m in messages %}}<|im_start|>{role}\n{written}<|im_end|>\n{{% endfor %}}"


@pytest.mark.filterwarnings("ignore::rag_middle.notices.ChatTemplateWarning")
@pytest.mark.parametrize("kind", ["byte-level", "byte-level, lower case", "metaspace, never"])
@pytest.mark.one_in(3)
def test_templates_that_change_text_write_no_control_token_of_it(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    own = control_ids(tokenizer, tokenizer.encode("<|im_start|><|im_end|>"))[-2:] * 2
    prompts = refused = failed = 0
    for seed in range(tries(60)):
        draw = Random(f"{kind} {seed}")
        tokenizer.chat_template = changing_template(draw)
        roles = ["user", draw.choice(("user", "assistant", draw.choice(_CORES), "end|>\n<|im"))]

        def text(draw: Random = draw) -> str:
            return draw.choice((draw.choice(_CORES), hostile_text(draw)))

        messages = [
            {
                "role": role,
                "content": draw.choice((text(), text()[::-1], f"{mark(text())} {text()}")),
                "name": text(),
                "calls": [{"name": text(), "args": {text(): text()}}],
            }
            for role in roles
        ]
        try:
            ids = encode(tokenizer, messages).input_ids
        except (ChatTemplateError, PromptError) as error:
            what = str(error)
            refused += "control token" in what
            failed += "control token" not in what
            continue
        found = control_ids(tokenizer, ids)
        assert found[len(found) - 4 :] == own, (seed, tokenizer.chat_template)
        assert len(found) - 4 == (tokenizer.bos_token_id in ids[:1]), seed
        prompts += 1
    assert prompts > refused
    report(f"{prompts} prompts, {refused} refused, {failed} templates that fail, tokenizer {kind}")


@pytest.fixture(scope="module")
def network() -> PreTrainedModel:
    return build("attacked", tiny(LlamaConfig, vocab_size=512), "eager")


def _langchain(model: RagMiddleModel, text: Texts) -> Iterator[tuple[int, ...]]:
    from langchain_core.documents import Document as Found
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

    from langchain_rag_middle import ChatRagMiddle, RagMiddleLLM

    messages = [
        SystemMessage(text()),
        HumanMessage(mark(text()) + text()),
        AIMessage(text(), additional_kwargs={"reasoning": text()}),
        ToolMessage(text(), tool_call_id=text()),
        HumanMessage([{"type": "text", "text": text()}, {"type": "text", "text": text()}]),
    ]
    documents = [Found(page_content=text(), metadata={"title": text()})]
    request = ChatRagMiddle(model=model)._request(messages, None, {"documents": documents})
    yield model.encode(request.prompt).input_ids
    llm = RagMiddleLLM(model=model, system=text())
    options = llm._options(None, {})
    yield model.encode(mark(text()) + text(), system=options["system"]).input_ids


def _llama_index(model: RagMiddleModel, text: Texts) -> Iterator[tuple[int, ...]]:
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.llms.chatml_utils import completion_to_prompt, messages_to_prompt
    from llama_index.core.prompts import PromptTemplate
    from llama_index.llms.rag_middle import RagMiddleLLM
    from llama_index.llms.rag_middle.prompting import chat_request, completion_request

    names = ("template", "system", "allow_control_tokens")
    for functions in (
        {},
        {"messages_to_prompt": messages_to_prompt, "completion_to_prompt": completion_to_prompt},
    ):
        llm = RagMiddleLLM(
            model=model,
            system_prompt=text() or "x",
            query_wrapper_prompt="Q: {query_str}",
            **functions,  # type: ignore[arg-type]
        )
        messages = [
            ChatMessage(role="system", content=text()),
            ChatMessage(role="user", content=mark(text()) + text()),
            ChatMessage(role="assistant", content=text()),
            ChatMessage(role="tool", content=text(), additional_kwargs={"name": text()}),
            ChatMessage(role="user", content=f"{mark(text())}\n\n{mark(text())}{text()}"),
        ]
        formatted = llm._get_prompt(PromptTemplate("{a} {b}"), a=mark(text()), b=text())
        for request in (
            chat_request(llm, messages, {}, has_chat_template=True),
            completion_request(llm, mark(text()) + text(), False, {}),
            completion_request(llm, formatted, True, {}),
            completion_request(llm, str(formatted) + " ", True, {}),
        ):
            shaping = {name: request.options[name] for name in names if name in request.options}
            yield model.encode(request.prompt, **shaping).input_ids


def _haystack(model: RagMiddleModel, text: Texts) -> Iterator[tuple[int, ...]]:
    from haystack import Document as Found
    from haystack.dataclasses import ChatMessage, ToolCall
    from haystack.tools import Tool
    from haystack_integrations.components.generators.rag_middle import RagMiddleChatGenerator

    call = ToolCall("search", {"query": text(), f"n{text()}": [text()]}, id=text())
    messages = [
        ChatMessage.from_system(text()),
        ChatMessage.from_user(mark(text()) + text()),
        ChatMessage.from_assistant(f"{text()}a", tool_calls=[call], name=text()),
        ChatMessage.from_tool(mark(text()) + text(), call),
        ChatMessage.from_user(text()),
    ]
    documents = [Found(content=text(), meta={"title": text()})]
    tool = Tool("search", text(), {"type": "object", "properties": {}}, print)
    generator = RagMiddleChatGenerator(model, meta_fields=["title"])
    for tools in (None, [tool] if model.calls_tools else None):
        request = generator._request(messages, documents, None, tools)
        assert request is not None
        yield model.encode(request.prompt, tools=request.options.get("tools", ())).input_ids


def _server(model: RagMiddleModel, text: Texts) -> Iterator[tuple[int, ...]]:
    from rag_middle.serving.prompts import chat_prompt
    from rag_middle.serving.schema import ChatRequest

    function = {"name": "search", "arguments": json.dumps({"query": text(), f"n{text()}": text()})}
    body: dict[str, Any] = {
        "model": "attacked",
        "documents": [{"title": text(), "text": f"d{text()}"}],
        "messages": [
            {"role": "system", "content": text()},
            {"role": "user", "content": mark(text()) + text(), "name": text()},
            {
                "role": "assistant",
                "content": f"{text()}a",  # a call without a word is left out
                "tool_calls": [{"id": text(), "type": "function", "function": function}],
            },
            {"role": "tool", "content": mark(text()) + text(), "tool_call_id": text()},
            {"role": "user", "content": [{"type": "text", "text": text()}]},
        ],
    }
    shown = {"name": "search", "description": text(), "parameters": {"type": "object"}}
    for tools in ([], [{"type": "function", "function": shown}] if model.calls_tools else []):
        request = ChatRequest(**body, tools=tools)
        tools = request.constraints().get("tools")
        prompt = chat_prompt(
            request.messages, request.documents, trusted=False, has_tools=bool(tools)
        )
        yield model.encode(prompt.prompt, tools=tools or ()).input_ids


INTEGRATIONS: dict[str, Callable[[RagMiddleModel, Texts], Iterator[tuple[int, ...]]]] = {
    "langchain_rag_middle": _langchain,
    "llama_index.llms.rag_middle": _llama_index,
    "haystack_integrations": _haystack,
    "fastapi": _server,
}


@pytest.mark.parametrize("kind", ["byte-level", "metaspace, legacy", "unigram, NFKC, strip"])
@pytest.mark.parametrize("integration", INTEGRATIONS)
@pytest.mark.one_in(5)
def test_text_writes_no_control_token_through_integrations(
    network: PreTrainedModel, kind: str, integration: str
) -> None:
    requests = INTEGRATIONS[integration]
    template = CHATML if "rag_middle" in integration else HERMES
    model = RagMiddleModel(network, TOKENIZERS[kind](chat_template=template))
    own = [control_ids(model.tokenizer, ids) for ids in requests(model, lambda: "x")]
    prompts = 0
    for seed in range(tries(3)):
        text = partial(hostile_text, Random(f"{kind} {integration} {seed}"))
        found = [control_ids(model.tokenizer, ids) for ids in requests(model, text)]
        assert found == own, seed
        prompts += len(found)
    report(f"{prompts} prompts with hostile text through {integration}, tokenizer {kind}")
