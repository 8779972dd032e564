"""`jaxagent data bfcl`: what it installs, and its errors. pip is never run here."""

import subprocess

import pytest
from bfcl_worlds import needs_package

from jaxagent.envs import datasets
from jaxagent.envs.bfcl import environment as bfcl
from jaxagent.envs.bfcl import package, tasks, vocabulary
from jaxagent.errors import UserError


@pytest.fixture
def not_installed(monkeypatch):
    monkeypatch.setattr(package, "is_installed", lambda: False)
    for cached in (package._folder, package.system_class):
        cached.cache_clear()
    yield
    for cached in (package._folder, package.system_class):
        cached.cache_clear()


def test_it_is_a_data_set(tmp_path):
    assert "bfcl" in datasets.names()
    with pytest.raises(UserError, match="leave --source out"):
        datasets.fetch("bfcl", source=str(tmp_path))


def test_pip_gets_the_running_interpreter_and_no_dependencies(monkeypatch, not_installed):
    seen = []

    def run(command, **options):
        seen.append(command)
        return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: no network")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(UserError, match=r"pip could not install .*no network"):
        datasets.fetch("bfcl", source=None)
    assert seen[0][0] == package.sys.executable and "--no-deps" in seen[0]
    assert seen[0][-2:] == ["nvidia-bfcl==26.3", "mpmath==1.3.0"]


def test_without_the_package_the_environment_says_what_to_run(not_installed):
    for cached in (bfcl.functions.owners, bfcl.functions.documents):
        cached.cache_clear()
    with pytest.raises(UserError, match="jaxagent data bfcl"):
        bfcl.make_environment({})
    tasks.entries.cache_clear()
    with pytest.raises(UserError, match="jaxagent data bfcl"):
        bfcl.make_tasks({}, "train", 5, 0)


@needs_package
def test_what_is_there_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXAGENT_HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pip was run"))
    vocabulary.folder().mkdir(parents=True)
    (vocabulary.folder() / "tokenizer.json").write_text("{}")
    assert "26.3" in datasets.fetch("bfcl", source=None)
    assert (vocabulary.folder() / "tokenizer.json").read_text() == "{}"
