"""The real questions and recorded transcripts of the original MySQL environment, where this machine has them."""

import collections
import json
import os
import pathlib

import pytest

from jaxagent.envs.intercode_sql import data
from jaxagent.envs.intercode_sql.database import Limits, QueryError, SqliteDatabase
from jaxagent.envs.intercode_sql.demonstrators import expert_replies
from jaxagent.envs.intercode_sql.environment import make_environment, make_tasks
from jaxagent.envs.intercode_sql.rewards import intercode_reward

pytestmark = pytest.mark.slow
NO_ORDER_IN_RECORD = "SELECT episode FROM tv_series ORDER BY rating DESC"
# Why a recorded reward may differ from ours, by what the record and we answered.
EXPLAINED = {
    "MySQL's functions": lambda statement, ours: ours is None and ("concat" in statement or "DISTINCT" in statement),
    "the gold fails in MySQL, which scored an empty result against it": lambda statement, ours: ours == [],
    "the record did not punish a reversed order": lambda statement, ours: statement == NO_ORDER_IN_RECORD,
}


@pytest.fixture(scope="module")
def source():
    folder = os.environ.get("JAXAGENT_DATA")
    if not folder:
        pytest.skip("JAXAGENT_DATA is unset: the real questions and transcripts are not here")
    return pathlib.Path(folder) / "intercode_sql"


@pytest.fixture(scope="module")
def brought(source, tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("JAXAGENT_HOME", str(tmp_path_factory.mktemp("home")))
    yield data.fetch(str(source))
    patch.undo()


def test_all_golds_left_reach_reward_one(brought):
    assert "20 databases" in brought and "954 questions (80 without result dropped)" in brought
    counts = collections.Counter()
    for strict in (False, True):
        options = {"source": "spider", "strict_intercode": strict}
        environment = make_environment(options)
        for split, size in (("train", 10_000), ("held_out", 40), ("panel", 100)):
            tasks = make_tasks(options, split, size, 0)
            for task in map(tasks.task, range(len(tasks))):
                environment.reset(task, 0)
                results = [environment.step(reply) for reply in expert_replies(task.data)]
                assert (results[-1].reward, results[-1].ended) == (1.0, "success"), task.data
                assert all(result.info["good"] for result in results), task.data
                counts[split] += 1
    assert counts["train"] > 1200
    print(dict(counts))


def test_rewards_are_those_that_mysql_gave(source, brought):
    records = json.loads((source / "transcripts_text-bison-001_10_turns.json").read_text())
    questions = json.loads((source / "ic_spider_dev.json").read_text())
    databases = {name: SqliteDatabase(data.load_world(name), Limits()) for name in {q["db"] for q in questions}}
    golds = [databases[question["db"]].run(question["gold"]) for question in questions]
    counts, kinds = collections.Counter(), collections.Counter()
    for number, record in records.items():
        question, history = questions[int(number)], record["turn_history"]
        for statement, seen, reward in zip(*(history[n] for n in ("actions", "observations", "rewards")), strict=True):
            if seen.startswith("Format your SQL"):
                continue  # the client's complaint, MySQL never saw it
            ours = rows_or_none(databases[question["db"]], statement)
            score = 0.0 if ours is None else intercode_reward(ours, golds[int(number)])
            if seen.startswith("Error"):
                counts["errors of MySQL"] += 1
                counts["errors in both"] += ours is None
                assert score == reward
                continue
            counts["comparable"] += 1
            counts["same"] += score == reward
            if score != reward:
                kinds[next(name for name, holds in EXPLAINED.items() if holds(statement, ours))] += 1
    print(dict(counts), dict(kinds))
    assert counts["comparable"] == 510 and counts["same"] / counts["comparable"] >= 0.99
    assert counts["errors in both"] == counts["errors of MySQL"] == 8617
    assert sum(kinds.values()) == counts["comparable"] - counts["same"]


def rows_or_none(database, statement):
    try:
        return database.run(statement)
    except QueryError:
        return None
