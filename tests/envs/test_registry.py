import importlib.metadata
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from jaxagent.envs import lookup, registry
from jaxagent.envs.base import Environment
from jaxagent.envs.registry import EnvironmentEntry
from jaxagent.episodes import Task
from jaxagent.errors import UserError


@pytest.mark.parametrize("name", ["frozen_lake", "lookup"])
def test_built_in_entries_work_together(name):
    entry = registry.get(name)
    assert entry.name == name
    tasks = entry.make_tasks({"rendering": "compact"}, "train", 2**20, 0)
    environment = entry.make_environment({"rendering": "compact"})
    assert isinstance(environment, Environment)
    task = tasks.task(2**20 - 1)
    environment.reset(task, seed=0)
    reply = entry.make_demonstrator(environment, np.random.default_rng(0))
    results = []
    while not results or not results[-1].ended:
        results.append(environment.step(reply()))
    environment.close()
    environment.close()
    assert results[-1].ended in ("success", "failure")
    assert 0.0 <= entry.best_success(task, 1) <= entry.best_success(task, task.max_turns) <= 1.0


def test_unknown_names_are_refused_with_the_list():
    assert {"frozen_lake", "lookup"} <= set(registry.names())
    with pytest.raises(UserError, match=r"'frozenlake' is not registered.*frozen_lake, .*lookup"):
        registry.get("frozenlake")


@pytest.mark.parametrize(
    "reference", ["no.such.module:ENTRY", "jaxagent.envs.lookup:NO_ENTRY", "jaxagent.envs.lookup:NAME"]
)
def test_references_that_cannot_be_used_are_refused(reference):
    with pytest.raises(UserError, match=reference):
        registry.get(reference)


def test_reference_by_module_and_attribute():
    assert registry.get("jaxagent.envs.lookup:ENTRY") is lookup.ENTRY


def test_entry_points_are_found(monkeypatch):
    point = importlib.metadata.EntryPoint("maze", "jaxagent.envs.lookup:ENTRY", registry.ENTRY_POINT_GROUP)
    broken = importlib.metadata.EntryPoint("broken", "jaxagent.no_such:ENTRY", registry.ENTRY_POINT_GROUP)
    found = {registry.ENTRY_POINT_GROUP: importlib.metadata.EntryPoints([point, broken])}
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: found[group])
    assert {"broken", "frozen_lake", "lookup", "maze"} <= set(registry.names())
    assert registry.get("maze") is lookup.ENTRY
    with pytest.raises(UserError, match=r"'broken'.*no_such"):
        registry.get("broken")


def test_feasible_share():
    def fails(*_):
        raise AssertionError

    entry = EnvironmentEntry("x", fails, fails, lambda task, budget: task.data["chances"][budget], fails)
    tasks = [
        Task("x", str(i), {"chances": chances}, 2) for i, chances in enumerate([(0, 0.09, 0.1), (0, 0.5, 1), (0, 0, 0)])
    ]
    assert registry.feasible_share(entry, tasks, [1, 1, 2]) == pytest.approx(1 / 3)
    assert registry.feasible_share(entry, tasks, [2, 2, 2]) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="shorter"):
        registry.feasible_share(entry, tasks, [1, 1])
    with pytest.raises(ValueError, match="no tasks"):
        registry.feasible_share(entry, [], [])


def test_environments_never_import_jax():
    script = """
import importlib, pkgutil, sys
import numpy
import jaxagent.envs
for module in pkgutil.walk_packages(jaxagent.envs.__path__, "jaxagent.envs."):
    importlib.import_module(module.name)
from jaxagent.envs import registry
from jaxagent.errors import UserError
OPTIONS = {"mixture": {"parts": {"lookup": {}, "frozen_lake": {}}}}
for name in registry.names():
    entry, options = registry.get(name), OPTIONS.get(name, {})
    try:
        environment = entry.make_environment(options)
        task = entry.make_tasks(options, "train", 4, 0).task(0)
    except UserError:  # no sandbox or no data on this machine
        continue
    environment.reset(task, 0)
    reply = entry.make_demonstrator(environment, numpy.random.default_rng(0))
    for _ in range(99):
        if environment.step(reply()).ended:
            break
heavy = {"jax", "jaxlib", "flax", "transformers", "tokenizers", "optax"} & set(sys.modules)
assert not heavy, heavy
"""
    root = pathlib.Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, cwd=root)
