import pytest

from jaxagent.envs import datasets
from jaxagent.errors import UserError


def test_an_unknown_data_set_and_a_missing_source_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "_FETCHERS", {"made": "made_module:fetch"})
    with pytest.raises(UserError, match="'mode'; there are made"):
        datasets.fetch("mode", source=None)
    with pytest.raises(UserError, match="no such folder"):
        datasets.fetch("made", source=str(tmp_path / "missing"))


def test_the_home_can_be_moved(monkeypatch, tmp_path):
    monkeypatch.setenv("JAXAGENT_HOME", str(tmp_path))
    assert datasets.folder("bfcl") == tmp_path / "data" / "bfcl"
    monkeypatch.setenv("JAXAGENT_HOME", "")
    assert datasets.home().parts[-2:] == (".cache", "jaxagent")
