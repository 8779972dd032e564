"""A small task of our own on all eight systems, and a plain player, for the tests of BFCL."""

import pytest

from jaxagent.envs.bfcl import package
from jaxagent.envs.bfcl.environment import make_environment
from jaxagent.episodes import Task

needs_package = pytest.mark.skipif(
    not package.is_installed(), reason="the package with BFCL's systems is not installed: `jaxagent data bfcl`"
)
CONFIG = {
    "GorillaFileSystem": {
        "root": {
            "home": {
                "type": "directory",
                "contents": {
                    "notes": {
                        "type": "directory",
                        "contents": {"a.txt": {"type": "file", "content": "one\ntwo"}},
                    },
                    "b.txt": {"type": "file", "content": "three"},
                },
            }
        }
    },
    "TwitterAPI": {"username": "ann", "password": "pw", "authenticated": True, "tweets": {}, "tweet_counter": 0},
    "TravelAPI": {"random_seed": 5},
}
GOLD = [
    [["mkdir", {"dir_name": "new"}], ["cd", {"folder": "new"}], ["touch", {"file_name": "c.txt"}]],
    [["cd", {"folder": ".."}], ["cat", {"file_name": "b.txt"}]],
]


def probe_task(
    gold=GOLD, *, withheld=None, classes=tuple(package.MODULES), category="base", max_turns=20, entry="probe"
):
    """A task of our own; `withheld`: user turn (as text) -> functions revealed there."""
    data = {
        "entry": entry,
        "category": category,
        "classes": list(classes),
        "initial_config": CONFIG,
        "messages": [f"request {number}" for number in range(len(gold))],
        "withheld": withheld or {},
        "gold": gold,
    }
    return Task("bfcl", entry, data, max_turns)


def started(task=None, **options):
    """A live environment at the start of a task; signatures and python calls keep texts short."""
    environment = make_environment({"docs": "names", "tool_format": "python"} | options)
    environment.reset(task or probe_task(), 0)
    return environment


def state_of(environment):
    """Everything that an episode may change, hashed by class."""
    world = environment._world
    return {name: world.key(name) for name in environment._data["classes"]}
