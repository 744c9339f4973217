"""Different equations are different texts; raised numbers are no other numbers."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest

from rag_middle.retrieval.html import html_text

NAMES = ["<mi>a</mi>", "<mi>ab</mi>", "<mn>1</mn>", "<mn>12</mn>", "<mn>2</mn>"]


def _composed(parts: list[str]) -> list[str]:
    """Equations of one sign, or two factors or terms, over parts."""
    made = []
    for one in parts:
        made.append(f"<msqrt>{one}</msqrt>")
    for one, other in itertools.product(parts, parts):
        made += [f"<{tag}>{one}{other}</{tag}>" for tag in ("mfrac", "msup", "msub", "mroot")]
        made.append(f'<mfrac linethickness="0">{one}{other}</mfrac>')
        made.append(f"<mrow>{one}{other}</mrow>")
        made.append(f"<mrow>{one}<mo>+</mo>{other}</mrow>")
    return made


def _read(equation: str) -> str:
    return html_text(f"<math>{equation}</math>")[1]


def test_different_equations_are_different_texts() -> None:
    simple = _composed(NAMES)
    draw = random.Random(0)
    deep = _composed([*draw.sample(simple, 60), *NAMES])
    equations = [*NAMES, *simple, *draw.sample(deep, 8000)]
    texts: dict[str, str] = {}
    for equation in equations:
        # A row in a row is one row.
        bare = equation.replace("<mrow>", "").replace("</mrow>", "")
        plain = bare if equation.startswith("<mrow>") else equation
        assert texts.setdefault(_read(equation), plain) == plain


@pytest.mark.parametrize(
    ("equation", "text"),
    [
        ("<mn>2</mn><mfrac><mn>1</mn><mn>2</mn></mfrac>", "2 (1/2)"),
        ("<mo>(</mo><mfrac linethickness='0pt'><mi>n</mi><mi>k</mi></mfrac><mo>)</mo>",
         "(binom(n, k))"),
        ("<mfrac linethickness='0.5'><mi>n</mi><mi>k</mi></mfrac>", "n/k"),
        ("<mn>1</mn><mo>/</mo><mfrac><mi>b</mi><mi>c</mi></mfrac>", "1/(b/c)"),
        ("<mn>3</mn><mspace/><mn>4</mn>", "3 4"),
        ("<msub><mi>x</mi><mn>1</mn></msub><mn>0</mn>", "x_1 0"),
        ("<mmultiscripts><mi>C</mi><mprescripts/><mn>6</mn><mn>14</mn></mmultiscripts>",
         "_6^14 C"),
        ("<mi>f</mi><mfenced open='[' close=']' separators=';'><mi>x</mi><mi>y</mi></mfenced>",
         "f[x;y]"),
        ("<mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>0</mn></mtd></mtr></mtable>", "[1, 0]"),
    ],
)  # fmt: skip
def test_equations_say_what_they_mean(equation: str, text: str) -> None:
    assert _read(equation) == text


@pytest.mark.parametrize("prefix", ["m", "mml"])
def test_elements_with_a_prefix_mean_the_same(prefix: str) -> None:
    equations = _composed(NAMES)
    equations.append("<semantics><mi>a</mi><annotation-xml><p>b</p></annotation-xml></semantics>")
    for equation in equations:
        page = f"<math>{equation}</math> is <p>so</p>"
        prefixed = re.sub(r"<(/?)(?!p)(?=[a-z])", rf"<\1{prefix}:", page)
        assert html_text(prefixed) == html_text(page)
        assert html_text(page.replace("<m", "<x:m").replace("</m", "</x:m")) == html_text(page)


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("6 × 10<sup>23</sup> per", "6 × 10^23 per"),
        ("10<sup>-3</sup>g", "10^-3 g"),
        ("2<sup>n</sup>", "2^n"),
        ("Ca<sup>2+</sup>", "Ca^2+"),
        ("the 1<sup>st</sup> and 2<sup>e</sup>", "the 1st and 2e"),
        ("shown.<sup>3</sup>", "shown.3"),
        ("H<sub>2</sub>O, C<sub>6</sub>H<sub>12</sub>", "H2O, C6H12"),
        ("101<sub>2</sub>", "101_2"),
        ("log<sub>10</sub>2", "log10 2"),
        ("10<sup>3/2</sup>g", "10^(3/2)g"),
        ("2<sup>10n</sup>, 2<sup>n−1</sup>", "2^(10n), 2^(n−1)"),
        ("10<sup>12±1</sup>", "10^(12±1)"),
        ("2<sup>10\u2009000</sup>", "2^(10 000)"),
        ("3<sup>(n)</sup>, 2<sup>ab</sup>", "3^(n), 2^ab"),
        ("5<sup>3</sup>/<sub>4</sub>", "5 3/4"),
        ("1<sup>1</sup>⁄<sub>2</sub> cups", "1 1⁄2 cups"),
        ("<sup>1</sup>/<sub>2</sub> of x<sup>2</sup>/y", "1/2 of x^2/y"),
        ("x<sub>n+1</sub>, x<sub>i</sub>y", "x_(n+1), xi y"),
        ("1<sub>1/2</sub>, 3<sub>n</sub>4", "1_(1/2), 3_n 4"),
        ("In 2019.<sup>3</sup> So", "In 2019.^3 So"),
        ("In 2019<sup>[3]</sup>, 2020<sup>*</sup>", "In 2019[3], 2020*"),
        (
            "M<sup>me</sup>, 2<sup>nd</sup>, A2<sup>TM</sup>, 3<sup>ème</sup>",
            "Mme, 2nd, A2TM, 3ème",
        ),
        ("(a+b)<sup>2</sup>, H<sub>2</sub>O<sub>(l)</sub>", "(a+b)^2, H2O(l)"),
        ("2<math><mfrac><mn>1</mn><mn>2</mn></mfrac></math>3", "2 1/2 3"),
    ],
)
def test_raised_and_lowered_numbers_join_no_others(tmp_path: Path, page: str, text: str) -> None:
    assert html_text(f"<p>{page}</p>")[1] == text
    if "math" in page:
        return
    docx = pytest.importorskip("docx")
    from rag_middle.retrieval.loading import load

    document, paragraph = docx.Document(), None
    paragraph = document.add_paragraph()
    align = ""
    for part in page.replace("<", "\n<").replace(">", ">\n").split("\n"):
        if part.startswith("<"):
            align = "" if "/" in part else part
            continue
        for character in part[:1], part[1:]:  # Word cuts runs anywhere
            run = paragraph.add_run(character)
            run.font.superscript = align == "<sup>" or None
            if align == "<sub>":
                run.font.subscript = True
    document.save(str(tmp_path / "a.docx"))
    [record] = load(tmp_path).records
    assert record.text == text


def test_raised_text_in_raised_text_is_a_power_of_a_power() -> None:
    assert html_text("2<sup>2<sup>3</sup></sup>4")[1] == "2^(2^3)4"
    assert html_text("2<sup><i>n</i>+<i>m</i>+<b>1</b></sup>")[1] == "2^(n+m+1)"
    assert html_text("<sup>14</sup>6<sup>3<br>4</sup>")[1] == "14 6^3\n4"
    assert html_text("2<sup>" * 20_000 + "3" + "</sup>" * 20_000)[1].endswith("^3)))))))")
