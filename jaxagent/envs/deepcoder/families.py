"""Problems with reference programs and input generators: unlimited by seed, to train and test without any data set.

The reference of a family is a function of `references`: its own source text is the reference program, and calling it
gives the expected outputs. `pipeline` composes its program from a table, so that most of its problems are new.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from jaxagent.envs.deepcoder import references

Shape = Literal["int", "ints", "text", "words", "grid", "bool"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclasses.dataclass(frozen=True)
class Family:
    """One kind of problem.

    Attributes:
      function: the reference, whose docstring is the statement. arguments: name and shape of each of its arguments.
      result: shape of what it returns. draw: generator -> arguments of one test.
    """

    function: Callable[..., Any]
    arguments: tuple[tuple[str, Shape], ...]
    result: Shape
    draw: Callable[[np.random.Generator], tuple[Any, ...]]

    @property
    def name(self) -> str:
        """The family's name: that of its function."""
        return self.function.__name__


@dataclasses.dataclass(frozen=True)
class Problem:
    """One problem: a statement, a program with a function `solve`, and that function to be called here."""

    family: str
    statement: str
    arguments: tuple[tuple[str, Shape], ...]
    result: Shape
    program: str
    solve: Callable[..., Any]
    draw: Callable[[np.random.Generator], tuple[Any, ...]]


def names() -> tuple[str, ...]:
    """All families."""
    return ("pipeline", *FAMILIES)


def draw_problem(name: str, generator: np.random.Generator) -> Problem:
    """A problem of the family `name`."""
    if name == "pipeline":
        return _pipeline(generator)
    family = FAMILIES[name]
    passed = ", ".join(argument for argument, _ in family.arguments)
    source, statement = _source_and_docstring(family.function)
    program = f"{source}\n\ndef solve({passed}):\n    return {name}({passed})\n"
    return Problem(name, statement, family.arguments, family.result, program, family.function, family.draw)


def stdin_program(problem: Problem) -> str:
    """The reference as a program that reads its arguments from standard input and prints the result."""
    lines = ["import sys", "", "", problem.program, "", 'lines = iter(sys.stdin.read().split("\\n"))']
    lines += [f"{name} = {_READERS[shape]}" for name, shape in problem.arguments]
    lines.append(f"result = solve({', '.join(name for name, _ in problem.arguments)})")
    return "\n".join([*lines, _PRINTERS[problem.result], ""])


def stdin_text(problem: Problem, arguments: tuple[Any, ...]) -> str:
    """The arguments as a program reads them."""
    shapes = [shape for _, shape in problem.arguments]
    return "".join(_written(shape, value) for shape, value in zip(shapes, arguments, strict=True))


def stdout_text(problem: Problem, result: Any) -> str:
    """The result as a program prints it."""
    return _written(problem.result, result) if problem.result != "grid" else _rows(result)


def input_format(problem: Problem) -> str:
    """In words, how the arguments stand in the input."""
    return "\n".join(f"- {name}: {_LAYOUTS[shape]}" for name, shape in problem.arguments)


def output_format(problem: Problem) -> str:
    """In words, how the result is printed."""
    return {"bool": "yes or no", "grid": "one line for each row, numbers separated by spaces"}.get(
        problem.result, _LAYOUTS[problem.result]
    )


@functools.cache
def _source_and_docstring(function: Callable[..., Any]) -> tuple[str, str]:
    """(source text without the docstring, the docstring on one line)."""
    lines = inspect.getsource(function).split("\n")
    definition = ast.parse("\n".join(lines)).body[0]
    statement = ast.get_docstring(definition)
    del lines[definition.body[0].lineno - 1 : definition.body[0].end_lineno]
    return "\n".join(lines), " ".join(statement.split())


_LAYOUTS: Mapping[str, str] = {
    "int": "one line with a whole number",
    "ints": "one line of whole numbers separated by spaces",
    "text": "one line of text",
    "words": "one line of words separated by spaces",
    "grid": "a line with the number of rows, then one line for each row, whole numbers separated by spaces",
    "bool": "one line, yes or no",
}
_READERS: Mapping[str, str] = {
    "int": "int(next(lines))",
    "ints": "[int(word) for word in next(lines).split()]",
    "text": "next(lines)",
    "words": "next(lines).split()",
    "grid": "[[int(word) for word in next(lines).split()] for _ in range(int(next(lines)))]",
}
_PRINTERS: Mapping[str, str] = {
    "int": "print(result)",
    "ints": "print(*result)",
    "text": "print(result)",
    "words": "print(*result)",
    "grid": "for row in result:\n    print(*row)",
    "bool": 'print("yes" if result else "no")',
}


def _written(shape: str, value: Any) -> str:
    if shape == "grid":
        return f"{len(value)}\n{_rows(value)}"
    if shape == "bool":
        return "yes\n" if value else "no\n"
    return (" ".join(map(str, value)) if shape in ("ints", "words") else str(value)) + "\n"


def _rows(grid: list[list[int]]) -> str:
    return "".join(" ".join(map(str, row)) + "\n" for row in grid)


def _whole(low: int, high: int) -> Callable[[np.random.Generator], int]:
    return lambda generator: int(generator.integers(low, high + 1))


def _list(least: int, most: int, low: int, high: int) -> Callable[[np.random.Generator], list[int]]:
    return lambda generator: generator.integers(low, high + 1, int(generator.integers(least, most + 1))).tolist()


def _string(least: int, most: int, letters: str) -> Callable[[np.random.Generator], str]:
    return lambda generator: "".join(generator.choice(list(letters), int(generator.integers(least, most + 1))))


def _word_list(least: int, most: int, letters: str) -> Callable[[np.random.Generator], list[str]]:
    word = _string(1, 4, letters)
    return lambda generator: [word(generator) for _ in range(int(generator.integers(least, most + 1)))]


def _grid(low: int, high: int, zeros: float = 0.0) -> Callable[[np.random.Generator], list[list[int]]]:
    def draw(generator: np.random.Generator) -> list[list[int]]:
        shape = tuple(int(side) for side in generator.integers(2, 7, 2))
        cells = np.where(generator.random(shape) < zeros, 0, generator.integers(low, high + 1, shape))
        cells[0, 0] = cells[-1, -1] = 0 if zeros else cells[0, 0]
        return cells.tolist()

    return draw


def _intervals(generator: np.random.Generator) -> list[list[int]]:
    pairs = np.sort(generator.integers(0, 40, (int(generator.integers(1, 8)), 2)), axis=1)
    return pairs.tolist()


def _brackets(generator: np.random.Generator) -> tuple[str]:
    text = ""
    while len(text) < 2 * int(generator.integers(1, 9)):
        depth = text.count("(") - text.count(")")
        text += "(" if depth == 0 or generator.random() < 0.5 else ")"
    if generator.random() < 0.7:
        text += ")" * (text.count("(") - text.count(")"))
    return (text,)


def _windows(generator: np.random.Generator) -> tuple[list[int], int]:
    numbers = _list(3, 14, -20, 20)(generator)
    return numbers, int(generator.integers(1, len(numbers) + 1))


def _coins(generator: np.random.Generator) -> tuple[int, list[int]]:
    coins = sorted(set(generator.integers(1, 13, int(generator.integers(1, 5))).tolist()))
    return int(generator.integers(1, 60)), coins


def _span(generator: np.random.Generator) -> tuple[int, int]:
    low = int(generator.integers(0, 300))
    return low, low + int(generator.integers(0, 200))


def _all(*draws: Callable[[np.random.Generator], Any]) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    return lambda generator: tuple(draw(generator) for draw in draws)


_NUMBERS, _TEXT, _WORDS, _GRID = (("numbers", "ints"),), (("text", "text"),), (("words", "words"),), (("grid", "grid"),)
_TABLE = (
    Family(references.longest_run, _NUMBERS, "int", _all(_list(0, 20, 1, 3))),
    Family(references.run_lengths, _TEXT, "text", _all(_string(1, 20, "abc"))),
    Family(
        references.shift_letters, (*_TEXT, ("shift", "int")), "text", _all(_string(1, 15, LETTERS), _whole(-30, 30))
    ),
    Family(references.bracket_depth, _TEXT, "int", _brackets),
    Family(references.rotate_right, (*_NUMBERS, ("steps", "int")), "ints", _all(_list(1, 12, -9, 9), _whole(0, 30))),
    Family(references.window_maxima, (*_NUMBERS, ("width", "int")), "ints", _windows),
    Family(references.nth_largest, (*_NUMBERS, ("n", "int")), "int", _all(_list(1, 12, 0, 15), _whole(1, 6))),
    Family(references.count_change, (("amount", "int"), ("coins", "ints")), "int", _coins),
    Family(references.rising_subsequence, _NUMBERS, "int", _all(_list(1, 14, 0, 30))),
    Family(references.shortest_walk, _GRID, "int", _all(_grid(1, 1, 0.7))),
    Family(references.turn_grid, _GRID, "grid", _all(_grid(0, 20))),
    Family(references.merge_intervals, _GRID, "grid", _all(_intervals)),
    Family(references.in_base, (("number", "int"), ("base", "int")), "text", _all(_whole(0, 5000), _whole(2, 16))),
    Family(references.commonest_word, _WORDS, "text", _all(_word_list(1, 14, "ab"))),
    Family(references.last_in_circle, (("count", "int"), ("step", "int")), "int", _all(_whole(1, 60), _whole(1, 12))),
    Family(references.count_primes, (("low", "int"), ("high", "int")), "int", _span),
    Family(
        references.edit_distance,
        (*_TEXT, ("other", "text")),
        "int",
        _all(_string(1, 10, "abcd"), _string(1, 10, "abcd")),
    ),
    Family(references.largest_block_sum, _NUMBERS, "int", _all(_list(1, 14, -15, 15))),
    Family(references.pairs_with_sum, (*_NUMBERS, ("target", "int")), "int", _all(_list(2, 16, 0, 9), _whole(0, 18))),
    Family(references.anagram_groups, _WORDS, "int", _all(_word_list(1, 12, "abc"))),
    Family(
        references.some_subset_sums, (*_NUMBERS, ("target", "int")), "bool", _all(_list(1, 8, 1, 30), _whole(1, 80))
    ),
    Family(
        references.gcd_of_gaps,
        _NUMBERS,
        "int",
        lambda generator: ((np.array(_list(2, 8, 0, 12)(generator)) * int(generator.integers(1, 8))).tolist(),),
    ),
    Family(references.mirror_parts, _TEXT, "int", _all(_string(1, 14, "ab"))),
)
FAMILIES: Mapping[str, Family] = {family.name: family for family in _TABLE}

# (in words, code that gives a list, a number it may hold, its values)
_KEEP = (
    ("keep the even ones", "[x for x in numbers if x % 2 == 0]", ()),
    ("keep the odd ones", "[x for x in numbers if x % 2 != 0]", ()),
    ("keep those above {k}", "[x for x in numbers if x > {k}]", (-5, 12)),
    ("keep those that are at most {k}", "[x for x in numbers if x <= {k}]", (0, 25)),
    ("keep the multiples of {k}", "[x for x in numbers if x % {k} == 0]", (2, 5)),
    ("keep those that are not divisible by {k}", "[x for x in numbers if x % {k} != 0]", (2, 5)),
    ("keep those at the places {k}, {k} + 2, {k} + 4 and so on, counted from 0", "numbers[{k}::2]", (0, 1)),
    ("keep the first of equal numbers", "list(dict.fromkeys(numbers))", ()),
    ("leave out the first {k}", "numbers[{k}:]", (1, 3)),
)
_CHANGE = (
    ("add {k} to each", "[x + {k} for x in numbers]", (1, 20)),
    ("multiply each by {k}", "[x * {k} for x in numbers]", (2, 9)),
    ("square each", "[x * x for x in numbers]", ()),
    ("replace each by its absolute value", "[abs(x) for x in numbers]", ()),
    ("replace each by its remainder modulo {k} (from 0 to {k} - 1)", "[x % {k} for x in numbers]", (3, 11)),
    ("subtract each from {k}", "[{k} - x for x in numbers]", (0, 30)),
    (
        "replace each by the sum of the digits of its absolute value",
        "[sum(map(int, str(abs(x)))) for x in numbers]",
        (),
    ),
    ("replace each by the sum of all up to it", "[sum(numbers[: i + 1]) for i in range(len(numbers))]", ()),
    (
        "replace each but the first by its difference to the one before, and drop the first",
        "[b - a for a, b in zip(numbers, numbers[1:])]",
        (),
    ),
)
_ORDER = (
    ("sort them, the smallest first", "sorted(numbers)", ()),
    ("sort them, the largest first", "sorted(numbers, reverse=True)", ()),
    ("reverse their order", "numbers[::-1]", ()),
    (
        "sort them by their last digit (of the absolute value), equal ones in their order",
        "sorted(numbers, key=lambda x: abs(x) % 10)",
        (),
    ),
)
_FINISH = (
    ("Give the list.", "numbers", "ints"),
    ("Give their sum.", "sum(numbers)", "int"),
    ("Give the largest, or 0 where none is left.", "max(numbers, default=0)", "int"),
    ("Give the smallest, or 0 where none is left.", "min(numbers, default=0)", "int"),
    ("Give how many different ones there are.", "len(set(numbers))", "int"),
    ("Give the first minus the second plus the third and so on.", "sum(numbers[::2]) - sum(numbers[1::2])", "int"),
    ("Give the last one, or 0 where none is left.", "numbers[-1] if numbers else 0", "int"),
)


def _pipeline(generator: np.random.Generator) -> Problem:
    """Two to four steps on a list, from the tables, and what to give at the end."""
    count = int(generator.integers(2, 5))
    tables = [(_KEEP, _CHANGE, _ORDER)[int(generator.choice(3, p=[0.35, 0.45, 0.2]))] for _ in range(count)]
    sentences, lines, steps = [], [], []
    for table in tables:
        words, code, bounds = table[int(generator.integers(len(table)))]
        k = int(generator.integers(bounds[0], bounds[1] + 1)) if bounds else 0
        sentences.append(words.format(k=k))
        lines.append(f"    numbers = {code.format(k=f'({k})' if k < 0 else k)}")
        steps.append((code, k))
    words, code, result = _FINISH[int(generator.integers(len(_FINISH)))]
    numbered = "\n".join(
        f"{place}. {sentence[0].upper()}{sentence[1:]}." for place, sentence in enumerate(sentences, 1)
    )
    statement = (
        f"Start from the list numbers and do this, each step on what the one before has left:\n{numbered}\n{words}"
    )
    program = "\n".join(["def solve(numbers):", *lines, f"    return {code}", ""])

    def solve(numbers: list[int]) -> Any:
        for step, k in steps:
            numbers = _STEPS[step](list(numbers), k)
        return _ENDS[code](numbers)

    return Problem("pipeline", statement, _NUMBERS, result, program, solve, _all(_list(4, 12, -20, 40)))


def _last_digit(x: int) -> int:
    return abs(x) % 10


_OPERATIONS: tuple[Callable[[list[int], int], list[int]], ...] = (
    lambda numbers, k: [x for x in numbers if x % 2 == 0],
    lambda numbers, k: [x for x in numbers if x % 2 == 1],
    lambda numbers, k: [x for x in numbers if x > k],
    lambda numbers, k: [x for x in numbers if x <= k],
    lambda numbers, k: [x for x in numbers if math.gcd(x, k) == k],
    lambda numbers, k: [x for x in numbers if math.gcd(x, k) != k],
    lambda numbers, k: [x for place, x in enumerate(numbers) if place % 2 == k],
    lambda numbers, k: [x for place, x in enumerate(numbers) if x not in numbers[:place]],
    lambda numbers, k: [x for place, x in enumerate(numbers) if place >= k],
    lambda numbers, k: [k + x for x in numbers],
    lambda numbers, k: [k * x for x in numbers],
    lambda numbers, k: [x**2 for x in numbers],
    lambda numbers, k: [max(x, -x) for x in numbers],
    lambda numbers, k: [x - k * (x // k) for x in numbers],
    lambda numbers, k: [-(x - k) for x in numbers],
    lambda numbers, k: [sum(int(digit) for digit in str(x) if digit != "-") for x in numbers],
    lambda numbers, k: list(itertools.accumulate(numbers)),
    lambda numbers, k: [later - earlier for earlier, later in itertools.pairwise(numbers)],
    lambda numbers, k: sorted(numbers),
    lambda numbers, k: [-x for x in sorted(-x for x in numbers)],
    lambda numbers, k: list(reversed(numbers)),
    lambda numbers, k: sorted(numbers, key=_last_digit),
)
# Written a second time, as functions: a reference program that disagrees with them fails its own tests.
_STEPS = dict(zip((step[1] for step in (*_KEEP, *_CHANGE, *_ORDER)), _OPERATIONS, strict=True))
_ENDS: Mapping[str, Callable[[list[int]], Any]] = {
    "numbers": list,
    "sum(numbers)": sum,
    "max(numbers, default=0)": lambda numbers: sorted(numbers)[-1] if numbers else 0,
    "min(numbers, default=0)": lambda numbers: sorted(numbers)[0] if numbers else 0,
    "len(set(numbers))": lambda numbers: sum(x not in numbers[:place] for place, x in enumerate(numbers)),
    "sum(numbers[::2]) - sum(numbers[1::2])": lambda numbers: sum(-x if i % 2 else x for i, x in enumerate(numbers)),
    "numbers[-1] if numbers else 0": lambda numbers: [0, *numbers][-1],
}
