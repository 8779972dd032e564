"""Generated databases and questions: golds answer what they say, levels grow, splits do not share content."""

import collections
import dataclasses

import pytest

from jaxagent.envs.generated import keyed_generator
from jaxagent.envs.intercode_sql.database import Limits, SqliteDatabase
from jaxagent.envs.intercode_sql.demonstrators import SUBMIT, expert_replies
from jaxagent.envs.intercode_sql.environment import InterCodeSql, make_environment, make_tasks
from jaxagent.envs.intercode_sql.generated_tasks import LEVELS, draw_task, is_proper
from jaxagent.envs.intercode_sql.options import InterCodeSqlOptions
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


def run_on_shown_rows(data, statement):
    return SqliteDatabase(World.from_json(data["world"]), Limits()).run(statement)


def shown_count(data):
    """Rows of the first table that the question needs, None where there are as many other rows."""
    table = data["tables"][0]
    shown = next(len(t["rows"]) for t in data["world"]["tables"] if t["name"] == table)
    return None if len(data["check_rows"][table]) == shown else shown


def without_other_rows(task):
    data = {name: value for name, value in task.data.items() if name != "check_rows"}
    return dataclasses.replace(task, data=data)


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
        rows = run_on_shown_rows(data, data["gold"])
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
        rows = run_on_shown_rows(data, data["gold"])
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


@pytest.mark.parametrize("mode", ["submit", "try_again"])
@pytest.mark.parametrize("strict", [False, True])
def test_no_constant_is_right_not_even_the_gold_result(strict, mode):
    options = {"reward": "exact", "strict_intercode": strict, "mode": mode}
    tasks, environment = make_tasks(options, "train", 100, 2), make_environment(options)
    for index in range(100):
        task = tasks.task(index)
        known = "VALUES " + ", ".join(
            f"({', '.join(map(literal, row))})" for row in run_on_shown_rows(task.data, task.data["gold"])
        )
        environment.reset(task, 0)
        result = environment.step(known)
        assert result.ended is None and result.info["progress"] < 1.0
        last = environment.step(SUBMIT)
        if mode == "submit":
            assert last.ended == "failure" and last.reward == 0.0 and "other rows" in last.observation.text
            assert last_reward(environment, task, f"SELECT * FROM ({task.data['gold']})") == 1.0
            assert all(last_reward(environment, task, f"SELECT {number}") == 0.0 for number in (*range(1, 14), 20, 50))


def test_what_holds_on_the_shown_rows_alone_earns_nothing():
    tasks, environment = make_tasks({"levels": (1, 1)}, "train", 40, 3), make_environment({"levels": (1, 1)})
    seen = 0
    for index in range(40):
        task = tasks.task(index)
        table, shown, gold = task.data["tables"][0], shown_count(task.data), task.data["gold"]
        if shown is None:
            continue
        seen += 1
        for condition in (
            f"(SELECT COUNT(*) FROM {table}) = {shown}",
            f"CASE (SELECT COUNT(*) FROM {table}) WHEN {shown} THEN 1 ELSE abs(-9223372036854775807 - 1) END",
        ):
            statement = f"SELECT * FROM ({gold}) WHERE {condition}"
            assert run_on_shown_rows(task.data, statement) == run_on_shown_rows(task.data, gold)
            if run_on_shown_rows(on_other_rows(task.data), gold):
                assert last_reward(environment, task, statement) == 0.0
    assert seen > 10


def test_other_rows_are_under_the_same_limits_and_every_database_is_closed():
    """A statement that is cheap on the shown rows and endless on the others."""
    opened, closed = [], []

    class Watched(SqliteDatabase):
        def __init__(self, world, limits):
            super().__init__(world, limits)
            opened.append(limits.operations)

        def close(self):
            closed.append(1)
            super().close()

    options = InterCodeSqlOptions(levels=(1, 1), max_operations=200_000)
    environment = InterCodeSql(options, Watched)
    tasks = make_tasks({"levels": (1, 1)}, "train", 40, 5)
    task = next(task for task in map(tasks.task, range(40)) if shown_count(task.data))
    table, shown = task.data["tables"][0], shown_count(task.data)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT MAX(i) FROM n"
    condition = f"CASE (SELECT COUNT(*) FROM {table}) WHEN {shown} THEN 1 ELSE ({endless}) END"
    assert last_reward(environment, task, f"SELECT * FROM ({task.data['gold']}) WHERE {condition}") == 0.0
    assert opened.count(200_000) == 2 and len(opened) == len(closed) == 4


def test_the_reward_is_the_smaller_one():
    tasks = make_tasks({"levels": (1, 1)}, "train", 60, 4)
    smaller_elsewhere = 0
    for index in range(60):
        task = tasks.task(index)
        if not task.data["words"].startswith(" list"):
            continue
        statement = f"SELECT * FROM ({task.data['gold']}) LIMIT 1"
        either = (task, dataclasses.replace(task, data=on_other_rows(task.data)))
        rewards = [last_reward(make_environment({}), without_other_rows(each), statement) for each in either]
        assert last_reward(make_environment({}), task, statement) == min(rewards)
        smaller_elsewhere += rewards[0] > rewards[1] > 0
    assert smaller_elsewhere > 3


def test_the_agent_is_told_of_the_other_rows():
    task = make_tasks({}, "train", 1, 0).task(0)
    assert "other rows of the same tables" in make_environment({}).reset(task, 0).text
    assert "other rows" not in make_environment({}).reset(without_other_rows(task), 0).text


def test_rows_that_do_not_fit_are_refused_at_once():
    task = make_tasks({}, "train", 1, 0).task(0)
    with pytest.raises(KeyError):
        make_environment({}).reset(dataclasses.replace(task, data=task.data | {"check_rows": {"absent": []}}), 0)
    short = {name: [row[1:] for row in rows] for name, rows in task.data["check_rows"].items()}
    with pytest.raises(ValueError, match="cells"):
        make_environment({}).reset(dataclasses.replace(task, data=task.data | {"check_rows": short}), 0)


def test_both_databases_share_no_shortcut():
    """The childless parent is anyone, on either rows; and `both` asks for two values."""
    last, values = collections.Counter(), 0
    for number in range(300):
        data = drawn(number, levels=(4, 4))
        kind, *words = data["words"].split()
        if kind == "both":
            assert words[3] != words[4]
            values += 1
        if kind != "without":
            continue
        for each in (data, on_other_rows(data)):
            parents, children = rows_of(each, words[0]), rows_of(each, words[1])
            idle = {row["id"] for row in parents} - {row["link"] for row in children}
            assert idle
            last[max(row["id"] for row in parents) in idle] += 1
    assert values > 50 and last[False] > last[True] > 10


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
