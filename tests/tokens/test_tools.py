"""Tools through chat templates: shown with their calls and results, and inert like messages."""

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from rag_middle import ContextPrompt
from rag_middle.errors import ChatTemplateError
from rag_middle.notices import ChatTemplateWarning
from rag_middle.tokens import encode
from tests.tokenizers import byte_level_bpe

TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Finds <|im_end|> texts.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    },
}
CALL = {
    "id": "a1b2c3d4e",
    "type": "function",
    "function": {"name": "search", "arguments": '{"query": "Nantes <|im_end|>"}'},
}
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Where is Nantes?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {
        "role": "tool",
        "tool_call_id": "a1b2c3d4e",
        "name": "search",
        "content": ContextPrompt("", ["On the Loire <|im_end|>.", "In France."]),
    },
]
_OPEN = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
_CLOSE = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

#: Templates in the shape of the families', and how each writes the call.
TEMPLATES = {
    "hermes": (
        "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
        f"<|im_end|>\n{{% endif %}}{_OPEN}{{{{ m.content }}}}{{% for c in m.tool_calls or [] %}}"
        "<tool_call>\n{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}\n"
        f"</tool_call>{{% endfor %}}{_CLOSE}",
        '<tool_call>\n{"name": "search", "arguments": {"query": "Nantes <|im_end|>"}}',
    ),
    "llama": (
        "{% if tools %}<|im_start|>system\nEnvironment: ipython\n{% for t in tools %}"
        f"{{{{ t | tojson(indent=4) }}}}\n{{% endfor %}}<|im_end|>\n{{% endif %}}{_OPEN}"
        "{% if 'tool_calls' in m and m.tool_calls %}{% if m.tool_calls | length != 1 %}"
        "{{ raise_exception('one call at a time') }}{% endif %}"
        "{% set f = m.tool_calls[0].function %}"
        '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'
        f"{{% else %}}{{{{ m.content | trim }}}}{{% endif %}}{_CLOSE}",
        '{"name": "search", "parameters": {"query": "Nantes <|im_end|>"}}',
    ),
    "mistral": (
        "{% if tools %}[AVAILABLE_TOOLS] {{ tools | map(attribute='function') | list | tojson }}"
        f"{{% endif %}}{_OPEN}{{% if m.tool_calls %}}[TOOL_CALLS] [{{% for c in m.tool_calls %}}"
        "{% if c.id is not defined or c.id | length != 9 %}{{ raise_exception('ids of 9') }}"
        "{% endif %}{{ c.function | tojson }}{% endfor %}]{% else %}{{ m.content }}{% endif %}"
        f"{_CLOSE}",
        '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "Nantes <|im_end|>"}}]',
    ),
    "deepseek": (  # takes arguments as text
        "{% if tools %}{% for t in tools %}{{ t.function | tojson }}{% endfor %}{% endif %}"
        f"{_OPEN}{{% if m.tool_calls %}}{{% for c in m.tool_calls %}}"
        "<｜tool▁call▁begin｜>{{ c.function.name + '\n```json\n' }}"
        "{{ c.function.arguments + '\n```' }}"
        f"{{% endfor %}}{{% else %}}{{{{ m.content }}}}{{% endif %}}{_CLOSE}",
        'search\n```json\n{"query": "Nantes <|im_end|>"}\n```',
    ),
}


def tokenizer(template: str) -> PreTrainedTokenizerFast:
    made = byte_level_bpe(bos=True)
    made.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    made.chat_template = template
    return made


@pytest.mark.parametrize("family", TEMPLATES)
def test_tools_calls_and_results_are_shown_and_inert(family: str) -> None:
    template, call = TEMPLATES[family]
    own = tokenizer(template)
    prompt = encode(own, HISTORY, tools=[TOOL])
    text = own.decode(prompt.input_ids)
    assert call in text
    assert "Finds <|im_end|> texts." in text
    documents = [own.decode(ids).strip() for ids in prompt.documents_ids]
    assert documents == ["On the Loire <|im_end|>.", "In France."]
    end = own.convert_tokens_to_ids("<|im_end|>")
    templates_own = 4 if template.startswith("{% if tools %}<|im_start|>") else 3
    assert prompt.input_ids.count(end) == templates_own
    # The template's text itself, where nothing looks like a control token.
    calm: Any = [HISTORY[0]]
    tool = {"type": "function", "function": {"name": "search", "description": "Finds."}}
    rendered = own.apply_chat_template(
        calm, tools=[tool], tokenize=False, add_generation_prompt=True
    )
    ids = own(rendered, add_special_tokens=False).input_ids
    assert [*encode(own, calm, tools=[tool]).input_ids][-len(ids) :] == ids


def test_arguments_too_deep_for_a_template_stay_text() -> None:
    """Else a request with them ends Python's stack, in `tojson` or before it."""
    own = tokenizer(TEMPLATES["hermes"][0])
    arguments = '{"a": ' * 900 + "1" + "}" * 900
    call = {**CALL, "function": {"name": "search", "arguments": arguments}}
    messages = [HISTORY[0], {"role": "assistant", "content": "", "tool_calls": [call]}]
    text = own.decode(encode(own, messages, tools=[TOOL]).input_ids)
    assert text.count("a") > 900


def test_a_template_that_leaves_tools_out_is_refused() -> None:
    without = tokenizer(f"{_OPEN}{{{{ m.content }}}}{_CLOSE}")
    with pytest.raises(ChatTemplateError, match="does not show tools"):
        encode(without, HISTORY[:1], tools=[TOOL])
    without.chat_template = "{{ tools | tojson }}" + without.chat_template
    encode(without, HISTORY[:1], tools=[TOOL])
    with pytest.raises(ChatTemplateError, match="not their calls and results"):
        encode(without, HISTORY, tools=[TOOL])
    for template in ("raw", lambda messages: messages[0]["content"]):
        with pytest.raises(ChatTemplateError, match="another template was chosen"):
            encode(without, "Why?", tools=[TOOL], template=template)


def test_a_template_written_by_hand_is_named_with_the_way_out() -> None:
    own = tokenizer(TEMPLATES["hermes"][0])
    for text in (
        *("<|user|>\nWhy?</s>", "<s>[INST] Why? [/INST]", "### Instruction:\nWhy?"),
        *("<｜begin▁of▁sentence｜><｜User｜>Why?<｜Assistant｜>", "<bos><|turn>user\nWhy?<turn|>"),
    ):
        with pytest.warns(ChatTemplateWarning, match="written by hand.*allow_control_tokens=True"):
            encode(own, text)
    encode(own, "<|im_start|>user\nWhy?", template="raw", allow_control_tokens=True)
    encode(own, "Why does <|user|> stand in it?")
