"""What the invented world is made of: kinds of things, what is said of them, and in which words.

Every sentence names its subject one word before the value; a question names its subject; names are
two invented words, so that the last one tells them apart. A model of a million parameters learns to
find and copy under these rules, and takes far longer without them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.reader.names import code, name_word

__all__ = ["KINDS", "Attribute", "Kind"]

Draw = Callable[[random.Random], str]


@dataclass(frozen=True)
class Attribute:
    """One kind of fact.

    Attributes:
        key: its name in records, such as ``person.phone``.
        value: draws a value.
        sentences: ways to state it; ``{name}`` comes before ``{value}`` in each.
        questions: ways to ask for it, each with ``{name}``.
    """

    key: str
    value: Draw
    sentences: Sequence[str]
    questions: Sequence[str]


@dataclass(frozen=True)
class Kind:
    """One kind of thing: how it is named, and what may be said of it."""

    name: str
    title: Draw
    attributes: Sequence[Attribute]


def _two_words(rng: random.Random) -> str:
    return f"{name_word(rng)} {name_word(rng)}"


def _number(low: int, high: int, form: str = "{}") -> Draw:
    return lambda rng: form.format(rng.randrange(low, high))


def _one_of(words: str) -> Draw:
    choices = words.split()
    return lambda rng: rng.choice(choices)


def _date(rng: random.Random) -> str:
    months = "January February March April May June July August September October November December"
    return f"{rng.randrange(1, 29)} {rng.choice(months.split())}"


def _phone(rng: random.Random) -> str:
    return f"{rng.randrange(200, 1000)}-{rng.randrange(1000, 10000)}"


def _kind(name: str, *facts: tuple[str, Draw, Sequence[str], Sequence[str]]) -> Kind:
    """A kind of thing.

    Args:
        name: of the kind.
        facts: that may be stated: a noun, its value, and sentences and questions beside those that
            every noun allows.
    """
    attributes = []
    for noun, value, sentences, questions in facts:
        stated = (
            f"The {noun} of {{name}} is {{value}}.",
            f"For {{name}}, {{value}} is the {noun}.",
        )
        asked = (f"What is the {noun} of {{name}}?", f"Tell me the {noun} of {{name}}.")
        key = f"{name}.{noun.replace(' ', '_')}"
        attributes.append(Attribute(key, value, (*stated, *sentences), (*asked, *questions)))
    return Kind(name, _two_words, tuple(attributes))


KINDS: tuple[Kind, ...] = (
    _kind(
        "person",
        (
            "phone number",
            _phone,
            ["To call {name} dial {value}.", "You can reach {name} at {value}."],
            ["How can I call {name}?", "At which number can {name} be reached?"],
        ),
        (
            "birth year",
            _number(1920, 2010),
            ["The birth year of {name} was {value}.", "Year of birth of {name}: {value}."],
            ["When was {name} born?", "In which year was {name} born?"],
        ),
        (
            "home town",
            name_word,
            ["{name} calls {value} home.", "The family of {name} left {value}."],
            ["Where did {name} grow up?", "Where does {name} come from?"],
        ),
        (
            "staff number",
            _number(10000, 100000),
            ["At work, {name} is {value}.", "The badge of {name} reads {value}."],
            [
                "Which number is on the badge of {name}?",
                "Under which staff number does {name} work?",
            ],
        ),
        (
            "instrument",
            _one_of("violin piano flute harp drum guitar trumpet cello organ oboe banjo lute"),
            ["{name} plays the {value}.", "In the band, {name} plays the {value}."],
            ["Which instrument does {name} play?", "What does {name} play in the band?"],
        ),
    ),
    _kind(
        "town",
        (
            "population",
            _number(1000, 100000),
            ["{name} has {value} inhabitants.", "The town of {name} counts {value}."],
            ["How many people live in {name}?", "How many people does {name} count?"],
        ),
        (
            "river",
            name_word,
            ["The river at {name} is {value}.", "Through {name} flows {value}."],
            ["On which river does {name} lie?", "Which river flows through {name}?"],
        ),
        (
            "mayor",
            _two_words,
            ["{name} elected {value} as mayor.", "The mayor in {name} is {value}."],
            ["Who is the mayor in {name}?", "Whom did {name} elect as its mayor?"],
        ),
        (
            "postal code",
            _number(10000, 100000),
            ["Letters to {name} carry {value}.", "{name} uses {value} as postal code."],
            ["Which code do letters to {name} carry?", "Which postal code does {name} use?"],
        ),
    ),
    _kind(
        "company",
        (
            "founder",
            _two_words,
            ["The founder of {name} was {value}.", "{name} names {value} as founder."],
            ["Who founded {name}?", "By whom was {name} started?"],
        ),
        (
            "head office",
            name_word,
            ["Visit {name} in {value}.", "{name} calls {value} its base."],
            ["Where is {name} based?", "Where do the managers of {name} sit?"],
        ),
        (
            "tax number",
            code,
            ["For tax, {name} is {value}.", "{name} uses {value} for tax."],
            ["Under which number does {name} pay tax?", "As what is {name} listed?"],
        ),
    ),
    _kind(
        "device",
        (
            "price",
            _number(11, 1000, "${}"),
            ["{name} costs {value}.", "In shops, {name} costs {value}."],
            ["How much does {name} cost?", "For how much does {name} sell?"],
        ),
        (
            "battery life",
            _number(2, 100, "{} hours"),
            ["One charge of {name} lasts {value}.", "{name} runs {value} per charge."],
            ["How long does {name} run?", "How long does one charge of {name} last?"],
        ),
        (
            "weight",
            _number(20, 5000, "{} grams"),
            ["{name} weighs {value}.", "On the scale, {name} shows {value}."],
            ["How much does {name} weigh?", "How heavy is {name}?"],
        ),
        (
            "reset code",
            code,
            ["To reset {name} enter {value}.", "{name} needs {value} to reset."],
            ["How do I reset {name}?", "Which code restarts {name}?"],
        ),
    ),
    _kind(
        "event",
        (
            "date",
            _date,
            ["The day of {name} is {value}.", "Doors of {name} open {value}."],
            ["When does {name} take place?", "On which day is {name}?"],
        ),
        (
            "room",
            _number(100, 1000),
            ["{name} uses {value} as its room.", "The room for {name} is {value}."],
            ["In which room is {name} held?", "Where do guests of {name} meet?"],
        ),
        (
            "host",
            _two_words,
            ["The host at {name} is {value}.", "At {name}, {value} greets the guests."],
            ["Who hosts {name}?", "Who greets the guests of {name}?"],
        ),
    ),
    _kind(
        "recipe",
        (
            "baking time",
            _number(5, 100, "{} minutes"),
            ["In the oven, {name} takes {value}.", "Bake {name} for {value}."],
            ["How long should I bake {name}?", "How long does {name} stay in the oven?"],
        ),
        (
            "oven heat",
            _number(100, 300, "{} degrees"),
            ["{name} needs {value} of heat.", "Heat the oven for {name} to {value}."],
            ["How hot should the oven be for {name}?", "At what heat does {name} bake?"],
        ),
        (
            "main ingredient",
            _one_of(
                "oats rice beans plums pears figs corn leeks nuts beets peas squash honey barley"
            ),
            ["{name} needs {value} most.", "Most of {name} is {value}."],
            ["What is {name} made of?", "What do I need for {name}?"],
        ),
    ),
    _kind(
        "policy",
        (
            "notice period",
            _number(2, 100, "{} days"),
            ["{name} requires {value} of notice.", "Under {name} give {value} of notice."],
            ["How much notice does {name} ask for?", "How much notice must I give under {name}?"],
        ),
        (
            "form",
            code,
            ["{name} requires {value} as its form.", "The paper for {name} is {value}."],
            ["Which form does {name} need?", "What do I fill in for {name}?"],
        ),
        (
            "approver",
            _two_words,
            ["{name} needs {value} to agree.", "Requests under {name} need {value}."],
            ["Who approves {name}?", "To whom do requests under {name} go?"],
        ),
    ),
    _kind(
        "book",
        (
            "author",
            _two_words,
            ["The writer of {name} is {value}.", "The cover of {name} names {value}."],
            ["Who wrote {name}?", "Who stands on the cover of {name}?"],
        ),
        (
            "page count",
            _number(40, 1000, "{} pages"),
            ["{name} fills {value}.", "A copy of {name} has {value}."],
            ["How many pages does {name} have?", "How long is {name}?"],
        ),
        (
            "shelf mark",
            code,
            ["Readers find {name} at {value}.", "The library keeps {name} at {value}."],
            ["Where in the library is {name}?", "Where does {name} stand?"],
        ),
    ),
)
