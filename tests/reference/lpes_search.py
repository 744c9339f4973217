"""The genetic search of LPES (arXiv:2606.27705), one individual at a time, and its fitness.

Genes are x and y of every control point in turn; x counts layers, y tenths.
"""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

from transformers import PreTrainedModel

Genes = tuple[int, ...]

POPULATION, PARENTS, MUTANTS, CROSSOVERS, TRIES = 32, 12, 16, 4, 4


def is_valid(genes: Genes, num_layers: int) -> bool:
    """X rises strictly within the layers, y lies from 1.0 to 2.0."""
    xs, ys = genes[::2], genes[1::2]
    rising = all(left < right for left, right in pairwise(xs))
    return rising and xs[0] >= 0 and xs[-1] <= num_layers - 1 and all(10 <= y <= 20 for y in ys)


def may_move(genes: Genes, at: int, moved: int, num_layers: int) -> bool:
    """Whether a gene stays within equation 9: x between the neighbours that it had, or on one."""
    if at % 2:
        return 10 <= moved <= 20
    low = genes[at - 2] if at else 0
    high = genes[at + 2] if at + 2 < len(genes) else num_layers - 1
    return low <= moved <= high


def children(one: Genes, other: Genes, num_layers: int) -> list[tuple[Genes, ...]]:
    """The valid children of every cut among the genes."""
    return [
        tuple(
            child
            for child in (one[:cut] + other[cut:], other[:cut] + one[cut:])
            if is_valid(child, num_layers)
        )
        for cut in range(1, len(one))
    ]


def search(
    start: Genes,
    num_layers: int,
    generations: int,
    fitness: Callable[[Genes], float],
    rng: random.Random,
) -> list[tuple[float, Genes]]:
    """The last population, the fittest first; `fitness` is asked for every individual."""

    def mutant(genes: Genes) -> Genes:
        while True:
            child = list(genes)
            for at, gene in enumerate(genes):
                while True:
                    child[at] = gene + rng.randint(-2, 2)
                    if may_move(genes, at, child[at], num_layers):
                        break
            if is_valid(tuple(child), num_layers):
                return tuple(child)

    def scored(genes: Genes) -> tuple[float, Genes]:
        return fitness(genes), genes

    def best(individuals: Sequence[tuple[float, Genes]]) -> list[tuple[float, Genes]]:
        return sorted(individuals, key=lambda pair: pair[0], reverse=True)  # stable

    first = [start, *(mutant(start) for _ in range(POPULATION - 1))]
    population = [scored(genes) for genes in first]
    for _ in range(generations):
        parents = best(population)[:PARENTS]
        mutated = [mutant(rng.choice(parents)[1]) for _ in range(MUTANTS)]
        pairs = []
        for _ in range(CROSSOVERS):
            for _ in range(TRIES):
                one, other = (genes for _, genes in rng.sample(parents, 2))
                pair = children(one, other, num_layers)[rng.randrange(1, len(one)) - 1]
                if pair:
                    pairs.append(pair)
                    break
        population = [*parents, *(scored(genes) for genes in mutated)]
        for pair in pairs:
            population.append(best([scored(child) for child in pair])[0])
    return best(population)


def weighted_accuracy(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[list[int]]],
    answers: Sequence[Sequence[Sequence[str]]],
    decode: Callable[[list[int]], str],
    *,
    max_new_tokens: int,
) -> float:
    """0.2, 0.3 and 0.5 times the accuracy with the answer at begin, in the middle and at the end.

    Args:
        model: that writes, greedily.
        prompts: token ids of each question at the three places.
        answers: of each of these prompts; right is what contains one of them.
        decode: text of generated ids.
        max_new_tokens: of an answer.
    """
    right = [0, 0, 0]
    for of_question, of_answers in zip(prompts, answers, strict=True):
        for place, (ids, references) in enumerate(zip(of_question, of_answers, strict=True)):
            given = model.dummy_inputs["input_ids"].new_tensor([ids])
            whole = model.generate(given, do_sample=False, max_new_tokens=max_new_tokens)
            said = decode(whole[0, len(ids) :].tolist())
            right[place] += any(answer in said for answer in references)
    return sum(
        weight * count / len(prompts) for weight, count in zip((0.2, 0.3, 0.5), right, strict=True)
    )
