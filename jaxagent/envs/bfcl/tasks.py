"""The tasks: what the benchmark's entries become, and how they are split.

A scenario is a user story with its systems; the categories are variations of it (functions held out, parameters
missing at first, long results). Splits keep whole scenarios together, so that no panel task has a sibling in training.
"""

import functools
import hashlib
import inspect
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from jaxagent.envs.base import Split, content_id, split_by_sixteenths, split_of
from jaxagent.envs.bfcl import calls, functions, package
from jaxagent.envs.listed import ListedTasks, check_request
from jaxagent.episodes import Task
from jaxagent.errors import UserError

NAME = "bfcl"
SCORED = ("base", "miss_func", "miss_param", "long_context")  # by the benchmark itself
CATEGORIES = (*SCORED, "composite")
LONG = frozenset({"long_context", "composite"})  # their systems return long results
PANEL_SIXTEENTHS, HELD_OUT_SIXTEENTHS = 4, 2  # of the scenarios: some 200 are too few for one sixteenth each
_LONG_MESSAGE = 40  # characters from which two equal user messages mean one scenario


def make_source(
    *,
    categories: Sequence[str],
    classes: Sequence[str],
    split_by: str,
    max_turns: Callable[[dict[str, Any]], int],
    split: Split,
    size: int,
    seed: int,
) -> ListedTasks:
    """The tasks of one split whose systems all are among `classes`, in an order keyed by `seed`.

    Args:
      max_turns: a task's data -> its full budget.
      size: a training source repeats its tasks up to it; the others must have so many.

    Raises:
      UserError: no such split, or too few tasks for a panel or held-out set.
    """
    check_request(split, size)
    chosen = []
    for category in categories:
        for entry_id, data in entries(category).items():
            task_id, its_split = _id_and_split(category, entry_id, split_by)
            if its_split == split and set(data["classes"]) <= set(classes):
                chosen.append(Task(NAME, task_id, data, max_turns(data)))
    if not chosen or (split != "train" and len(chosen) < size):
        raise UserError(
            f"bfcl: {size} {split} tasks are asked for, there are {len(chosen)} of {', '.join(categories)}; "
            f"widen env.options.categories or classes, or ask for fewer (eval.panel_tasks, eval.tasks)"
        )
    chosen.sort(key=lambda task: hashlib.blake2b(f"{seed}:{task.id}".encode(), digest_size=8).digest())
    return ListedTasks(chosen if split == "train" else chosen[:size], size)


@functools.cache
def entries(category: str) -> dict[str, dict[str, Any]]:
    """Entry id -> task data of one category, in the order of the file.

    Data: `entry` and `category`; `classes` involved; `initial_config`; `messages`, one text a user turn (empty where
    held-out functions are revealed); `withheld`, user turn (as text) -> functions that it reveals; `gold`, the
    answer's calls as [name, arguments] a user turn.
    """
    file = f"BFCL_v3_multi_turn_{category}.json"
    answers = {line["id"]: line["ground_truth"] for line in package.read_lines(f"possible_answer/{file}")}
    return {entry["id"]: _data(category, entry, answers[entry["id"]]) for entry in package.read_lines(file)}


def fewest_turns(data: dict[str, Any]) -> int:
    """The fewest replies that solve a task: a closing one a user turn, and one with all calls where calls are due."""
    return len(data["gold"]) + sum(bool(turn) for turn in data["gold"])


def _data(category: str, entry: dict[str, Any], answer: list[list[str]]) -> dict[str, Any]:
    gold = [[call for text in turn for call in _gold_call(text)] for turn in answer]
    return {
        "entry": entry["id"],
        "category": category,
        "classes": entry["involved_classes"],
        "initial_config": entry["initial_config"],
        "messages": ["\n".join(message["content"] for message in turn) for turn in entry["question"]],
        "withheld": {
            turn: [name for name in names if not _used_before(gold, int(turn), name)]
            for turn, names in entry.get("missed_function", {}).items()
        },
        "gold": gold,
    }


def _used_before(gold: list[list[list[Any]]], turn: int, name: str) -> bool:
    """Whether the answer needs a function before its reveal (one entry does): then it cannot be withheld."""
    return any(call[0] == name for calls_of_turn in gold[:turn] for call in calls_of_turn)


def _gold_call(text: str) -> list[list[Any]]:
    """[[name, arguments]] of an answer's call, [] for the few (all in `composite`) that are no call of a documented
    function: executing them changes nothing, and no reply could bring about their error message."""
    try:
        parsed = calls.parse_python(text)
    except calls.MalformedReplyError:
        return []
    if len(parsed) != 1 or parsed[0].name not in functions.owners():
        return []
    call = parsed[0]
    method = getattr(package.system_class(functions.owners()[call.name]), call.name)
    parameters = [name for name in inspect.signature(method).parameters if name != "self"]
    if len(call.positional) > len(parameters):
        return []
    return [[call.name, dict(zip(parameters, call.positional, strict=False)) | call.arguments]]


@functools.cache
def _id_and_split(category: str, entry_id: str, split_by: str) -> tuple[str, Split]:
    """A task's id, a hash of its content, and the split that its scenario (or the entry itself) belongs to.

    `split_of(id)` is that split too: the id is salted until it is, so whoever checks ids alone comes to the same end.
    """
    data = entries(category)[entry_id]
    key = _scenarios()[entry_id] if split_by == "scenario" else content_id(NAME, data)
    split = split_by_sixteenths(key, person=b"bfcl-split", panel=PANEL_SIXTEENTHS, held_out=HELD_OUT_SIXTEENTHS)
    salt = 0
    while split_of(task_id := content_id(NAME, {"data": data, "salt": salt})) != split:
        salt += 1
    return task_id, split


@functools.cache
def _scenarios() -> dict[str, str]:
    """Entry id -> a hash of its scenario's content, over all categories.

    Entries that share a long user message or their systems' whole initial state are one scenario.
    """
    members: dict[str, list[str]] = defaultdict(list)
    for category in CATEGORIES:
        for entry_id, data in entries(category).items():
            shared = [message for message in data["messages"] if len(message) >= _LONG_MESSAGE]
            for trait in (*shared, content_id("config", data["initial_config"])):
                members[trait].append(entry_id)
    parents: dict[str, str] = {}
    for group in members.values():
        for entry_id in group:
            parents[_root(parents, entry_id)] = _root(parents, group[0])
    contents: dict[str, list[str]] = defaultdict(list)
    for trait, group in members.items():
        contents[_root(parents, group[0])].append(trait)
    keys = {root: content_id("scenario", {"traits": sorted(traits)}) for root, traits in contents.items()}
    return {entry_id: keys[_root(parents, entry_id)] for entry_id in list(parents)}


def _root(parents: dict[str, str], entry_id: str) -> str:
    while parents.setdefault(entry_id, entry_id) != entry_id:
        entry_id = parents[entry_id]
    return entry_id
