"""Messages through a template to token ids, keeping apart what messages say and the template's own.

The documents are taken out of their message and a private-use character is left in their place.
Others are put around every text of the messages, as a fence: what the template writes outside of
fences is its own and may hold control tokens, and whatever it made of the text inside is inert.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import chain, islice, product
from typing import Any

from rag_middle.errors import ChatTemplateError, PromptError
from rag_middle.notices import ChatTemplateWarning, warn_caller
from rag_middle.plain_data import map_strings
from rag_middle.tokens.conversation import MODEL_ROLES, SYSTEM_ROLES, Conversation, Message
from rag_middle.tokens.templates import ChatTemplate, Way, as_given
from rag_middle.tokens.text import TextEncoder
from rag_middle.wording import shortened

_ROLES = SYSTEM_ROLES | MODEL_ROLES | {"user", "human", "tool", "function", "ipython"}
_ROLES |= {"observation"}
#: Fields with the ids of calls, on whose length and letters a template may insist.
_IDS = frozenset({"id", "tool_call_id"})
_WORD = re.compile(r"[\w-]+")

#: A rendered text in pieces: the character that opens the fence around it, empty for the
#: template's own, and the text.
Segments = list[tuple[str, str]]
#: Changes a text, told the character that opens its fence.
Change = Callable[[str, str], str]

_NOT_EXACT = (
    "The {} decides by what messages hold, how they begin or end, and these hold characters of "
    "control tokens. So that no message writes any, the prompt differs from what the template "
    "writes otherwise: by a space, or by earlier thinking that it would leave out (pass this in a "
    "field of its own, such as reasoning_content). Compare the decoded input_ids of the prompt "
    "with tokenizer.apply_chat_template(..., tokenize=False)."
)


class Rendering:
    """A conversation as a template writes it, and which of the text comes from messages.

    A template may do anything with messages: strip, change case, unescape, repeat, leave out, wrap
    in its own text. It is asked twice: with fences around texts, and plainly, to see whether the
    fences changed what it writes. Where they did, the plain text is taken if the template's own
    control tokens can be told in it.

    Args:
        write: the tokenizer's `ChatTemplate`, or a function of the caller.
        encoder: of the tokenizer.
        conversation: to render.
    """

    def __init__(
        self,
        write: ChatTemplate | Callable[..., object],
        encoder: TextEncoder,
        conversation: Conversation,
    ) -> None:
        self._write = write
        self._encoder = encoder
        self._conversation = conversation
        template = write if isinstance(write, ChatTemplate) else None
        self._name = "chat template" if template else "template function"
        self._words = template and template.words
        prompt, messages = conversation.prompt, conversation.messages
        strings = [prompt.prefix, prompt.suffix]
        map_strings([messages, conversation.tools, template and template.given], strings.append)
        self._documents, self._cut, self._closing, *openings = _absent_characters(
            6 + len(messages), *strings
        )
        self._calls, self._tools, self._fields, *self._contents = openings
        #: Texts by the character that opens their fence.
        self._fenced: dict[str, list[str]] = {}

    def ids(self) -> tuple[list[int], list[int]]:
        """Token ids before the documents, and after them; all before where there are none.

        Raises:
            ChatTemplateError: the template fails, leaves out tools or a message, drops or repeats
                the documents, or makes control tokens of what messages say.

        Warns:
            ChatTemplateWarning: it is not exactly as the template writes it.
        """
        way, fence, plain, fenced = self._fitting_way()
        self._check_own_text(way, fence, fenced)
        ids: list[list[int]] = []
        for segments, text in zip(fenced, plain, strict=True):
            exact: Segments | None = segments
            if "".join(text for _, text in segments) != text:
                exact = self._aligned(segments, text)
            if exact is None:
                warn_caller(ChatTemplateWarning(_NOT_EXACT.format(self._name)))
            ids.append(self._encoded(exact or segments, continues=bool(ids)))
        return ids[0], ids[1] if len(ids) > 1 else []

    def _fitting_way(self) -> tuple[Way, Change, list[str], list[Segments]]:
        """The first way of giving the messages in which the template takes and shows them all.

        Returns:
            That way and the fence, and what the template writes of plain messages and of fenced
            ones, before and after the documents.
        """
        ways: list[Way] = [as_given]
        if isinstance(self._write, ChatTemplate):
            ways = list(self._write.ways(self._conversation.messages))
        # Where a template looks for control tokens in contents, it finds none in the second.
        fences: tuple[Change, ...] = (
            self._fence,
            lambda text, opening: self._fence(self._inert(text), opening),
        )
        # Without tools, a template may leave out earlier calls.
        are_calls_needed = (True,) if self._conversation.tools else (True, False)
        refusal: ChatTemplateError | None = None
        for needs_calls, way, fence in product(are_calls_needed, ways, fences):
            try:
                plain = self._parts(self._text(way, lambda text, _: text))
                fenced = [*map(self._segments, self._parts(self._text(way, fence)))]
                self._check_shown("".join(plain), fenced, needs_calls)
            except ChatTemplateError as error:
                refusal = error
            else:
                return way, fence, plain, fenced
        assert refusal is not None, "there is a way"
        raise refusal

    def _check_shown(self, plain: str, fenced: list[Segments], needs_calls: bool) -> None:
        """Make sure that a chat template shows tools, calls, and all messages but the model's.

        Those of a role that it does not know are missing without a word; of the model's, it leaves
        out earlier calls and thinking.
        """
        if self._words is None:  # a caller's function may leave out what it likes
            return
        lost = self._lost(fenced)
        if self._tools in lost:
            raise ChatTemplateError(
                "The chat template does not show tools, so the model would not know of them. Use a "
                "model that was trained to call tools, or set a template that renders tools: "
                "tokenizer.chat_template."
            )
        if self._calls in lost and needs_calls:
            raise ChatTemplateError(
                "The chat template shows tools, but not their calls and results, which these "
                "messages hold. Leave out tools=, and tell results as messages of the user."
            )
        for index, message in enumerate(self._conversation.messages):
            if self._contents[index] not in lost or message["role"] in MODEL_ROLES:
                continue
            if index != self._conversation.at and message["content"].strip() not in plain:
                raise ChatTemplateError(
                    f"The chat template leaves out message {index}, of the role "
                    f"{shortened(message['role'], 30)!r}. Give it a role that the template shows "
                    "there, such as 'user', or join it with another message."
                )

    def _lost(self, fenced: list[Segments]) -> set[str]:
        """The opening characters of texts that the template left out."""
        return self._fenced.keys() - {opening for part in fenced for opening, _ in part}

    def _check_own_text(self, way: Way, fence: Change, fenced: list[Segments]) -> None:
        """Refuse a template whose own text holds control tokens because of what messages say.

        Of a role, which is written bare, or of a text that it writes without its fence: it holds
        others then once these say nothing.
        """
        lost = self._lost(fenced)
        texts = [text for opening in lost for text in self._fenced[opening]]
        roles = {message["role"] for message in self._conversation.messages}
        doubtful = {role for role in roles if self._is_doubtful(role)}
        if not doubtful and not any(map(self._encoder.has_control_characters, texts)):
            return

        def silent(text: str, opening: str) -> str:
            return fence(re.sub(r"\S", "x", text) if opening in lost else text, opening)

        text = self._text(way, silent, dict.fromkeys(doubtful, "x"))
        rendered = [*map(self._segments, self._parts(text))]
        if [*map(self._own_ids, rendered)] != [*map(self._own_ids, fenced)]:
            raise self._refusal()

    def _refusal(self) -> ChatTemplateError:
        roles = [shortened(message["role"], 30) for message in self._conversation.messages]
        return ChatTemplateError(
            f"The {self._name} makes control tokens of what messages say: of a role ({roles}), "
            "another field, or a content that it changes so that it cannot be told from the "
            "template's own text. Use roles that the template knows, and let it write contents as "
            "they are (stripping and formatting them is fine), without removing unusual characters."
        )

    def _aligned(self, fenced: Segments, plain: str) -> Segments | None:
        """`plain` in segments, with the template's control tokens where its own texts are.

        These are the texts of `fenced` with control tokens. None unless they stand in `plain` in
        their order, nothing else there holds a control token of theirs, and what stands between
        them holds nothing that `fenced` does not hold there.
        """
        own, between = [], [""]
        for opening, text in fenced:
            if opening or not self._own_ids([("", text)]):
                between[-1] += text
            else:
                own.append(text)
                between.append("")
        segments: Segments = []
        end = 0
        for text, possible in zip([*own, ""], between, strict=True):
            start = plain.find(text, end) if text else len(plain)
            if start < 0 or not _is_subsequence(plain[end:start], possible):
                return None
            segments += [(self._fields, plain[end:start]), ("", text)]
            end = start + len(text)
        said = self._encoder.encode([text for opening, text in segments if opening], continues=True)
        return segments if {*self._own_ids(segments)}.isdisjoint(said) else None

    def _encoded(self, segments: Segments, *, continues: bool) -> list[int]:
        """Ids of a text in which what messages say is inert, whatever the template did to it."""
        text = "".join(self._inert(text) if opening else text for opening, text in segments)
        ids = self._encoder.encode(text.split(self._cut), continues=continues)
        if self._encoder.control_ids(ids) == self._own_ids(segments):
            return ids
        pieces: list[str] = []  # a control token was formed together with own text
        for opening, text in segments:
            pieces += self._encoder.inert_pieces(text) if opening else [text]
        return self._encoder.encode(pieces, continues=continues)

    def _own_ids(self, segments: Segments) -> list[int]:
        """The control tokens in what the template wrote itself."""
        own = [text for opening, text in segments if not opening]
        return self._encoder.control_ids(self._encoder.encode(own, continues=True))

    def _segments(self, text: str) -> Segments:
        """What the template wrote of fenced texts, cut at the fences."""
        openings = "".join((self._calls, self._tools, self._fields, *self._contents))
        fence = f"([{openings}])([^{openings}{self._closing}]*){self._closing}"
        own, *rest = re.split(fence, text.replace(self._cut, ""))
        segments = [("", own)]
        for opening, inside, own in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
            segments += [(opening, inside), ("", own)]
        if any({*own} & {*openings, self._closing} for opening, own in segments if not opening):
            raise self._refusal()
        return segments

    def _parts(self, text: str) -> list[str]:
        """The text before and after the documents."""
        parts = text.split(self._documents)
        expected = 1 if self._conversation.at is None else 2
        if len(parts) != expected:
            what = "drops" if len(parts) < expected else "repeats"
            raise ChatTemplateError(
                f"The {self._name} {what} the message with the documents. Move them into the "
                "last user message, or use template='raw' (--template raw)."
            )
        return parts

    def _text(self, way: Way, change: Change, roles: Mapping[str, str] | None = None) -> str:
        """The template's text of messages given in some way, their documents as one character.

        `change` is made to every text, and is told the opening of its fence. Words that a chat
        template knows stay, and so do names of fields. `roles` are written in place of others.
        """
        messages: list[Message] = []
        for index, message in enumerate(self._conversation.messages):
            content = message.get("content")
            opening = self._contents[index]
            if index == self._conversation.at:
                prompt = self._conversation.prompt
                texts = (change(text, opening) for text in (prompt.prefix, prompt.suffix))
                content = self._documents.join(texts)
            elif content is not None:
                content = change(content, opening)
            fields: dict[str, Any] = {}
            for name, value in message.items():
                if name in ("role", "content"):
                    continue
                opening = self._calls if name == "tool_calls" else self._fields
                key = name if name.isidentifier() else self._key(name, change, opening)
                fields[key] = self._changed(value, change, opening, name)
            role = (roles or {}).get(message["role"], message["role"])
            messages.append({**fields, "role": role, "content": content})
        tools = self._changed(self._conversation.tools, change, self._tools)
        return self._written(way(messages), tools)

    def _changed(self, value: Any, change: Change, opening: str, name: str = "") -> Any:
        """Plain data with its texts changed; words that a chat template knows stay."""
        if isinstance(value, Mapping):
            return {
                self._key(key, change, opening): self._changed(item, change, opening, str(key))
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._changed(item, change, opening) for item in value]
        if not isinstance(value, str) or self._is_known(value):
            return value
        is_id = name in _IDS and _WORD.fullmatch(value)
        return (
            value if is_id and not self._encoder.is_near_control(value) else change(value, opening)
        )

    def _key(self, key: Any, change: Change, opening: str) -> Any:
        """A name, changed; for a function only as far as it needs no fence to be inert."""
        if not isinstance(key, str) or self._is_known(key):
            return key
        return self._inert(key) if self._words is None else change(key, opening)

    def _is_known(self, text: str) -> bool:
        return text in (self._words or ()) and self._encoder.inert_pieces(text) == [text]

    def _is_doubtful(self, role: str) -> bool:
        """Whether a role, which is written bare, may become or help to form a control token."""
        if not role.isidentifier() and self._encoder.inert_pieces(role) != [role]:
            raise PromptError(
                f"The role {role!r} holds a control token of this tokenizer. Use one that the chat "
                "template knows, such as 'user'."
            )
        if role in _ROLES or role in (self._words or ()):
            return False
        is_word = role.isidentifier() or not self._encoder.has_control_characters(role)
        return not is_word or self._encoder.is_near_control(role)

    def _fence(self, text: str, opening: str) -> str:
        """The text in a fence, inside the whitespace that templates strip."""
        core = text.strip()
        if not core:
            return text
        self._fenced.setdefault(opening, []).append(core)
        before, _, after = text.partition(core)
        return f"{before}{opening}{core}{self._closing}{after}"

    def _inert(self, text: str) -> str:
        return self._cut.join(self._encoder.inert_pieces(text))

    def _written(self, messages: list[Message], tools: list[Message]) -> str:
        try:
            text = self._write(messages, tools) if tools else self._write(messages)
        except Exception as error:  # templates raise what Python's functions do
            # Not its repr(), which may hold the whole text that it is about.
            roles = [shortened(message["role"], 30) for message in messages]
            raise ChatTemplateError(
                f"The {self._name} failed: {type(error).__name__}({shortened(str(error), 100)}). "
                f"Roles given: {roles}."
            ) from error
        if not isinstance(text, str):
            raise ChatTemplateError(
                f"The {self._name} must return the prompt as a string, got {type(text).__name__}."
            )
        return text


def _is_subsequence(text: str, whole: str) -> bool:
    """Whether `text` is `whole` with characters left out, in capitals or not."""
    following = iter(whole.casefold())
    return all(character in following for character in text.casefold())


def _absent_characters(count: int, *texts: str) -> list[str]:
    """Private-use characters that occur in none of the texts."""
    taken = set().union(*texts)
    # transformers keeps sentinels of its own at U+F0000 and U+F0001.
    areas = chain(range(0xE000, 0xF8FF), range(0xF0002, 0xFFFFE), range(0x100000, 0x10FFFE))
    free = list(islice((c for c in map(chr, areas) if c not in taken), count))
    if len(free) < count:
        raise PromptError("The messages use every private-use character. Remove some of them.")
    return free
