"""No text but the template's own becomes a control token, whatever tokenizer and template.

On every way through an integration: `test_forged_documents.py`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

from rag_middle import ContextPrompt, Document, escape, mark
from rag_middle.errors import ChatTemplateError, PromptError
from rag_middle.tokens import encode
from tests.attacks.hostile import LITERALS, hostile_text, report, tries
from tests.tokenizers import (
    CHATML,
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
