"""Messages through a template to text, keeping track of where the documents stand.

The documents are taken out of their message and a private-use character is left in their place.
The template is rendered to text, and the text is split there. Another such character marks the
cuts inside message contents that keep control tokens inert (see ``text.TextEncoder``).

A template is the tokenizer's own (`ChatTemplate`) or a function of the caller.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain, islice
from random import Random

from rag_middle.errors import ChatTemplateError, PromptError
from rag_middle.notices import ChatTemplateWarning, warn_caller
from rag_middle.plain_data import map_strings
from rag_middle.tokens.conversation import MODEL_ROLES, SYSTEM_ROLES, Conversation, Message
from rag_middle.tokens.templates import ChatTemplate, vocabulary
from rag_middle.tokens.text import TextEncoder
from rag_middle.wording import shortened

_OTHERS = frozenset({"user", "human", "tool", "function", "ipython", "observation"})
_WORD = re.compile(r"[\w-]+")

#: Text of a rendered conversation: whether messages say it, and the text.
Segments = list[tuple[bool, str]]

_NOT_EXACT = (
    "The {} decides by what messages hold, how they begin or end, and these hold characters of "
    "control tokens. So that no message writes any, the prompt differs from what the template "
    "writes otherwise: by a space, or by earlier thinking that it would leave out (pass this in a "
    "field of its own, such as reasoning_content). Compare the decoded input_ids of the prompt "
    "with tokenizer.apply_chat_template(..., tokenize=False)."
)


class Rendering:
    """A conversation as a template writes it, and which of the text comes from messages.

    A template may do anything with messages: strip, change case, unescape, reverse, repeat, leave
    out, wrap in its own text. The plain rendering is taken if the messages hold nothing that a
    control token is written with. Else sentinels stand around what messages say, and whatever the
    template made of the text between them is inert. Where sentinels change what the template
    decides, the plain rendering is taken if the template's own control tokens can be told in it.

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
        self._names: frozenset[str] | None = None
        phrases = r"\w+"
        if template:
            self._names, phrases = vocabulary(tuple(template.sources))
        self._phrases = re.compile(f"({phrases})")
        self._texts = [conversation.prompt.prefix, conversation.prompt.suffix]
        map_strings([conversation.messages, conversation.tools], self._texts.append)
        strings = [*self._texts]
        map_strings(template and template.given, strings.append)
        self._documents, self._cut, self._opening, self._closing = _absent_characters(4, *strings)
        self._stands_for: dict[str, str] = {}

    def render(self) -> list[list[str]]:
        """The conversation as the template writes it, or as near to that as is safe.

        Pieces of text to tokenise one by one: those before the documents, and those after them; all
        of them where there are none.

        Raises:
            ChatTemplateError: the template fails, leaves out tools or a message, drops or repeats
                the documents, or makes control tokens of what messages say.

        Warns:
            ChatTemplateWarning: it is not exactly as the template writes it.
        """
        if isinstance(self._write, ChatTemplate) and self._conversation.tools:
            self._write.check_tools(self._conversation.messages)
        text = self._apply(str, str)
        plain = [part.split(self._cut) for part in self._parts(text)]
        if self._names is not None:  # a caller's function may leave out what it likes
            self._check_messages(text)
        if self._is_harmless() and self._control_ids(plain) == self._own_control_ids():
            return plain
        texts = ["".join(part) for part in plain]
        # Where the template looks for control tokens in contents, it finds none in the second.
        fenced = self._fenced(self._fence) or self._fenced(
            lambda text: self._fence(self._inert(text))
        )
        if fenced is not None and [*map(self._joined, fenced)] == texts:
            return self._inert_chat(fenced)
        if fenced is not None:
            aligned = [*map(self._aligned, fenced, texts)]
            exact = [segments for segments in aligned if segments is not None]
            if len(exact) == len(fenced):
                return self._inert_chat(exact)
            warn_caller(ChatTemplateWarning(_NOT_EXACT.format(self._name)))
            return self._inert_chat(fenced)
        raise ChatTemplateError(
            f"The {self._name} makes control tokens of what messages say: of a role "
            f"({[message['role'] for message in self._conversation.messages]}), another field, or "
            "a content that it changes so that it cannot be told from the template's own text. Use "
            "roles that the template knows, and let it write contents as they are (stripping and "
            "formatting them is fine), without removing unusual characters."
        )

    def _check_messages(self, text: str) -> None:
        """Make sure that `text` has all messages but the model's, whose earlier calls and thinking
        templates leave out: those of a role that they do not know are missing without a word.

        Raises:
            ChatTemplateError: it does not show one of them.
        """
        messages = [*self._conversation.messages]
        missing = [
            index
            for index, message in enumerate(messages)
            if message["role"] not in MODEL_ROLES
            and (message.get("content") or "").strip() not in text
        ]
        for index in missing:  # or changed: `& ` is `&amp; ` for some
            content = messages[index]["content"]
            # At both ends: a template may cut either.
            marked = {**messages[index], "content": f"x{index}x{content}x{index}x"}
            all_messages = [*messages[:index], marked, *messages[index + 1 :]]
            try:
                shown = self._written(all_messages, [*self._conversation.tools])
            except ChatTemplateError:
                continue  # it looks at what this message says
            if f"x{index}x" not in shown.lower():
                raise ChatTemplateError(
                    f"The chat template leaves out message {index}, of the role "
                    f"{shortened(messages[index]['role'], 30)!r}. Give it a role that the template "
                    "shows there, such as 'user', or join it with another message."
                )

    def _fenced(self, change: Callable[[str], str]) -> list[Segments] | None:
        """Text before and after the documents, with sentinels around what messages say.

        None where the template lost some of the sentinels, or does not take them.
        """
        # As many control tokens as around harmless messages: neither a template that drops the
        # sentinels, nor a role, nor a field that is a single word makes more of them.
        for change_word, harmless_word in (
            (str, self._mask_word),
            (change, self._fence_harmless),
        ):
            rendered = self._fenced_segments(change, change_word)
            harmless = self._fenced_segments(
                self._fence_harmless, harmless_word, self._harmless_role
            )
            if rendered is None or harmless is None:
                continue
            if self._own_ids(rendered) == self._own_ids(harmless):
                return rendered
        return None

    def _aligned(self, fenced: Segments, plain: str) -> Segments | None:
        """`plain` in segments, with the template's control tokens where its own texts are.

        These are the texts of `fenced` with control tokens. None unless they stand in `plain` in
        their order, in one way only, and the rest there holds no control token of theirs: a message
        may hold such a text, and the template have written its own in other words. Of other control
        tokens the rest may hold what messages do, no more.
        """
        is_own = [
            not inside and bool(self._own_ids([[(False, text)]])[0]) for inside, text in fenced
        ]
        own = [text for is_own_text, (_, text) in zip(is_own, fenced, strict=True) if is_own_text]
        shown = [text.replace(self._cut, "") for text in own]
        places = _only_places(shown, plain, is_own[:1] == [True], is_own[-1:] == [True])
        if places is None:
            return None
        segments: Segments = []
        end = 0
        for place, text, shown_text in zip(places, own, shown, strict=True):
            segments += [(True, plain[end:place]), (False, text)]
            end = place + len(shown_text)
        segments.append((True, plain[end:]))
        in_messages, in_segments = (
            Counter(self._encoder.control_ids(self._encoder.encode(pieces, continues=True)))
            for pieces in (self._texts, [text for inside, text in segments if inside])
        )
        own_ids = {token for part in self._own_ids([segments]) for token in part}
        return segments if in_segments <= in_messages and own_ids.isdisjoint(in_segments) else None

    def _joined(self, segments: Segments) -> str:
        return "".join(text for _, text in segments).replace(self._cut, "")

    def _inert_chat(self, rendered: list[Segments]) -> list[list[str]]:
        """Pieces in which what messages say is inert, whatever the template did to it."""
        own = self._own_ids(rendered)
        parts: list[list[str]] = []
        for index, segments in enumerate(rendered):
            text = "".join(
                self._cut.join(self._encoder.inert_pieces(text)) if inside else text
                for inside, text in segments
            )
            pieces = text.split(self._cut)
            ids = self._encoder.encode(pieces, continues=index > 0)
            if self._encoder.control_ids(ids) != own[index]:  # formed together with own text
                pieces = []
                for inside, text in segments:
                    pieces += self._encoder.inert_pieces(text) if inside else text.split(self._cut)
            parts.append(pieces)
        return parts

    def _fenced_segments(
        self,
        change: Callable[[str], str],
        change_word: Callable[[str], str],
        change_role: Callable[[str], str] = str,
    ) -> list[Segments] | None:
        """Text before and after the documents, in segments.

        Args:
            change: of texts: puts sentinels around them.
            change_word: of fields that are a single word, such as an id, on whose length or letters
                a template may insist.
            change_role: of roles.
        """

        def changed(text: str) -> str:
            return change_word(text) if _WORD.fullmatch(text) else change(text)

        try:
            parts = self._parts(self._apply(change, changed, change_role))
        except ChatTemplateError:
            return None
        rendered: list[Segments] = []
        for part in parts:
            segments: Segments = []
            inside = False
            for text in re.split(f"([{self._opening}{self._closing}])", part):
                if text in (self._opening, self._closing):
                    if inside is (text == self._opening):
                        return None
                    inside = not inside
                elif text:
                    # Outside, cuts keep inert what has no sentinels, such as names of fields.
                    segments.append((inside, text.replace(self._cut, "") if inside else text))
            if inside:
                return None
            rendered.append(segments)
        return rendered

    def _fence(self, text: str) -> str:
        """Sentinels around a text, inside the whitespace that templates strip."""
        core = text.strip()
        if not core:
            return text
        start = text.index(core)
        end = start + len(core)
        return f"{text[:start]}{self._opening}{core}{self._closing}{text[end:]}"

    def _fence_harmless(self, text: str) -> str:
        return self._fence(self._harmless(text))

    def _own_ids(self, rendered: list[Segments]) -> list[list[int]]:
        """The control tokens in what the template wrote itself, before and after the documents."""
        return self._control_ids(
            [piece for inside, text in part if not inside for piece in text.split(self._cut)]
            for part in rendered
        )

    def _control_ids(self, rendered: Iterable[list[str]]) -> list[list[int]]:
        """The control tokens of pieces of text, before and after the documents, in order."""
        return [
            self._encoder.control_ids(self._encoder.encode(pieces, continues=index > 0))
            for index, pieces in enumerate(rendered)
        ]

    def _is_harmless(self) -> bool:
        """Whether nothing in the messages could become a part of a control token."""
        texts = [self._conversation.prompt.prefix, self._conversation.prompt.suffix]
        # Not the names of fields, which are the framework's.
        map_strings([[*message.values()] for message in self._conversation.messages], texts.append)
        map_strings(self._conversation.tools, texts.append)
        return not any(map(self._encoder.has_control_characters, texts))

    def _own_control_ids(self) -> list[list[int]] | None:
        """The control tokens of the same conversation with nothing in it; None if it is refused."""
        try:
            text = self._apply(self._harmless, self._harmless, self._harmless_role)
            return self._control_ids(part.split(self._cut) for part in self._parts(text))
        except ChatTemplateError:
            return None

    def _apply(
        self,
        change: Callable[[str], str],
        change_other: Callable[[str], str],
        change_role: Callable[[str], str] = str,
    ) -> str:
        """The template's text of messages with all text changed and a sentinel for the documents.

        Args:
            change: of contents.
            change_other: of what else the messages hold. Names that a chat template knows stay.
            change_role: of roles.
        """

        def changed(text: str) -> str:
            return text if self._is_name(text) else change_other(text)

        def changed_key(text: str) -> str:
            return self._inert(text) if self._names is None else changed(text)

        messages: list[Message] = []
        for index, message in enumerate(self._conversation.messages):
            content = message.get("content")
            if index == self._conversation.at:
                prompt = self._conversation.prompt
                content = self._documents.join(map(change, (prompt.prefix, prompt.suffix)))
            elif content is not None:
                content = change(content)
            # The message's own keys are names that templates ask for; what is none is text.
            new = {
                key if key.isidentifier() else changed(key): map_strings(item, changed, changed_key)
                for key, item in message.items()
            }
            new["role"] = change_role(self._checked_role(message["role"]))
            if content is not None:
                new["content"] = content
            messages.append(new)
        tools = map_strings(self._conversation.tools, changed, changed_key)
        text = self._written(messages, tools)
        # As Python and JSON write them inside of mappings and lists.
        for sentinel in (self._documents, self._cut, self._opening, self._closing):
            text = text.replace(f"\\u{ord(sentinel):04x}", sentinel)
        return text

    def _is_name(self, text: str) -> bool:
        return text in (self._names or ()) and self._encoder.inert_pieces(text) == [text]

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

    def _checked_role(self, role: str) -> str:
        # A plain word may be a control token of its own where a template is written so.
        if not role.isidentifier() and self._encoder.inert_pieces(role) != [role]:
            raise PromptError(
                f"The role {role!r} holds a control token of this tokenizer. Use one that the chat "
                "template knows, such as 'user'."
            )
        return role

    def _inert(self, text: str) -> str:
        return self._cut.join(self._encoder.inert_pieces(text))

    def _harmless(self, text: str) -> str:
        """Text of the same shape that no template makes control tokens of.

        What templates look for stays: the strings in a Jinja template, words for a function.
        """
        pieces = self._phrases.split(text)
        near = set(filter(self._encoder.is_near_control, {*pieces[1::2]}))
        pieces[::2] = map(_masked, pieces[::2])
        pieces[1::2] = [_masked(piece) if piece in near else piece for piece in pieces[1::2]]
        harmless = "".join(pieces)
        if self._inert(harmless) != harmless:
            harmless = _masked(text)
        return self._distinct(harmless, text)

    def _mask_word(self, text: str) -> str:
        return self._distinct(_masked(text), text)

    def _distinct(self, harmless: str, text: str) -> str:
        """What stands for a text, longer where it stands for another one already.

        Short texts soon have the same letters, and the keys of a mapping have to stay as many.
        """
        if self._stands_for.setdefault(harmless, text) != text:
            random = Random(f"{text}\0".encode("utf-8", "surrogatepass"))
            while self._stands_for.setdefault(harmless, text) != text:
                harmless += random.choice("qxyz")
        return harmless

    def _harmless_role(self, role: str) -> str:
        is_word = role.isidentifier() and not self._encoder.is_near_control(role)
        is_known = (
            is_word or role in SYSTEM_ROLES | MODEL_ROLES | _OTHERS or role in (self._names or ())
        )
        return role if is_known else _masked(role)

    def _written(self, messages: list[Message], tools: list[Message]) -> str:
        try:
            text = self._write(messages, tools) if tools else self._write(messages)
        except ChatTemplateError:
            raise
        except Exception as error:
            # Not its repr(): errors of Python may hold the whole text that they are about.
            reason = shortened(str(error), 100)
            raise ChatTemplateError(
                f"The {self._name} failed: {type(error).__name__}({reason})."
            ) from error
        if not isinstance(text, str):
            raise ChatTemplateError(
                f"The {self._name} must return the prompt as a string, got {type(text).__name__}."
            )
        return text


def _only_places(texts: list[str], whole: str, at_start: bool, at_end: bool) -> list[int] | None:
    """Where `texts` stand in `whole`, one after the other; None if nowhere or in several ways.

    Args:
        texts: none of them empty.
        whole: to look in.
        at_start: whether the first text has to begin `whole`.
        at_end: whether the last text has to end it.
    """
    first = _first_places(texts, whole, at_start, at_end)
    mirrored = [text[::-1] for text in reversed(texts)]
    last = _first_places(mirrored, whole[::-1], at_end, at_start)
    if first is None or last is None:
        return None
    ends = [len(whole) - place for place in reversed(last)]
    starts = [end - len(text) for end, text in zip(ends, texts, strict=True)]
    return first if first == starts else None


def _first_places(texts: list[str], whole: str, at_start: bool, at_end: bool) -> list[int] | None:
    places: list[int] = []
    end = 0
    for index, text in enumerate(texts):
        place = whole.find(text, end)
        if at_end and index == len(texts) - 1:
            place = len(whole) - len(text) if whole.endswith(text) else -1
        if place < end or (at_start and index == 0 and place > 0):
            return None
        places.append(place)
        end = place + len(text)
    return places


def _masked(text: str) -> str:
    """Letters in place of what is no whitespace; others for another text, as templates compare."""
    drawn = Random(text.encode("utf-8", "surrogatepass"))
    return re.sub(r"\S", lambda _: drawn.choice("qxyz"), text)


def _absent_characters(count: int, *texts: str) -> list[str]:
    """Private-use characters that occur in none of the texts, escaped neither."""
    taken = set().union(*texts)
    for text in texts:
        taken |= {chr(int(code, 16)) for code in re.findall(r"\\u([0-9a-fA-F]{4})", text)}
    # transformers keeps sentinels of its own at U+F0000 and U+F0001.
    areas = chain(range(0xE000, 0xF8FF), range(0xF0002, 0xFFFFE), range(0x100000, 0x10FFFE))
    free = list(islice((c for c in map(chr, areas) if c not in taken), count))
    if len(free) < count:
        raise PromptError("The messages use every private-use character. Remove some of them.")
    return free
