"""Hostile replies and what each must answer: (name, reply, kind of error or None, a part of the observation).

The database has a table `dog` of 8 to 14 rows with the columns id, name, colour, age, weight, owner_id.
"""

LONG = "x" * 1_000_000
COUNTING = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
READ_ONLY = "can only be read"
NO_SQL = "holds no SQL statement"
STOPPED = "timeout"


def doubling(levels: int) -> str:
    """Each part uses the one before twice: the text grows by a line, its meaning doubles."""
    parts = [f"a{i} AS (SELECT 1 AS x FROM a{i - 1} p, a{i - 1} q)" for i in range(1, levels + 1)]
    return f"WITH a0 AS (SELECT 1 AS x), {', '.join(parts)} SELECT COUNT(*) FROM a{levels}"


def dogs(count: int) -> str:
    """The table beside itself, so many times."""
    return ", ".join(f"dog d{i}" for i in range(count))


def text_of(length: int, letter: str) -> str:
    """An expression for a text of up to 19,000 equal letters that is short itself."""
    return f"substr(replace(replace(hex('{'n' * 60}'), '6E', '{letter * 160}'), '', ''), 1, {length})"


SEVERAL = (
    ("two statements", "SELECT 1; SELECT 2", "forbidden", "one statement at a time"),
    ("a write behind a query", "SELECT 1; DROP TABLE dog", "forbidden", "one statement at a time"),
    ("a write behind SHOW", "SHOW TABLES; DROP TABLE dog", "sql", "syntax error"),
    ("a write behind DESCRIBE", "DESCRIBE dog; DROP TABLE dog", "sql", "syntax error"),
    ("empty statements", "SELECT 1;;", None, "[(1,)]"),
    ("a comment behind", "SELECT 1; -- end", None, "[(1,)]"),
)
WRITES = tuple(
    (statement[:40], statement, "forbidden", READ_ONLY)
    for statement in (
        "DROP TABLE dog",
        "DELETE FROM dog",
        "UPDATE dog SET age = 1",
        "INSERT INTO dog (id) VALUES (99)",
        "REPLACE INTO dog (id) VALUES (1)",
        "WITH d AS (SELECT 1) DELETE FROM dog",
        "CREATE TABLE t (a)",
        "CREATE TEMP TABLE t AS SELECT 1",
        "CREATE VIEW v AS SELECT 1",
        "CREATE INDEX i ON dog (id)",
        "CREATE TRIGGER g AFTER INSERT ON dog BEGIN SELECT 1; END",
        "CREATE VIRTUAL TABLE f USING fts5(a)",
        "ALTER TABLE dog RENAME TO cat",
        "VACUUM",
        "VACUUM INTO 'stolen.db'",
        "REINDEX",
        "ANALYZE",
        "BEGIN",
        "BEGIN EXCLUSIVE",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT s",
        "ATTACH 'stolen.db' AS f",
        "ATTACH ':memory:' AS m",
        "DETACH main",
        "PRAGMA writable_schema = ON",
        "PRAGMA query_only = OFF",
        "PRAGMA journal_mode = WAL",
        "PRAGMA hard_heap_limit = 0",
        "PRAGMA temp_store_directory = '/'",
        "PRAGMA database_list",
        "SELECT * FROM pragma_database_list",
        "SELECT load_extension('x')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT random()",
        "SELECT zeroblob(1000000000)",
        "SELECT randomblob(1000000000)",
        "SELECT printf('%.*c', 100000000, 'x')",
        "/* hidden */ DROP TABLE dog",
        "-- hidden\nDROP TABLE dog",
    )
)
FOREIGN = tuple(
    (statement[:40], statement, "sql", part)
    for statement, part in (
        ("SELECT readfile('/etc/hostname')", "no such function"),
        ("SELECT writefile('f', 'x')", "no such function"),
        ("SELECT edit('x')", "no such function"),
        ("SELECT LOAD_FILE('/etc/hostname')", "no such function"),
        ("SELECT SLEEP(100)", "no such function"),
        ("SELECT BENCHMARK(1000000000, MD5('x'))", "no such function"),
        ("SELECT * FROM dog INTO OUTFILE '/x'", "syntax error"),
        ("SET GLOBAL x = 1", "syntax error"),
        ("KILL 1", "syntax error"),
        ("USE mysql", "syntax error"),
        ("SHOW TABLES FROM other", "unknown database"),
        ("DESCRIBE absent", "no such table: absent"),
        ("SELECT * FROM absent", "no such table: absent"),
        ("SELECT absent FROM dog", "no such column: absent"),
        ("SELECT ?", "bindings"),
        ("SELECT :name", "bindings"),
        ("SELECT", "incomplete input"),
        ("SELECT ABS(-9223372036854775808)", "integer overflow"),
    )
)
COSTLY = (
    ("endless recursion, counted", f"{COUNTING} SELECT COUNT(*) FROM c", "limit", STOPPED),
    ("endless recursion, sorted", f"{COUNTING} SELECT x FROM c ORDER BY x", "limit", STOPPED),
    ("endless recursion, shown", f"{COUNTING} SELECT x FROM c", "too_large", "more than 10000 rows"),
    (
        "a text that doubles",
        "WITH RECURSIVE c(s) AS (SELECT 'a' UNION ALL SELECT s || s FROM c) SELECT s FROM c",
        "limit",
        "big",
    ),
    ("cross join, counted", f"SELECT COUNT(*) FROM {dogs(14)}", "limit", STOPPED),
    ("cross join, shown", f"SELECT * FROM {dogs(6)}", "too_large", "more than 10000 rows"),
    ("cross join, sorted", f"SELECT d0.name FROM {dogs(9)} ORDER BY d1.name || d2.name || d3.name", "limit", STOPPED),
    (
        "cross join, distinct",
        f"SELECT COUNT(DISTINCT d0.id || d1.id || d2.id || d3.id || d4.id) FROM {dogs(9)}",
        "limit",
        STOPPED,
    ),
    (
        "cross join, grouped",
        f"SELECT group_concat(d0.name || d1.name || d2.name || d3.name) FROM {dogs(4)}",
        "limit",
        "big",
    ),
    ("cross join, in JSON", f"SELECT json_group_array(d0.id) FROM {dogs(5)}", "limit", "big"),
    ("a window over a cross join", f"SELECT SUM(1) OVER (ORDER BY d0.id) FROM {dogs(6)}", "too_large", "more than"),
    (
        "a correlated cross join",
        f"SELECT (SELECT COUNT(*) FROM {dogs(9)} WHERE d0.id = o.id) FROM dog o",
        "limit",
        STOPPED,
    ),
    ("a query that doubles", doubling(24), "limit", "out of memory"),
    ("nested brackets", f"SELECT {'(' * 3000}1{')' * 3000}", "sql", "overflow"),
    ("a long sum", f"SELECT {'+'.join('1' * 3000)}", "sql", "too large"),
    ("many unions", " UNION ".join(["SELECT 1"] * 300), "sql", "too many terms"),
    ("many columns", f"SELECT {','.join('1' * 500)}", "sql", "too many columns"),
    ("many values", f"SELECT 1 WHERE 1 IN ({','.join('1' * 5000)})", None, "[(1,)]"),
    ("a pattern of wildcards", f"SELECT {text_of(9000, 'a')} LIKE '{'%a' * 49}b'", None, "[(0,)]"),
    ("a long pattern", f"SELECT 'a' LIKE '{'%a' * 200}'", "sql", "too complex"),
    ("a search in equal letters", f"SELECT instr({text_of(9000, 'a')}, {text_of(4500, 'a')} || 'b')", None, "[(0,)]"),
    (
        "a trim by many letters",
        f"SELECT trim({text_of(9000, 'b')}, {text_of(9000, 'a')} || 'b') = ''",
        "limit",
        "too big",
    ),
    ("a date out of range", "SELECT date('2000-01-01', '+1000000000 years')", None, "[(None,)]"),
)
TEXTS = (
    ("NUL in a text", "SELECT 'a\0b'", "bad_text", "null character"),
    ("NUL before a write", "SELECT 1\0; DROP TABLE dog", "bad_text", "null character"),
    ("a lone surrogate", "SELECT '\ud800'", "bad_text", "cannot be read"),
    ("a megabyte of text", f"SELECT '{LONG}'", "too_long", "16000 characters"),
    ("a megabyte of comment", f"-- {LONG}\nSELECT 1", "too_long", "16000 characters"),
    ("a megabyte in a block", f"```sql\nSELECT 1 -- {LONG}\n```", "too_long", "16000 characters"),
    ("a megabyte of prose", LONG, "too_long", "16000 characters"),
    ("a megabyte of thought", f"<think>{LONG}</think>SELECT 1", None, "[(1,)]"),
    ("look-alike letters", "\u0405ELECT 1", "no_action", NO_SQL),
    ("wide signs", "SELECT '\U0001f4a5', '\u202e'", None, "\U0001f4a5"),
    ("bytes that are no text", "SELECT CAST(x'fffe' AS TEXT)", None, "\ufffd"),
    ("bytes", "SELECT x'00ff'", None, "\\x00\\xff"),
    ("numbers without end", "SELECT 9223372036854775807 + 1, 1e999, -1e999, 0 / 0", None, "inf, -inf, None"),
    ("only a comment", "-- nothing", "no_action", NO_SQL),
    ("an open comment", "SELECT 1 /* open", None, "[(1,)]"),
    ("nothing", "", "no_action", NO_SQL),
    ("white space", " \n\t", "no_action", NO_SQL),
    ("a semicolon", ";", "no_action", NO_SQL),
    ("prose", "I think that it is three.", "no_action", NO_SQL),
    ("Python", "__import__('os').system('true')", "no_action", NO_SQL),
    ("a misspelling", "SELEKT 1", "no_action", NO_SQL),
    ("an open block", "```sql\nSELECT 1", "no_action", "does not close"),
    ("two blocks", "```sql\nDROP TABLE dog\n```\n```sql\nSELECT 2\n```", None, "[(2,)]"),
    ("a block in a thought", "<think>```sql\nDROP TABLE dog\n```</think>SELECT 1", None, "[(1,)]"),
    ("an open thought", "<think>SELECT 1", "no_action", NO_SQL),
)
READING = (
    ("PRAGMA table_info", "PRAGMA table_info(dog)", None, "'colour'"),
    ("its function", "SELECT name FROM pragma_table_info('dog')", None, "('colour',)"),
    ("the catalogue", "SELECT name FROM sqlite_master WHERE name = 'dog'", None, "[('dog',)]"),
    ("the temporary catalogue", "SELECT * FROM sqlite_temp_master", None, "[]"),
    ("a plan", "EXPLAIN QUERY PLAN SELECT * FROM dog", None, "SCAN dog"),
    ("values", "VALUES (1), (2)", None, "[(1,), (2,)]"),
    ("JSON", "SELECT value FROM json_each('[1, 2]')", None, "[(1,), (2,)]"),
    ("SHOW DATABASES", "SHOW DATABASES", None, "[('task',)]"),
    ("a qualified table", "SELECT COUNT(*) > 7 FROM task.dog", None, "[(1,)]"),
    ("a qualifier in a text", "SELECT 'task.dog'", None, "[('task.dog',)]"),
)
CASES = (*SEVERAL, *WRITES, *FOREIGN, *COSTLY, *TEXTS, *READING)
