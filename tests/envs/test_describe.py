import dataclasses

import pytest

from jaxagent import cli
from jaxagent.envs import describe, frozen_lake, lookup, registry
from jaxagent.envs.registry import EnvironmentEntry
from jaxagent.episodes import Task
from jaxagent.errors import UserError


@dataclasses.dataclass(frozen=True)
class ShopOptions:
    """Options.

    Attributes:
      size: how large
        the shop is: 1..9.
      low, high: bounds of a price.
      tags: words.

    More text: not an option.
    """

    size: int = 3
    low: float = 0.5
    high: float = 2.5
    tags: tuple[str, ...] = dataclasses.field(default_factory=lambda: ("a",))


class FourTasks:
    """Tasks of 8 turns that need 1, 3, 5 and 7 of them."""

    def __len__(self):
        return 4

    def task(self, index):
        return Task("shop", f"t{index}", {"needs": 2 * index + 1}, 8)


def entry(**changes):
    fields = {
        "name": "shop",
        "make_environment": lookup.make_environment,
        "make_tasks": lambda options, split, size, seed: FourTasks(),
        "best_success": lambda task, budget: float(budget >= task.data["needs"]),
        "make_demonstrator": None,
        "options": ShopOptions,
    }
    return EnvironmentEntry(**fields | changes)


def test_options_are_read_from_the_dataclass():
    found = {option.name: (option.default, option.meaning) for option in describe.options_of(entry())}
    assert found == {
        "size": ("3", "how large the shop is: 1..9."),
        "low": ("0.5", "bounds of a price."),
        "high": ("2.5", "bounds of a price."),
        "tags": ("('a',)", "words."),
    }
    assert describe.options_of(entry(options=None)) is None


@pytest.mark.parametrize("name", registry._BUILT_IN)
def test_every_option_of_the_library_is_described(name):
    assert all(option.meaning for option in describe.options_of(registry.get(name)))
    assert len(describe.summary(registry.get(name))) > 20


@pytest.mark.parametrize("name", registry._BUILT_IN)
def test_the_options_that_are_described_are_those_that_are_taken(name):
    entry = registry.get(name)
    described = list(dict.fromkeys(option.name.split(".")[0] for option in describe.options_of(entry)))
    for make in (entry.make_environment, lambda options: entry.make_tasks(options, "train", 4, 0)):
        with pytest.raises(UserError, match="no_such is no option of") as refused:
            make({"no_such": 1})
        assert str(refused.value).split("the options are ")[1].split(", ") == described


def test_options_of_an_option_are_listed_and_taken():
    options = {option.name: option for option in describe.options_of(registry.get("deepcoder"))}
    assert options["sandbox.seconds"].default == "6.0" and "sandbox" not in options
    inner = [name.removeprefix("sandbox.") for name in options if name.startswith("sandbox.")]
    with pytest.raises(UserError, match=r"no_such is no option of 'deepcoder\.sandbox'") as refused:
        registry.get("deepcoder").make_environment({"sandbox": {"no_such": 1}})
    assert str(refused.value).split("the options are ")[1].split(", ") == inner


def test_phi_at_four_budgets():
    found = describe.feasibility(entry(), {}, 100)
    assert found.shares == {25: 0.25, 50: 0.5, 75: 0.75, 100: 1.0}
    assert (found.num_tasks, found.max_turns) == (4, (8, 8))
    assert describe.feasibility(entry(), {}, 2).num_tasks == 2
    assert describe.feasibility(entry(best_success=registry.no_bound), {}, 4).shares is None
    tasks = frozen_lake.make_tasks({"size": 4}, "held_out", 30, describe.PHI_SEED)
    share = sum(frozen_lake.best_success(tasks.task(i), 2) >= 0.1 for i in range(30)) / 30
    assert describe.feasibility(frozen_lake.ENTRY, {"size": 4}, 30).shares[25] == share


def test_the_command(capsys):
    assert cli.main(["envs", "--tasks=5"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{name}\n" in f"\n{out}" for name in registry.names())
    assert cli.main(["envs", "lookup", "--tasks=5", "--set", "max_turns=7", "--set", "max_needed=3"]) == 0
    out = capsys.readouterr().out
    assert "full budget: 7 turns over 5 held-out tasks" in out and "25 %: " in out
    assert "num_values = 3  letters that a field may hold" in out
    for words, message in [
        (["envs", "no_such"], "'no_such' is not registered"),
        (["envs", "lookup", "--set", "fields=3"], "env.options.fields is no option"),
        (["envs", "--set", "size=3"], "--set goes with the name of one environment"),
        (["envs", "--tasks=0"], "tasks"),
    ]:
        assert cli.main(words) == 2
        assert message in capsys.readouterr().err


def test_an_environment_that_cannot_be_loaded_does_not_hide_the_others(monkeypatch, capsys):
    monkeypatch.setattr(registry, "names", lambda: ("lookup", "no.such:ENTRY"))
    assert cli.main(["envs", "--tasks=2"]) == 0
    assert "phi at told budgets" in (out := capsys.readouterr().out) and "cannot load 'no.such:ENTRY'" in out


def test_needing_more_is_said_in_the_place_of_phi():
    assert "phi: env.options.parts of 'mixture' must name" in describe.describe("mixture", {}, 5)
    with pytest.raises(UserError, match="must be a positive number"):
        describe.describe("mixture", {"parts": {"lookup": {"weight": -1}}}, 5)
