"""Hostile replies and what each must answer: (name, reply, error kind or None, a part of the observation)."""

LONG = "x" * 1_000_000
DOUBLING = (
    "WITH a0 AS (SELECT 1 AS x), "
    + ", ".join(f"a{i} AS (SELECT 1 AS x FROM a{i - 1} p, a{i - 1} q)" for i in range(1, 24))
    + " SELECT COUNT(*) FROM a23"
)
TEXT_9000 = (
    "replace(hex(x'00'), '0', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')"
)
COUNTING = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
GROWING = "WITH RECURSIVE c(s) AS (SELECT 'a' UNION ALL SELECT s || s FROM c) "
CASES = ()
