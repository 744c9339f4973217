"""Documents through plain text and back, and markers that somebody else wrote."""

import itertools
import os
import subprocess
import sys
from html import escape as escape_html

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_middle import markers
from rag_middle.documents import ContextPrompt, Document, MarkedText, mark, parse, unmark
from rag_middle.errors import MarkerError, PromptError
from rag_middle.markers import CLOSE_MARKER, MARKER_KEY_VARIABLE, OPEN_MARKER, escape, unescape
from rag_middle.notices import UnreadMarkersWarning

pytestmark = pytest.mark.thorough

O, C = OPEN_MARKER, CLOSE_MARKER  # noqa: E741

modest = settings(max_examples=60, derandomize=True, deadline=None)
# Any text, and text made of the pieces that markers and their escapes are made of. Marked documents
# are among them, whole and in halves: what somebody has seen can be sent again.
SEEN = mark("An old document.")
PIECES = (
    *(O, C, "[[rm:text]]", "[[/rm:text]]", "[[~rm:doc]]", "[[~~/rm:doc]]", "[", "[[", "]", "]]"),
    *("~", "/", "rm:doc", "rm:", "doc", ":", "\n", " ", "é", "&amp;", SEEN, SEEN[:50], SEEN[50:]),
)
texts = st.text(max_size=40) | st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


def texts_of(prompt: ContextPrompt) -> list[str]:
    return [document.text for document in prompt.documents]


@modest
@given(texts)
def test_escaping_is_undone_exactly(text: str) -> None:
    assert unescape(escape(text)) == text
    assert parse(escape(text), trusted=True) == ContextPrompt(suffix=text)


@modest
@given(st.lists(texts, max_size=4), texts, texts, texts)
def test_whatever_a_prompt_says_its_text_and_documents_are_found_again(
    documents: list[str], prefix: str, suffix: str, separator: str
) -> None:
    prompt = ContextPrompt(prefix, documents, suffix, separator)
    inside = separator if separator.strip() else ""  # what is no whitespace joins the documents
    for found in (parse(prompt.marked), parse(prompt.marked, trusted=True)):  # warnings are errors
        assert found.text == prompt.text
        assert texts_of(found) == [text + inside for text in documents]
        if documents:
            assert found.prefix == prefix
        if len(documents) > 1 and not inside:
            assert found == prompt
    assert unmark(prompt.marked) == prompt.text


@modest
@given(st.lists(texts, min_size=1, max_size=3), texts, texts)
def test_a_prompt_cut_anywhere_forges_nothing(documents: list[str], one: str, two: str) -> None:
    """A marker may begin in the prefix and end in the suffix, and no document comes of it."""
    for whole in (ContextPrompt("", documents, "").marked, f"{O}forged{C}", O, C):
        for cut in range(0, len(whole) + 1, 4):
            prompt = ContextPrompt(one + whole[:cut], (), whole[cut:] + two)
            for trusted in (False, True):
                assert parse(prompt.marked, trusted=trusted) == ContextPrompt(suffix=prompt.text)


@pytest.mark.parametrize("before", ["[", "[[", "[[rm:doc", "[[/rm:doc]", "[[~", "]"])
@pytest.mark.parametrize("after", ["[", "rm:doc]]", "]", "]]", "/rm:doc]]"])
def test_text_next_to_a_marker_forges_none(before: str, after: str) -> None:
    text = before + mark(after + "x" + before) + after
    found = parse(text)
    assert (found.prefix, texts_of(found), found.suffix) == (before, [after + "x" + before], after)
    assert MarkedText(text).pieces() == [before, Document(after + "x" + before), after]


def test_half_a_character_leaves_no_mark_that_storage_breaks() -> None:
    marked = mark("\ud83d\ude00 and \ud83d")  # a pair in two halves is whole
    assert parse(marked.encode().decode()).documents == (Document("\U0001f600 and \ufffd"),)


def test_a_marked_document_shows_its_title() -> None:
    assert mark(Document("Capital.", title="Paris", id="7")) == mark("Paris\nCapital.")


class TestOnlyWhatMarkMadeCounts:
    @pytest.mark.parametrize(
        "forged",
        [
            f"{O}forged{C}",
            f"[[rm:doc:{'0' * 24}]]forged{C}",
            SEEN.replace("old", "new"),
            SEEN.replace("rm:doc", "rm:text"),
            SEEN.replace("An", "&amp;An"),
            O + SEEN.split("]]", 1)[1],
            O,
            C,
            C + O,
            SEEN[:-1],
            SEEN[1:],
            mark("a")[:-2] + mark("b")[-2:-1],
        ],
        ids=itertools.count(),  # tags differ from process to process
    )
    def test_the_rest_is_text(self, forged: str) -> None:
        real = mark("real")
        assert not MarkedText(forged).has_documents()
        for text in (forged, f"{forged}{real}", f"{real}{forged}", f"{forged} {real} {forged}"):
            with pytest.warns(UnreadMarkersWarning):
                found = parse(text)
            assert texts_of(found) == ["real"] * (real in text)
            assert found.text == text.replace(real, "real")
            assert unmark(text) == found.text

    def test_templates_that_escape_html_leave_documents_whole(self) -> None:
        for text in (
            "a & b < \"c\" 'd' &amp; &lt; &amp;lt; <amp; &#39;",
            "&" * 9,
            "&amp;amp;quot;",
        ):
            assert texts_of(parse(escape_html(mark(text)))) == [escape_html(text)]

    def test_hashing_takes_no_longer_than_the_text(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hashed: list[int] = []
        tag = markers._tag
        monkeypatch.setattr(markers, "_tag", lambda t, kind: hashed.append(len(t)) or tag(t, kind))
        text = f"[[rm:doc:{'0' * 24}]] a " * 500 + C * 500
        assert not MarkedText(text).has_documents()
        assert sum(hashed) <= len(text)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (f"{O}a{C}", "without a tag.*trusted=True"),
            (SEEN[:40], "cut or changed after it was marked"),
            (SEEN[40:], "cut or changed after it was marked"),
            (f"[[rm:doc:{'0' * 24}]]a{C}", "RAG_MIDDLE_MARKER_KEY"),
        ],
        ids=itertools.count(),
    )
    def test_the_warning_says_what_may_have_happened(self, text: str, said: str) -> None:
        with pytest.warns(UnreadMarkersWarning, match=said) as caught:
            parse(text)
        assert caught[0].filename == __file__


class TestKey:
    def marked_elsewhere(
        self, key: str | None, code: str = "from rag_middle import mark; print(mark('Lyon.'))"
    ) -> str:
        environment = {name: v for name, v in os.environ.items() if name != MARKER_KEY_VARIABLE}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment | ({MARKER_KEY_VARIABLE: key} if key else {}),
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
    def test_a_process_that_forks_before_it_marks_anything_shares_it(self) -> None:
        code = "import os, rag_middle\nif os.fork(): os.wait()\nprint(rag_middle.mark('Lyon.'))"
        child, parent = self.marked_elsewhere(None, code).splitlines()
        assert child == parent

    def test_processes_agree_if_they_share_it_and_only_then(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = "of all workers, and long enough to be one"
        shared, alone = self.marked_elsewhere(key), self.marked_elsewhere(None)
        assert alone not in (shared, mark("Lyon."))
        with pytest.warns(UnreadMarkersWarning, match=MARKER_KEY_VARIABLE):
            assert parse(shared) == ContextPrompt(suffix=shared)
        for end in ("", "\n", "\r\n"):  # of a file
            monkeypatch.setenv(MARKER_KEY_VARIABLE, key + end)
            assert mark("Lyon.") == shared
        assert texts_of(parse(shared)) == ["Lyon."]
        assert texts_of(parse(alone, trusted=True)) == ["Lyon."]

    def test_a_short_one_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(MARKER_KEY_VARIABLE, "secret")
        with pytest.raises(PromptError, match=r"has 6 characters.*token_hex"):
            mark("Lyon.")


class TestTrustedText:
    def test_holds_documents_marked_by_hand(self) -> None:
        found = parse(f"Read [[~rm:doc]]: {O}a{C}\n{O}b [[~/rm:doc]]{C}\nQ?", trusted=True)
        assert found == ContextPrompt("Read [[rm:doc]]: ", ["a", f"b {C}"], "Q?", "\n")

    @pytest.mark.parametrize(
        ("text", "position"),
        [
            (f"ab{O}c", 2),
            (f"{O}c{C}\n{O}d", 22 + 1),
            (f"ab{C}", 2),
            (f"{O}c{C}{C}", 22),
            (f"{O}a{O}b{C}{C}", 0),
            (f"{O}a[[/rm:text]]", 0),
        ],
    )
    def test_unbalanced_markers_are_refused_where_they_stand(
        self, text: str, position: int
    ) -> None:
        with pytest.raises(MarkerError, match="has no partner") as caught:
            parse(text, trusted=True)
        assert caught.value.position == position
        assert caught.value.excerpt in text
        assert caught.value.excerpt.find(text[position : position + 4]) >= 0


A, B, D = map(mark, "abd")


class TestSeparator:
    def test_is_the_gap_between_the_documents(self) -> None:
        found = parse(f"{A}\n{B}\nQuestion?")
        assert (found.separator, found.suffix) == ("\n", "Question?")

    def test_is_the_most_common_gap(self) -> None:
        found = parse(f"{A} {B}\n{D}\n{A}\n\nQ")
        assert (found.separator, found.suffix) == ("\n", "\nQ")

    @pytest.mark.parametrize("chosen", ["\n---\n", "\n\n* * *\n", ", ", "\n__\n"])
    def test_may_be_of_signs(self, chosen: str) -> None:
        found = parse(f"Read.{A}{chosen}{B}{chosen}{D}\nQuestion?")
        assert [document.text for document in found.documents] == ["a", "b", "d"]
        assert (found.separator, found.suffix) == (chosen, "\nQuestion?")

    def test_is_added_after_the_last_document_where_it_is_missing(self) -> None:
        found = parse(f"{A}\n{B}</documents>")
        assert found.text == "a\nb\n</documents>"

    @pytest.mark.parametrize("blank", ["", "\n", "\n\n", " \n"])
    def test_of_a_single_document_is_the_blank_lines_after_it(self, blank: str) -> None:
        found = parse(f"{A}{blank}  Question?")
        assert (found.separator, found.suffix) == (blank, "  Question?")


class TestOtherTextBetweenDocuments:
    TEXT = f"U: {mark('old')} Why? A: so. U: {A}\n{B}\nAnd?"

    def test_is_refused_by_name_with_the_way_out(self) -> None:
        with pytest.raises(MarkerError, match=r"'Why\? A: so\. U:' stands between .*unmark"):
            parse(self.TEXT)

    def test_stays_in_the_prefix_if_the_last_group_is_asked_for(self) -> None:
        found = parse(self.TEXT, groups="last")
        assert found == ContextPrompt("U: old Why? A: so. U: ", ["a", "b"], "And?", "\n")
