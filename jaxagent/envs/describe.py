"""What `jaxagent envs` says: the registered environments, their options, and phi, the share of tasks that an ideal
policy could solve within 25, 50, 75 and 100 % of the full budget."""

import dataclasses
import re
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

from jaxagent.budgets import percent_of
from jaxagent.envs import registry
from jaxagent.errors import UserError

PERCENTS = (25, 50, 75, 100)
PHI_SEED = 1  # the seed of the default panel and held-out tasks


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of an environment, as its dataclass gives and describes it."""

    name: str
    default: str
    meaning: str


@dataclasses.dataclass(frozen=True)
class Feasibility:
    """phi by per cent of the full budget over `num_tasks` held-out tasks; `shares` None where no bound is known."""

    num_tasks: int
    max_turns: tuple[int, int]
    shares: dict[int, float] | None


def summary(entry: registry.EnvironmentEntry) -> str:
    """The first sentence or line of what the environment's module says about itself."""
    text = (sys.modules[entry.make_environment.__module__].__doc__ or "").strip()
    return " ".join(re.split(r"\n\n|(?<=\.)\s", text, maxsplit=1)[0].split())


def options_of(entry: registry.EnvironmentEntry) -> tuple[Option, ...] | None:
    """The options in the order of the dataclass, None where the entry names none.

    Meanings come from the `Attributes:` part of the docstring: `name: ...`, or `one, other: ...` for several at once.
    Options that are a dataclass themselves are listed one by one, as `name.field`.
    """
    return None if entry.options is None else _options_of(entry.options, "")


def _options_of(kind: type, prefix: str) -> tuple[Option, ...]:
    meanings = attribute_docs(kind.__doc__ or "")
    found: list[Option] = []
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(field.default_factory):
            found += _options_of(field.default_factory, f"{prefix}{field.name}.")
        else:
            found.append(Option(prefix + field.name, _default(field), meanings.get(field.name, "")))
    return tuple(found)


def attribute_docs(docstring: str) -> dict[str, str]:
    """Name -> description from the `Attributes:` part of a docstring, lines joined."""
    _, _, part = textwrap.dedent("    " + docstring).partition("Attributes:\n")
    lines = textwrap.dedent(part.split("\n\n")[0]).splitlines()
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in lines:
        start = re.match(r"(\w+(?:, \w+)*): (.*)", line)
        if start:
            names = start[1].split(", ")
            found |= {name: [start[2]] for name in names}
        else:
            for name in names:
                found[name].append(line)
    return {name: " ".join(" ".join(text).split()) for name, text in found.items()}


def feasibility(entry: registry.EnvironmentEntry, options: Mapping[str, Any], num_tasks: int) -> Feasibility:
    """phi on held-out tasks; `UserError` where the options, or the machine, give no tasks."""
    source = entry.make_tasks(options, "held_out", num_tasks, PHI_SEED)
    tasks = [source.task(index) for index in range(min(num_tasks, len(source)))]
    if not tasks:
        raise UserError(f"{entry.name} has no held-out tasks with these options")
    turns = [task.max_turns for task in tasks]
    shares = {
        percent: registry.feasible_share(entry, tasks, [percent_of(full, percent) for full in turns])
        for percent in PERCENTS
    }
    known = entry.best_success is not registry.no_bound
    return Feasibility(len(tasks), (min(turns), max(turns)), shares if known else None)


def describe(name: str, options: Mapping[str, Any], num_tasks: int) -> str:
    """Everything about one environment, as text; what stands in the way of phi is said in its place."""
    entry = registry.get(name)
    lines = [name, *_wrapped(summary(entry), 2), *_option_lines(options_of(entry))]
    try:
        found = feasibility(entry, options, num_tasks)
    except UserError as error:
        if options:
            raise
        return "\n".join([*lines, *_wrapped(f"phi: {error}", 2)])
    low, high = found.max_turns
    lines.append(
        f"  full budget: {low if low == high else f'{low} to {high}'} turns over {found.num_tasks} held-out tasks"
    )
    if found.shares is None:
        return "\n".join([*lines, "  phi: unknown (the environment gives no bound on what can be solved)"])
    values = "   ".join(f"{percent} %: {share:.2f}" for percent, share in found.shares.items())
    return "\n".join([*lines, f"  phi at told budgets of   {values}"])


def _option_lines(options: tuple[Option, ...] | None) -> list[str]:
    if options is None:
        return ["  options: not described"]
    lines = ["  options (env.options.NAME = default):"]
    for option in options:
        lines += _wrapped(f"{option.name} = {option.default}  {option.meaning}", 4)
    return lines


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, 116, initial_indent=" " * indent, subsequent_indent=" " * (indent + 4)) or []


def _default(field: dataclasses.Field) -> str:
    if field.default is not dataclasses.MISSING:
        return repr(field.default)
    return repr(field.default_factory()) if field.default_factory is not dataclasses.MISSING else "(needed)"
