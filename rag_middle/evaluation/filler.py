"""Text that says nothing of any question, as long as the documents it stands for."""

from __future__ import annotations

import random
from itertools import cycle, islice

from rag_middle.documents import Document

__all__ = ["natural_filler", "random_filler"]

#: Everyday English without names, dates or figures, so that it answers no question.
_SENTENCES = """
The road follows the edge of the wood and then climbs slowly towards the hills.
In the morning the grass is wet and the air smells of leaves.
A dog barks somewhere behind the houses, and another one answers it.
Most of the shops are still closed, but the bakery has its door open.
People stop there on their way to work and talk about the weather.
It rained a little during the night, so the gutters are full of water.
Someone has left an umbrella on the bench beside the bus stop.
The bus is late again, which surprises nobody who takes it every day.
A woman reads a book while she waits and turns the pages quickly.
Two children count the cars that pass and forget how many there were.
By noon the clouds have gone and the square fills with light.
The tables outside the cafe are small, round and a little unsteady.
Cups and plates are carried in and out, and spoons are dropped now and then.
An old man feeds the pigeons although a sign asks him not to.
They gather around his shoes and quarrel over every crumb.
In the park the benches under the trees are taken first.
The pond is shallow, and ducks walk through it rather than swim.
A gardener rakes the path and leaves neat lines in the gravel.
Behind the fence a tennis ball is hit back and forth for a long time.
The wind turns the leaves over so that their pale side shows.
Washing hangs between the windows of the narrow street.
From one of the kitchens comes the smell of onions and warm bread.
Someone is learning to play the piano and begins the same tune again.
The clock above the door is a few minutes slow, as it has always been.
In the afternoon the library is the quietest room for miles.
Readers sit far apart and look up whenever a chair is moved.
The shelves near the window have faded a little in the sun.
A cleaner pushes his cart along the corridor and hums to himself.
Outside, a van is being unloaded, box after box.
Nobody seems to know what is in the boxes, and nobody asks.
Towards evening the swallows fly lower and the light turns yellow.
Lamps are switched on behind curtains, first one and then many.
The last customers leave the market with bags that are too heavy.
Stalls are folded up, swept and pushed against the wall.
A cat crosses the empty street without looking to either side.
The river is calm enough to show the bridge a second time, upside down.
Boats are tied up along the bank and knock softly against each other.
On the far side a train goes by with all its windows lit.
It takes a while until it can no longer be heard.
Then there is only the water, and now and then a bicycle bell.
Winter changes little here except for the colour of things.
Snow rarely stays for long, and when it does, everyone talks about it.
Gloves are lost and found again, usually in the pocket of another coat.
The stove needs time before the room is warm.
Tea is made, forgotten and made once more.
Letters lie on the table, some of them opened and some of them not.
A drawer sticks and has to be pulled with both hands.
The stairs creak in the same three places every night.
In spring the window boxes are planted again, mostly with the same flowers.
Seeds are bought too early and kept on the sill until it is time.
Some come up within a week, and some do not come up at all.
Neighbours lend each other ladders, buckets and advice.
A fence is painted green because that was the paint that was left.
Summer is long, and the afternoons are quiet.
Curtains are drawn against the heat, and fans turn in the corners.
Bread dries out, butter melts, and fruit has to be eaten quickly.
Towards the end of it the first leaves turn brown at the edges.
Then the road along the wood smells of mushrooms and wet bark.
Walkers come back with mud on their boots and say that it was worth it.
The door is closed, the boots are left outside, and the day is over.
""".split("\n")[1:-1]


def natural_filler(document: Document, seed: str) -> Document:
    """Prose about nothing in particular, of as many characters, to the end of a word.

    Args:
        document: gives the length, with its title and metadata, and the id.
        seed: where in the text to begin; the same text for the same seed, in any process.
    """
    length = len(document.render())
    start = random.Random(seed).randrange(len(_SENTENCES))
    # Longer than `length` by more than a word: no sentence is shorter than twenty characters.
    text = " ".join(islice(cycle(_SENTENCES), start, start + 2 + length // 20))
    return Document(text[: text.index(" ", length)], id=document.id)


def random_filler(document: Document, seed: str) -> Document:
    """The document's own words, shuffled: as many tokens, more or less, and no statement."""
    words = document.render().split()
    random.Random(seed).shuffle(words)
    return Document(" ".join(words), id=document.id)
