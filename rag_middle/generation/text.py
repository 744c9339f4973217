"""From tokens to text while tokens still come: characters only when whole, stop strings cut off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rag_middle.generation.results import FinishReason
from rag_middle.generation.tool_use import ToolReader
from rag_middle.tools.formats import ToolMessage, half_way

Decode = Callable[[Sequence[int]], str]


_INCOMPLETE = "\ufffd"  # what decoders write for bytes that are no character, or not one yet


class IncrementalText:
    """Text of a growing list of tokens, in time that does not grow with it.

    A token's text depends on its neighbours (a space before the first word, bytes of one
    character), so new tokens are decoded after the last few that are settled.

    Args:
        decode: text of token ids.
        before: tokens of a text that this one goes on from. Without them some decoders leave out a
            space at the beginning.
    """

    def __init__(self, decode: Decode, before: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = list(before)
        #: Tokens at the window's start whose text is out, and that text.
        self._settled, self._settled_text = len(before), decode(before) if before else ""

    def push(self, token: int) -> str:
        """Take a token; return the text that is certain now, maybe none."""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(_INCOMPLETE) or len(text) <= len(self._settled_text):
            return ""
        new = text[len(self._settled_text) :]
        self._window = self._window[self._settled :]
        self._settled = len(self._window)
        self._settled_text = self._decode(self._window)
        return new

    def flush(self) -> str:
        """The rest, characters that never became whole included."""
        text = self._decode(self._window)[len(self._settled_text) :]
        self._settled, self._settled_text = len(self._window), self._decode(self._window)
        return text


class Completion:
    """The text that is generated for one prompt, while it grows.

    Args:
        decode: text of token ids, without special tokens.
        ends: tokens that end the text, and the stop string that each one is, if any.
        stops: strings that end the text.
        calls: reads the calls of tools in it.
        before: as of `IncrementalText`.
    """

    def __init__(
        self,
        decode: Decode,
        ends: Mapping[int, str | None],
        stops: Sequence[str],
        calls: ToolReader | None = None,
        before: Sequence[int] = (),
    ) -> None:
        self._incremental = IncrementalText(decode, before)
        self._ends = ends
        self._stops = tuple(stops)
        self._overlap = max(map(len, self._stops), default=1) - 1
        self._taken = 0
        self._calls = calls
        self._markers = {} if calls is None else calls.markers
        self._places: dict[int, str] = {}
        self._message: ToolMessage | None = None
        self.token_ids: list[int] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.stop: str | None = None

    def push(self, token: int) -> None:
        """Take the next token. Tokens after the end are ignored."""
        if self.finish_reason is not None:
            return
        self.token_ids.append(token)
        if token in self._ends:
            self.finish("stop")
            self.stop = self.stop or self._ends[token]
        elif (marker := self._markers.get(token)) is not None:
            self._append(self._incremental.flush())  # so that what comes is this token's
            text = self._incremental.push(token)
            if marker in text:
                self._places[len(self.text) + text.index(marker)] = marker
            self._append(text)
        else:
            self._append(self._incremental.push(token))

    def finish(self, reason: FinishReason) -> None:
        """End here, unless it has ended."""
        if self.finish_reason is None:
            self._append(self._incremental.flush())
        if self.finish_reason is None:  # the rest may have held a stop string
            self.finish_reason = reason

    @property
    def message(self) -> ToolMessage | None:
        """The text with the calls of tools read, once it has ended; None where there are none."""
        if self._message is None and self._calls is not None and self.finish_reason is not None:
            self._message = self._calls.message(self.text, self._places)
        return self._message

    @property
    def answer(self) -> str:
        """The text without the calls of tools."""
        return self.text if self.message is None else self.message.content

    def take(self) -> str:
        """Text not taken yet that stays, whatever comes: no beginning of a stop string or call."""
        text, end = self.answer, len(self.answer)
        if self.finish_reason is None:
            starts = [half_way(text, stop) for stop in self._stops]
            end = min((start for start in starts if start >= 0), default=end)
            if self._calls is not None:
                end = min(end, self._calls.call_start(text, self._places))
        start, self._taken = self._taken, max(self._taken, end)
        return text[start : self._taken]

    def _append(self, new: str) -> None:
        if not new:
            return
        searched = max(0, len(self.text) - self._overlap)
        self.text += new
        stop_found = first_stop(self.text, self._stops, searched)
        if stop_found is not None:
            at, self.stop = stop_found
            self.text = self.text[:at]
            self.finish_reason = "stop"


def first_stop(text: str, stops: Sequence[str], start: int = 0) -> tuple[int, str] | None:
    """Where the first stop string begins at or after `start`, and which; the longest on ties."""
    matches = [(at, -len(stop), stop) for stop in stops if (at := text.find(stop, start)) >= 0]
    if not matches:
        return None
    at, _, stop = min(matches)
    return at, stop
