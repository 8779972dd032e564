import json
import subprocess
import sys

import numpy as np
import pytest

from jaxagent.envs.deepcoder import families
from jaxagent.envs.deepcoder.judge import same_text, same_value
from jaxagent.envs.deepcoder.mutations import draft, mutants


def by_plain_python(program, stdin):
    done = subprocess.run([sys.executable, "-c", program], input=stdin, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


@pytest.mark.parametrize("name", families.names())
def test_references_agree_with_their_expected_outputs(name):
    """The program text, run on its own by a plain Python, against what the function gives here: both forms at once."""
    generator = np.random.default_rng(7)
    for _ in range(6 if name == "pipeline" else 1):
        problem = families.draw_problem(name, generator)
        drawn = [problem.draw(generator) for _ in range(12)]
        loop = "import json, sys\nfor line in sys.stdin:\n    print(json.dumps(solve(*json.loads(line))))\n"
        lines = "".join(json.dumps(arguments) + "\n" for arguments in drawn)
        printed = by_plain_python(f"{problem.program}\n{loop}", lines).splitlines()
        for arguments, line in zip(drawn, printed, strict=True):
            assert same_value(problem.solve(*json.loads(json.dumps(arguments))), json.loads(line)), arguments
        out = by_plain_python(families.stdin_program(problem), families.stdin_text(problem, drawn[0]))
        assert same_text(families.stdout_text(problem, problem.solve(*drawn[0])), out)


def test_every_step_of_the_pipelines_agrees_with_its_code():
    generator = np.random.default_rng(0)
    for table in (families._KEEP, families._CHANGE, families._ORDER):
        for _, code, bounds in table:
            for _ in range(200):
                k = int(generator.integers(bounds[0], bounds[1] + 1)) if bounds else 0
                numbers = generator.integers(-60, 60, int(generator.integers(0, 9))).tolist()
                scope = {"numbers": list(numbers)}
                assert families._STEPS[code](list(numbers), k) == eval(code.format(k=f"({k})"), scope), code
    for _, code, _ in families._FINISH:
        for _ in range(200):
            numbers = generator.integers(-5, 5, int(generator.integers(0, 9))).tolist()
            assert families._ENDS[code](list(numbers)) == eval(code, {"numbers": numbers}), code


def test_problems_are_many_and_inputs_tell_answers_apart():
    generator = np.random.default_rng(1)
    statements = {families.draw_problem("pipeline", generator).statement for _ in range(300)}
    assert len(statements) > 280
    for name in families.FAMILIES:
        problem = families.draw_problem(name, generator)
        answers = {json.dumps(problem.solve(*problem.draw(generator))) for _ in range(60)}
        assert len(answers) >= (2 if problem.result == "bool" else 4), name
        assert all(argument in problem.program for argument, _ in problem.arguments)
        assert '"""' not in problem.program and problem.statement[-1] in ".?1"


def test_mutants_are_single_changes():
    program = "def f(a):\n    b = a + 1\n    if b > 2 and a:\n        b -= 3\n    return b\n"
    found = list(mutants(program))
    assert {kind for kind, _ in found} == {"operator", "number", "line"}
    texts = [text for _, text in found]
    assert len(set(texts)) == len(texts) and program not in texts
    for expected in ("b = a - 1", "b >= 2 and a", "b > 2 or a", "b += 3", "b -= 4", "b = a + 2", "pass"):
        assert any(expected in text for text in texts), expected
    drawn = {draft(program, np.random.default_rng(seed)) for seed in range(200)}
    assert drawn == set(texts)
    assert draft("x = y", np.random.default_rng(0)) == "x = y"
