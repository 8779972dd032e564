"""Generated databases and questions: golds answer what they say, levels grow, splits do not share content."""

import collections
import dataclasses

import pytest

from jaxagent.envs.generated import keyed_generator
from jaxagent.envs.intercode_sql.database import Limits, SqliteDatabase
from jaxagent.envs.intercode_sql.demonstrators import SUBMIT, expert_replies
from jaxagent.envs.intercode_sql.environment import make_environment, make_tasks
from jaxagent.envs.intercode_sql.generated_tasks import LEVELS, draw_task, is_proper
from jaxagent.envs.intercode_sql.tasks import best_success, discovery_turns, minimal_turns
from jaxagent.envs.intercode_sql.themes import THEMES
from jaxagent.envs.intercode_sql.world import World


def drawn(number, levels=(1, 5), num_names=3):
    return draw_task(keyed_generator("test", number), levels=levels, num_names=num_names)


def rows_of(data, concept):
    """The rows of a thing as dictionaries by concept: the schema read with the themes, not with the generator."""
    theme = next(theme for theme in THEMES for thing in (theme.parent, theme.child) if thing.concept == concept)
    thing = theme.parent if theme.parent.concept == concept else theme.child
    table = next(table for table in data["world"]["tables"] if table["name"] in thing.names)
    concepts = ["id", *(attribute.concept for attribute in thing.attributes), "link"]
    return [dict(zip(concepts, row, strict=False)) for row in table["rows"]]


def on_other_rows(data):
    """The task as it would be if the other rows were shown."""
    tables = [table | {"rows": data["check_rows"][table["name"]]} for table in data["world"]["tables"]]
    return data | {"world": data["world"] | {"tables": tables}}


def answer(data):
    """The answer by plain loops from the question's words."""
    kind, *words = data["words"].split()
    if kind in ("count", "list") and words[-2] in ("above", "below", "is"):
        shown = words.pop(0) if kind == "list" else None
        thing, (concept, relation, value) = words[0], words[-3:]
        rows = [row for row in rows_of(data, thing) if row[concept] is not None]
        if relation == "is":
            rows = [row for row in rows if row[concept] == value]
        else:
            rows = [
                row
                for row in rows
                if (row[concept] > int(value)) == (relation == "above") and row[concept] != int(value)
            ]
        return [(len(rows),)] if kind == "count" else [(row[shown or "name"],) for row in rows]
    if kind == "average":
        number, thing, concept, _, value = words
        values = [row[number] for row in rows_of(data, thing) if row[concept] == value and row[number] is not None]
        return [(sum(values) / len(values) if values else None,)]
    if kind == "each" and words[1] == "count" and len(words) == 3 and data["level"] == 2:
        return list(collections.Counter(row[words[0]] for row in rows_of(data, words[2])).items())
    if kind == "order":
        _, thing, number = words
        known = [row for row in rows_of(data, thing) if row[number] is not None]
        return [(row["name"],) for row in sorted(known, key=lambda row: (-row[number], row["name"].lower()))]
    if kind == "repeated":
        counts = collections.Counter(row[words[0]] for row in rows_of(data, words[1]))
        return [(value,) for value, count in counts.items() if count > 1]
    if kind == "over_average":
        known = [row for row in rows_of(data, words[0]) if row[words[1]] is not None]
        mean = sum(row[words[1]] for row in known) / len(known)
        return [(row["name"],) for row in known if row[words[1]] > mean]
    parents, children = rows_of(data, words[0]), rows_of(data, words[1])
    if kind == "without":
        used = {row["link"] for row in children}
        return [(row["name"],) for row in parents if row["id"] not in used]
    if kind == "all":
        return [(row["name"],) for row in [*parents, *children]]
    if kind == "highest":
        top = max(row[words[2]] for row in children if row[words[2]] is not None)
        keys = {row["link"] for row in children if row[words[2]] == top}
        return [(row["name"],) for row in parents if row["id"] in keys]
    if kind == "none":
        keys = {row["link"] for row in children if row[words[2]] is not None and row[words[2]] > int(words[4])}
        return [(row["name"],) for row in parents if row["id"] not in keys]
    if kind == "both":
        owners = [{row["link"] for row in children if row[words[2]] == value} for value in words[3:5]]
        return [(row["name"],) for row in parents if row["id"] in owners[0] & owners[1]]
    return None


def test_gold_queries_answer_their_questions():
    checked = collections.Counter()
    for number in range(400):
        data = drawn(number // 2) if number % 2 else on_other_rows(drawn(number // 2))
        expected = None if data["level"] == 3 else answer(data)
        if expected is None:
            continue
        rows = SqliteDatabase(World.from_json(data["world"]), Limits()).run(data["gold"])
        if not data["ordered"]:
            rows, expected = sorted(rows, key=repr), sorted(expected, key=repr)
        if data["words"].startswith(" average"):
            assert rows[0] == pytest.approx(expected[0]), data
        else:
            assert rows == expected, data
        checked[data["level"]] += 1
    assert set(checked) == {1, 2, 4, 5} and min(checked.values()) > 30


def test_joins_agree_with_loops():
    for number in range(60):
        data = drawn(number, levels=(3, 3)) if number % 2 else on_other_rows(drawn(number, levels=(3, 3)))
        kind, *words = data["words"].split()
        first, second = ("child", "parent") if kind != "each" else ("parent", "child")
        named = {first: words[0], second: words[1] if kind != "each" else words[2]}
        parents = {row["id"]: row for row in rows_of(data, named["parent"])}
        linked = [(row, parents[row["link"]]) for row in rows_of(data, named["child"])]
        if kind == "pairs":
            expected = [(row["name"], above["name"]) for row, above in linked if row[words[2]] == words[4]]
        elif kind == "count":
            expected = [(sum(above[words[2]] == words[4] for _, above in linked),)]
        else:
            expected = list(collections.Counter(above["name"] for _, above in linked).items())
        rows = SqliteDatabase(World.from_json(data["world"]), Limits()).run(data["gold"])
        assert sorted(rows, key=repr) == sorted(expected, key=repr), data


@pytest.mark.parametrize("mode", ["submit", "try_again"])
@pytest.mark.parametrize("level", LEVELS)
def test_the_expert_solves_each_level_in_the_turns_that_are_promised(level, mode):
    options = {"levels": (level, level), "mode": mode}
    tasks, environment = make_tasks(options, "train", 30, 1), make_environment(options)
    for index in range(30):
        task = tasks.task(index)
        environment.reset(task, 0)
        replies, last = expert_replies(task.data), 0.0
        for reply in replies[: discovery_turns(task.data)]:
            assert last < 1.0 or reply == SUBMIT
            result = environment.step(reply)
            assert result.info["good"] is True and result.info["progress"] >= last
            last = result.info["progress"]
        assert (result.ended, result.reward, last) == ("success", 1.0, 1.0)
        environment.reset(task, 0)
        told = [task.data["gold"], SUBMIT][: minimal_turns(task.data)]
        assert [environment.step(reply).ended for reply in told][-1] == "success"
        shortest = len(told)
        assert [best_success(task, budget) for budget in (shortest - 1, shortest)] == [0.0, 1.0]


def literal(cell):
    return "NULL" if cell is None else repr(cell) if not isinstance(cell, str) else f"'{cell}'"


def last_reward(environment, task, statement):
    environment.reset(task, 0)
    environment.step(statement)
    return environment.step(SUBMIT).reward


@pytest.mark.parametrize("strict", [False, True])
def test_constants_earn_nothing_even_those_of_the_gold_result(strict):
    options = {"reward": "exact", "strict_intercode": strict}
    tasks, environment = make_tasks(options, "train", 100, 2), make_environment(options)
    for index in range(100):
        task = tasks.task(index)
        gold = SqliteDatabase(World.from_json(task.data["world"]), Limits()).run(task.data["gold"])
        known = "VALUES " + ", ".join(f"({', '.join(map(literal, row))})" for row in gold)
        environment.reset(task, 0)
        environment.step(known)
        assert environment._result == gold, "it is the right result where it is shown"
        assert environment.step(SUBMIT).reward == 0.0
        assert all(last_reward(environment, task, f"SELECT {number}") == 0.0 for number in (*range(1, 14), 20, 50))
        assert last_reward(environment, task, f"SELECT * FROM ({task.data['gold']})") == 1.0


def test_what_fails_on_the_other_rows_alone_earns_nothing():
    tasks, environment = make_tasks({"levels": (1, 1)}, "train", 20, 3), make_environment({"levels": (1, 1)})
    seen = 0
    for index in range(20):
        task = tasks.task(index)
        table = task.data["tables"][0]
        shown = next(len(t["rows"]) for t in task.data["world"]["tables"] if t["name"] == table)
        if len(task.data["check_rows"][table]) == shown:
            continue
        seen += 1
        alone = f"WHERE (SELECT COUNT(*) FROM {table}) = {shown}"
        overflow = f"{alone} OR abs(-9223372036854775807 - 1) > 0"
        assert last_reward(environment, task, f"SELECT * FROM ({task.data['gold']}) {alone}") == 0.0
        assert last_reward(environment, task, f"SELECT * FROM ({task.data['gold']}) {overflow}") == 0.0
    assert seen > 5


def test_the_reward_is_the_smaller_one():
    tasks = make_tasks({"levels": (1, 1)}, "train", 60, 4)
    partial = 0
    for index in range(60):
        task = tasks.task(index)
        if not task.data["words"].startswith(" list"):
            continue
        rewards = []
        for data in (task.data, on_other_rows(task.data)):
            one_row = {name: value for name, value in data.items() if name != "check_rows"}
            environment = make_environment({})
            statement = f"SELECT * FROM ({task.data['gold']}) LIMIT 1"
            rewards.append(last_reward(environment, dataclasses.replace(task, data=one_row), statement))
        assert last_reward(make_environment({}), task, statement) == min(rewards)
        partial += rewards[0] > rewards[1] > 0
    assert partial > 3


def test_levels_need_more_tables_and_names_hide_the_schema():
    tables = {level: sum(len(drawn(n, (level, level))["tables"]) for n in range(40)) for level in LEVELS}
    assert tables[1] == tables[2] == 40 and tables[3] == tables[4] == 80
    used = collections.Counter(drawn(number)["tables"][0] for number in range(300))
    assert len(used) > 12
    plain = [drawn(number, num_names=1) for number in range(40)]
    obvious = {thing.names[0] for theme in THEMES for thing in (theme.parent, theme.child)}
    assert {table for data in plain for table in data["tables"]} <= obvious
    assert all(name in others for data in map(drawn, range(40)) for name, others in data["names"].items())


def test_trivial_golds_are_refused():
    data = next(data for data in map(drawn, range(100)) if data["words"].startswith(" count") and is_proper(data))
    table = data["tables"][0]
    assert not is_proper(data | {"gold": "SELECT 7"}), "the other rows must tell a constant from the answer"
    assert not is_proper(data | {"check_rows": {t["name"]: t["rows"] for t in data["world"]["tables"]}})
    assert not is_proper(data | {"gold": f"SELECT COUNT(*) FROM {table} WHERE id > 1000"})
    assert not is_proper(data | {"gold": f"SELECT * FROM {table} WHERE id > 1000"})
    assert not is_proper(data | {"gold": f"SELECT MAX(id) FROM {table} WHERE id > 1000"})
    with pytest.raises(RuntimeError, match="a generated query fails"):
        is_proper(data | {"gold": "SELECT absent"})


def test_splits_are_disjoint_and_tasks_do_not_depend_on_what_is_not_theirs():
    sources = {split: make_tasks({}, split, 60, 0) for split in ("train", "held_out", "panel")}
    ids = {split: {source.task(index).id for index in range(60)} for split, source in sources.items()}
    assert len(ids["panel"]) == len(ids["held_out"]) == 60
    assert not (ids["train"] & ids["panel"] or ids["train"] & ids["held_out"] or ids["panel"] & ids["held_out"])
    other = make_tasks({"max_turns": 7, "rendering": "compact"}, "panel", 60, 0)
    assert other.content_hash() == sources["panel"].content_hash() and other.task(0).max_turns == 7
    assert make_tasks({}, "panel", 60, 1).content_hash() != sources["panel"].content_hash()
