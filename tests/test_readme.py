"""What the README tells a newcomer to write and type works as it stands."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from jaxagent import cli

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_environment_of_the_readme_trains(tmp_path):
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "class Guess" in block]
    assert sum(bool(line.strip()) for line in example.splitlines()) <= 40
    (tmp_path / "guess.py").write_text(example)
    python = [sys.executable, "-m", "jaxagent.cli"]
    settings = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "XLA_FLAGS": "--xla_backend_optimization_level=1"}
    for words in (
        ["envs", "guess:ENTRY"],
        ["sft", "--config=guess.py:runlocal", "--workdir=base"],
        ["train", "--config=guess.py:budgetmix,runlocal", "--config.model.init_from=base", "--workdir=arm"],
    ):
        done = subprocess.run([*python, *words], cwd=tmp_path, env=settings, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        if words[0] == "envs":
            assert "25 %: 1.00" in done.stdout and "full budget: 6 turns" in done.stdout
    assert (tmp_path / "arm" / "metrics.jsonl").read_text().count("\n") == 2


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^    jaxagent (\w+)", README, re.MULTILINE))))
def test_commands_of_the_readme_exist(command, capsys):
    assert cli.main([command, "--help"]) == 0
    assert f"jaxagent {command}" in capsys.readouterr().out


def test_paths_of_the_readme_exist():
    for name in re.findall(r"`((?:configs|launch|notebooks|results)/[\w./]*)`", README):
        assert (ROOT / name).exists(), name
    for target in set(re.findall(r"(?:^    |`)make ([a-z-]+)", README, re.MULTILINE)):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
