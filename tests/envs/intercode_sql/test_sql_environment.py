"""Both modes, what is shown, the step signal, anchors, failures of the grader, options."""

import pytest

from jaxagent.envs import registry
from jaxagent.envs.base import InfrastructureError
from jaxagent.envs.intercode_sql.demonstrators import expert_replies, make_demonstrator
from jaxagent.envs.intercode_sql.environment import compact_replies, compact_words, make_environment, make_tasks
from jaxagent.envs.workers import EnvironmentPool, ResetRequest, StepRequest
from jaxagent.episodes import Task
from jaxagent.errors import UserError
from jaxagent.models.tokenizer import load_tokenizer

WORLD = {
    "name": "zoo",
    "tables": [
        {
            "name": "animal",
            "columns": [["id", "int", False], ["name", "varchar(20)", True], ["legs", "int", True]],
            "primary_key": ["id"],
            "foreign_keys": [],
            "rows": [[1, "emu", 2], [2, "gnu", 4], [3, "Ant", 6], [4, "snail", None]],
        },
        {"name": "cage", "columns": [["no", "int", True]], "primary_key": [], "foreign_keys": [], "rows": [[7]]},
    ],
}
GOLD = "SELECT name FROM animal WHERE legs > 2 ORDER BY legs"


def zoo(gold=GOLD, *, mode="submit", ordered=True, **options):
    data = {"source": "generated", "mode": mode, "question": "Which?", "words": " which", "gold": gold}
    data |= {"ordered": ordered, "tables": ["animal"], "world": WORLD}
    environment = make_environment({"mode": mode, **options})
    first = environment.reset(Task("intercode_sql", "zoo", data, 10), 0)
    return environment, first


def signals(environment, *replies):
    results = [environment.step(reply) for reply in replies]
    return [(result.info["good"], result.info["progress"]) for result in results], results[-1]


def test_submit_scores_the_last_result():
    environment, first = zoo()
    assert "Question: Which?" in first.text and "animal" not in first.text and first.anchor == "start"
    assert environment.step(GOLD).observation.text == "[('gnu',), ('Ant',)]"
    assert environment.step("```\nsubmit.\n```").ended == "success"


def test_a_wrong_last_result_is_graded_and_an_error_or_nothing_gives_zero():
    half = "SELECT name FROM animal WHERE legs = 4"
    for replies, reward in (
        ([half], 0.5),
        ([GOLD, half], 0.5),
        ([GOLD, "SELECT absent FROM animal"], 0.0),
        ([], 0.0),
        ([GOLD, "gibberish"], 1.0),
        (["SELECT name FROM animal WHERE legs > 2 ORDER BY legs DESC"], 0.0),
    ):
        environment, _ = zoo()
        for reply in replies:
            assert environment.step(reply).ended is None
        last = environment.step("submit")
        assert (last.reward, last.ended) == (reward, "success" if reward == 1 else "failure"), replies
    environment, _ = zoo(reward="exact")
    environment.step(half)
    assert environment.step("submit").reward == 0.0
    with pytest.raises(RuntimeError, match="reset first"):
        environment.step("submit")


def test_try_again_scores_every_result_and_stops_at_the_exact_one():
    environment, _ = zoo(mode="try_again")
    half = environment.step("SELECT name FROM animal WHERE legs = 4")
    assert half.ended is None and half.reward == 0.0 and half.observation.text.endswith("Reward: 0.50")
    assert "Error executing query" in environment.step("SELECT 1 FROM absent").observation.text
    won = environment.step(GOLD)
    assert (won.ended, won.reward) == ("success", 1.0)


def test_strict_mode_is_intercodes_and_never_negative():
    backwards = GOLD.replace("ORDER BY legs", "ORDER BY legs DESC")
    for gold, reply, strict, canonical in (
        (GOLD.replace(" ORDER BY legs", ""), backwards, 0.0, 1.0),
        ("SELECT 3", "SELECT 3.0", 0.0, 1.0),
    ):
        for flag, reward in ((True, strict), (False, canonical)):
            environment, _ = zoo(gold, ordered=False, strict_intercode=flag)
            environment.step(reply)
            assert environment.step("submit").reward == reward


def test_step_signal():
    environment, _ = zoo()
    seen, last = signals(environment, "SHOW TABLES", "DESCRIBE animal", GOLD, "submit")
    assert seen == [(True, 0.0), (True, 0.0), (True, 1.0), (True, 1.0)] and last.ended == "success"
    environment, _ = zoo()
    half = "SELECT name FROM animal WHERE legs = 4"
    replies = (
        "SHOW TABLES",
        "SHOW TABLES",
        "DESCRIBE cage",
        "SELECT 1",
        half,
        "oh",
        "DROP TABLE animal",
        half,
        GOLD,
        "SELECT 1",
    )
    seen, _ = signals(environment, *replies)
    assert seen == [
        (True, 0.0),
        (False, 0.0),
        (False, 0.0),
        (False, 0.0),
        (True, 0.5),
        (False, 0.5),
        (False, 0.5),
        (False, 0.5),
        (True, 1.0),
        (False, 0.99),
    ]
    assert all(type(value) is kind for pair in seen for value, kind in zip(pair, (bool, float), strict=True))


def test_anchors_are_states_not_histories():
    first, second = zoo()[0], zoo()[0]
    first.step("SELECT 2")
    same = first.step("SELECT COUNT(*) FROM cage").observation.anchor
    assert second.step("SELECT 1.0").observation.anchor == same
    assert second.step("nothing valid").observation.anchor == same
    errors = [second.step(f"SELECT * FROM {name}").observation.anchor for name in ("one", "two", "one")]
    assert errors[0] == errors[2] != errors[1] and len({*errors, same, "start"}) == 4


def test_results_are_cut_but_graded_whole():
    many = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 400) SELECT x FROM c"
    environment, _ = zoo(many)
    text = environment.step(many).observation.text
    assert text.startswith("[(1,), (2,)") and text.endswith("(50,)] ... (400 rows in all)")
    assert environment.step("submit").reward == 1.0
    environment, _ = zoo(many, shown_chars=20)
    assert environment.step(many).observation.text == "[(1,), (2,), (3,), ( ... (400 rows in all)"


def test_the_schema_in_the_prompt_on_request():
    assert "Tables: animal(id, name, legs); cage(no)." in zoo(show_schema=True)[1].text


def test_texts_compare_as_in_the_dump():
    environment, _ = zoo()
    for condition, name in (("name = 'ANT'", "Ant"), ("name = 'ant  '", "Ant"), ("name = 'Ánt'", "Ant")):
        assert environment.step(f"SELECT name FROM animal WHERE {condition}").observation.text == f"[('{name}',)]"


def test_mysql_habits_are_understood():
    environment, _ = zoo()
    rows = environment.step("DESC animal").observation.text
    assert rows.startswith("[('id', 'int', 'NO', 'PRI', None, ''), ('name', 'varchar(20)', 'YES', '', None, '')")
    for other in (
        "describe `animal`;",
        "SHOW COLUMNS FROM animal",
        "show full fields in Animal from zoo",
        "DESC zoo.animal",
    ):
        assert environment.step(other).observation.text == rows
    assert environment.step("show tables").observation.text == "[('animal',), ('cage',)]"
    assert environment.step('SELECT `legs` FROM zoo.animal WHERE name = "emu"').observation.text == "[(2,)]"


def test_a_gold_that_fails_is_nobodys_failure():
    with pytest.raises(InfrastructureError, match="verifier: the gold query fails"):
        zoo("SELECT absent FROM animal")
    with EnvironmentPool("intercode_sql", {}, num_workers=0, step_timeout=30.0) as pool:
        broken = Task("intercode_sql", "broken", zoo()[0].data | {"gold": "SELECT absent"}, 10)
        (answer,) = pool.run([ResetRequest(0, broken, 0)])
    assert isinstance(answer, InfrastructureError) and answer.kind == "verifier"


def test_workers_give_the_same_answers():
    tasks = make_tasks({}, "train", 8, 0)
    requests = [ResetRequest(slot, tasks.task(slot), 0) for slot in range(8)]
    for turn in range(3):
        requests += [StepRequest(slot, expert_replies(tasks.task(slot).data)[turn]) for slot in range(8)]
    answers = []
    for workers in (0, 2):
        with EnvironmentPool("intercode_sql", {}, num_workers=workers, step_timeout=60.0) as pool:
            answers.append(pool.run(requests))
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": (0, 2)}, "levels"),
        ({"levels": (3, 2)}, "levels"),
        ({"names": 4}, "names must be 1..3"),
        ({"mode": "once"}, "submit or try_again"),
        ({"strict_intercode": 1}, "True or False"),
        ({"max_turns": 0}, "max_turns"),
        ({"max_seconds": 0}, "positive"),
        ({"source": "spider", "rendering": "compact"}, "chatty for source=spider"),
        ({"colour": 1}, "env.options.colour is no option"),
        ({"mysql": "somewhere"}, "unix:PATH or HOST:PORT"),
    ],
)
def test_bad_options_are_one_line(options, message):
    if "mysql" in options:
        pytest.importorskip("pymysql")
    with pytest.raises(UserError, match=message):
        make_environment(options)


def test_compact_rendering_is_in_the_vocabulary_of_the_tiny_tokenizer():
    """All that a tiny policy reads and the simple queries are whole words, never bytes."""
    words = {word.strip() for word in (*compact_words(), *compact_replies(), " DESCRIBE")}
    entry = registry.get("intercode_sql")
    options = {"levels": (1, 1), "rendering": "compact"}
    tasks, environment = make_tasks(options, "train", 40, 0), make_environment(options)
    tokenizer = load_tokenizer("tiny_sql")
    for index in range(40):
        texts = [environment.reset(tasks.task(index), 0).text]
        for reply in expert_replies(tasks.task(index).data):
            texts += [f" {reply}", environment.step(reply).observation.text]
        for text in texts:
            assert not set(text.replace("SHOW TABLES", "").split()) - words - {"submit"}, text
            expected = text.split() if "SHOW" not in text else ["one"]
            assert len(tokenizer.encode(f"{text}\n", add_special_tokens=False)) <= len(expected) + 1
    assert entry.make_demonstrator is make_demonstrator
