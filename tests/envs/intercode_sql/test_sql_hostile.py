"""Hostile SQL: every input is answered in bounded time; nothing is written, nothing leaks to others or the grader."""

import ctypes
import gc
import importlib.util
import random
import re
import time

import pytest
from hostile_statements import CASES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxagent.envs.intercode_sql import database
from jaxagent.envs.intercode_sql.demonstrators import expert_replies
from jaxagent.envs.intercode_sql.environment import make_environment, make_tasks
from jaxagent.envs.intercode_sql.world import World

OPTIONS = {"names": 1, "max_operations": 2_000_000}  # a tenth of a second
SECONDS = 10.0  # of any input, on a loaded machine; the statement's own limit is far below
EVERYTHING = "SELECT * FROM dog"


def task_about(table):
    tasks = make_tasks({"names": 1}, "train", 500, 0)
    return next(
        task for task in map(tasks.task, range(500)) if table in task.data["tables"] and len(task.data["tables"]) == 1
    )


TASK = task_about("dog")


def started(task=TASK):
    environment = make_environment(OPTIONS)
    environment.reset(task, 0)
    return environment


def still_solves(environment):
    """The expert's episode on the same environment: the gold result and its grading are untouched."""
    for reply in expert_replies(TASK.data):
        result = environment.step(reply)
    return result.ended == "success" and result.reward == 1.0


@pytest.fixture(scope="module")
def environment():
    return started()


def test_there_are_enough_cases():
    assert len(CASES) >= 60
    assert len({name for name, *_ in CASES}) == len(CASES)


@pytest.mark.parametrize(("name", "reply", "error", "part"), CASES, ids=[case[0] for case in CASES])
def test_hostile_input(environment, tmp_path, monkeypatch, name, reply, error, part):
    monkeypatch.chdir(tmp_path)
    rows = environment.step(EVERYTHING).observation
    begun = time.perf_counter()
    result = environment.step(reply)
    assert time.perf_counter() - begun < SECONDS
    assert (result.info["error"], result.ended, result.reward) == (error, None, 0.0)
    assert part in result.observation.text
    assert result.info["valid"] == (error not in ("no_action", "too_long"))
    assert len(result.observation.text) < 1200 and "\0" not in result.observation.text
    result.observation.text.encode()  # no lone surrogate
    assert environment.step(EVERYTHING).observation == rows
    assert list(tmp_path.iterdir()) == []


def test_after_all_of_them_the_question_can_still_be_answered(environment):
    for _, reply, _, _ in CASES:
        if len(reply) < 1000:
            environment.step(reply)
    assert still_solves(environment)


def test_without_the_guards_the_table_would_notice(monkeypatch):
    monkeypatch.setattr(database, "_authorize", lambda *_: 0)
    open_to_all = started()
    before = open_to_all.step(EVERYTHING).observation
    assert open_to_all.step("DELETE FROM dog").info["error"] is None
    assert open_to_all.step(EVERYTHING).observation != before


def test_a_write_that_got_through_would_stay_in_its_own_copy(monkeypatch):
    monkeypatch.setattr(database, "_authorize", lambda *_: 0)
    first, second = started(), started()
    first.step("DELETE FROM dog")
    assert second.step("SELECT COUNT(*) > 0 FROM dog").observation.text == "[(1,)]"
    first.reset(TASK, 0)
    assert first.step("SELECT COUNT(*) > 0 FROM dog").observation.text == "[(1,)]"
    assert still_solves(second)


def test_64_concurrent_episodes_are_each_as_if_alone():
    tasks = make_tasks({"names": 1}, "train", 64, 3)
    random_order = random.Random(0)
    short = [case[1] for case in CASES if len(case[1]) < 200 and case not in CASES[-10:]]
    plans = []
    for index in range(64):
        replies = expert_replies(tasks.task(index).data)[:-1]
        if index % 8:  # one in eight plays to win, the others do harm and give a wrong answer
            replies = [random_order.choice(short) for _ in range(4)] + ["SELECT 'wrong'"]
        plans.append([*replies, "submit"])
    alone = [play(tasks.task(index), plans[index]) for index in range(64)]
    environments = [started(tasks.task(index)) for index in range(64)]
    together = [[] for _ in range(64)]
    turns = [index for index, plan in enumerate(plans) for _ in plan]
    random_order.shuffle(turns)
    for index in turns:
        together[index].append(environments[index].step(plans[index][len(together[index])]))
    assert together == alone
    assert [results[-1].ended for results in together] == ["failure" if index % 8 else "success" for index in range(64)]


def play(task, replies):
    environment = started(task)
    return [environment.step(reply) for reply in replies]


def test_episodes_leave_their_database_unchanged_and_no_memory_behind():
    world = World.from_json(TASK.data["world"])
    mine = database.SqliteDatabase(world, database.Limits(operations=100_000))
    before = tables_of(world, mine)
    for _, statement, _, _ in CASES:
        if len(statement) < 1000:
            try:
                mine.run(statement)
            except database.QueryError:
                continue
    assert tables_of(world, mine) == before == tables_of(world, database.SqliteDatabase(world, database.Limits()))


def tables_of(world, connection):
    return {table.name: connection.run(f"SELECT * FROM {table.name}") for table in world.tables}


def test_worlds_do_not_fill_the_heap_before_garbage_is_collected():
    """SQLite's memory is limited for the whole process: what closed episodes hold would starve the next ones."""
    tasks = make_tasks({"levels": (1, 1)}, "train", 1 << 20, 0)
    environments = [make_environment({}) for _ in range(8)]
    gc.collect()
    gc.disable()
    try:
        used = []
        for index in range(160):
            environments[index % 8].reset(tasks.task(index), 0)
            used.append(sqlite_memory())
        assert max(used[80:]) < max(used[:80]) + (1 << 20)
    finally:
        gc.enable()


def sqlite_memory():
    """Bytes that SQLite holds in this process."""
    library = ctypes.CDLL(importlib.util.find_spec("_sqlite3").origin)
    library.sqlite3_memory_used.restype = ctypes.c_longlong
    return library.sqlite3_memory_used()


# Fuzzing: pieces of hostile SQL in any order, whole statements, raw text.

_PIECES = re.findall(r"\w+|[^\w\s]", " ".join(case[1] for case in CASES if len(case[1]) < 300))
_WORDS = st.sampled_from(
    sorted({*_PIECES, "task", "'", '"', "`", "--", "/*", "*/", ";", "\0", "\ud800", "\U0001f4a5", "0x", "1e9"})
)
SOUP = st.lists(_WORDS, max_size=40).map(" ".join)
STATEMENTS = st.sampled_from([case[1] for case in CASES if len(case[1]) < 2000])
SPLICED = st.tuples(STATEMENTS, STATEMENTS, st.integers(0, 200)).map(
    lambda three: three[0][: three[2]] + three[1][three[2] :]
)
LARGE = st.tuples(_WORDS, st.integers(1, 1_000_000)).map(lambda two: (two[0] * two[1])[:1_000_000])
REPLIES = st.one_of(SOUP, SOUP.map("SELECT {}".format), SPLICED, SPLICED, st.text(), LARGE.filter(len))
FUZZED = started()
FUZZED_ROWS = FUZZED.step(EVERYTHING).observation


def check_fuzzed(reply):
    begun = time.perf_counter()
    result = FUZZED.step(reply)
    assert time.perf_counter() - begun < SECONDS
    if result.ended:
        FUZZED.reset(TASK, 0)
        return
    assert result.reward == 0.0 and 0.0 <= result.info["progress"] <= 1.0
    assert len(result.observation.text) < 1200
    result.observation.text.encode()
    assert FUZZED.step(EVERYTHING).observation == FUZZED_ROWS


QUIET = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=800, derandomize=True, **QUIET)
@given(REPLIES)
def test_fuzzed_replies(reply):
    check_fuzzed(reply)


@pytest.mark.slow
@settings(max_examples=10_000, **QUIET)
@given(REPLIES)
def test_ten_thousand_fuzzed_replies(reply):
    check_fuzzed(reply)


@pytest.mark.slow
def test_after_fuzzing_the_question_can_still_be_answered():
    assert still_solves(FUZZED)


@pytest.mark.parametrize("last_rows", ["", " LIMIT 1"])
def test_sorting_texts_counts_though_it_is_one_operation(last_rows):
    # Texts are compared by Python: a sort of half a million of them took ten seconds that no limit saw.
    world = World.from_json(TASK.data["world"])
    mine = database.SqliteDatabase(world, database.Limits(operations=300_000))
    rows = (
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT {count}) SELECT t FROM (SELECT t, "
        "row_number() OVER (ORDER BY t) r FROM (SELECT ((x * 7919 % 10007) || 'É') COLLATE general_ci t FROM c)) "
        "ORDER BY r"
    )
    short = mine.run(rows.format(count=500) + last_rows)
    assert short == sorted((f"{x * 7919 % 10007}É",) for x in range(1, 501))[: len(short)]
    with pytest.raises(database.QueryError, match="too many steps") as caught:
        mine.run(rows.format(count=8000) + last_rows)
    assert caught.value.kind == "limit"
    assert mine.run("SELECT 1 WHERE 'B  ' COLLATE general_ci = 'b'") == [(1,)]
    long = "x" * 5000
    assert mine.run(f"SELECT '{long}É' COLLATE general_ci = '{long.upper()}e'") == [(1,)]
    mine.close()
