"""Experiment files by name and path, variants, overrides, and the errors that the user reads."""

import json
import pathlib

import pytest

from jaxagent.config import default_config
from jaxagent.config_files import apply_overrides, config_fields, config_names, find_config, load_config
from jaxagent.errors import UserError

CHECKOUT = pathlib.Path(__file__).resolve().parent.parent
EXPERIMENT = """
from jaxagent.config import default_config

def get_config(variant="plain"):
    config = default_config()
    config.seed = {"plain": 1, "other": 2}[variant]
    config.env.options = {"size": 4}
    return config
"""


@pytest.fixture
def experiments(tmp_path, monkeypatch):
    """A working folder with `configs/toy.py`."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "toy.py").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "configs"


def message_of(call, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments)
    return str(caught.value)


def test_default_config_refuses_a_new_field():
    with pytest.raises((AttributeError, KeyError)):
        default_config().optimizer.learning_rat = 1.0


def test_name_path_and_variant(experiments):
    assert load_config("toy").seed == 1
    assert load_config("toy:other").seed == 2
    assert load_config(f"{experiments}/toy.py:other").seed == 2
    assert load_config("configs/toy.py").seed == 1


def test_here_comes_before_the_checkout(experiments):
    name = next(name for name in config_names() if name != "toy")
    (experiments / f"{name}.py").write_text(EXPERIMENT)
    assert find_config(name).resolve() == experiments / f"{name}.py"


def test_the_packages_own_copy_is_found_last(experiments, tmp_path, monkeypatch):
    from jaxagent import config_files

    package = tmp_path / "site-packages" / "jaxagent"
    (package / "configs").mkdir(parents=True)
    for name in ("toy", "packaged"):
        (package / "configs" / f"{name}.py").write_text(EXPERIMENT.replace('"plain": 1', '"plain": 3'))
    (tmp_path / "site-packages" / "configs").mkdir()
    (tmp_path / "site-packages" / "configs" / "foreign.py").write_text(EXPERIMENT)
    monkeypatch.setattr(config_files, "PACKAGE", package)
    assert load_config("packaged").seed == 3
    assert load_config("toy").seed == 1
    assert config_names() == ("packaged", "toy")  # another project's `configs` beside the package is not ours


def test_every_shipped_experiment_loads_in_every_documented_variant():
    shipped = sorted(path.stem for path in (CHECKOUT / "configs").glob("*.py"))
    assert {"lookup_tiny", "fog_lake_tiny"} <= set(shipped)
    for name in shipped:
        for variant in ("base", "grpo_full", "grpo_full_noline", "budgetmix", "budgetmix_noline", "runlocal"):
            config = load_config(f"{name}:{variant}")
            assert set(dict(config_fields(default_config()))) <= set(dict(config_fields(config)))


def test_shipped_experiments_say_what_how_long_and_which_command():
    for path in (CHECKOUT / "configs").glob("*.py"):
        opening = path.read_text().split('"""')[1]
        for word in ("jaxagent ", "time", "Variants"):
            assert word in opening, f"{path.name} opens without {word!r}"


def test_loaded_config_is_locked_except_environment_options(experiments):
    config = load_config("toy")
    with pytest.raises((AttributeError, KeyError)):
        config.optimizer.momentum = 0.9
    config.env.options.anything = 3


def test_unknown_name_names_the_nearest(experiments):
    assert "did you mean 'toy'" in message_of(load_config, "tou")


def test_missing_file(experiments):
    assert "nothing.py: no such file" in message_of(load_config, "nothing.py")


@pytest.mark.parametrize("spec", ["", ":other", "toy:"])
def test_empty_parts_of_the_name(experiments, spec):
    assert "NAME_OR_PATH" in message_of(load_config, spec)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1\nraise RuntimeError('no luck')\n", "line 2: cannot be loaded: RuntimeError: no luck"),
        ("def get_config(:\n", "line 1: cannot be loaded: SyntaxError"),
        ("import no_such_module\n", "line 1: cannot be loaded: ModuleNotFoundError"),
        ("x = 1\n", "has no get_config"),
        ("def get_config():\n    return 1 / 0\n", "line 2: get_config() failed: ZeroDivisionError"),
        ("def get_config():\n    return {}\n", "returned dict"),
        ("def get_config(variant):\n    return 1\n", "needs a variant"),
    ],
)
def test_a_faulty_file_is_named_with_its_line(experiments, source, said):
    (experiments / "faulty.py").write_text(source)
    message = message_of(load_config, "faulty")
    assert "faulty.py" in message
    assert said in message


def test_unknown_variant(experiments):
    assert "get_config('third') failed: KeyError: 'third'" in message_of(load_config, "toy:third")
    (experiments / "single.py").write_text("def get_config():\n    return 1\n")
    assert "takes no variant" in message_of(load_config, "single:other")


def test_overrides_are_typed_and_leave_the_original_alone(experiments):
    config = load_config("toy")
    settings = [
        "seed=7",
        "optimizer.learning_rate=1e-4",
        "algorithm.normalize_std=true",
        "budget.stages=((0, 25), (100, 50))",
        "budget.sampler=fixed",
        "env.options.size=9",
    ]
    changed = apply_overrides(config, settings)
    assert (changed.seed, changed.optimizer.learning_rate, changed.algorithm.normalize_std) == (7, 1e-4, True)
    assert changed.budget.stages == ((0, 25), (100, 50))
    assert (changed.budget.sampler, changed.env.options.size) == ("fixed", 9)
    assert (config.seed, config.env.options.size) == (1, 4)


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("0.5", 0.5), ("true", True), ("compact", "compact"), ("(3, 4)", (3, 4)), ("a=b", "a=b"), ("0", 0)],
)
def test_environment_options_may_be_new(text, value):
    options = apply_overrides(default_config(), [f"env.options.fresh={text}"]).env.options
    assert options.fresh == value
    assert type(options.fresh) is type(value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("optimizer.learning_rat=1", "did you mean 'optimizer.learning_rate'"),
        ("optimiser.learning_rate=1", "did you mean 'optimizer.learning_rate'"),
        ("learning_rate=1", "did you mean"),
        ("algorithm.qqqqqq=1", "no field 'algorithm.qqqqqq'"),
        ("seed.deeper=1", "no field 'seed.deeper'"),
        ("optimizer=3", "is a section"),
        ("seed=many", "config.seed"),
        ("seed=1.5", "config.seed"),
        ("optimizer.learning_rate=high", "config.optimizer.learning_rate"),
        ("logging.tensorboard=perhaps", "config.logging.tensorboard"),
        ("budget.stages=((0, 25", "config.budget.stages"),
        ("seed", "expected field=value"),
        ("__class__=3", "no field"),
    ],
)
def test_a_wrong_override_is_named(override, said):
    assert said in message_of(apply_overrides, default_config(), [override])


def test_environment_options_may_hold_sections(tmp_path):
    config = apply_overrides(default_config(), ["env.options.limits.seconds=2.5", "env.options.limits.name=slow"])
    assert config.env.options.to_dict() == {"limits": {"seconds": 2.5, "name": "slow"}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict()))
    assert load_config(str(path)).env.options.to_dict() == config.env.options.to_dict()
    assert "no field 'env.option.x.y'" in message_of(apply_overrides, default_config(), ["env.option.x.y=1"])
    config.env.options.size = 4
    assert "no field 'env.options.size.x'" in message_of(apply_overrides, config, ["env.options.size.x=1"])


def test_a_resolved_config_is_read_back(tmp_path):
    config = apply_overrides(default_config(), ["seed=5", "budget.stages=((0,25),(9,50))", "env.options.size=4"])
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict()))
    assert load_config(str(path)).to_dict() == config.to_dict()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "expected an object"),
        ('{"sed": 1}', "did you mean 'seed'"),
        ('{"seed": "x"}', "expected int"),
    ],
)
def test_a_damaged_resolved_config_is_named(tmp_path, content, said):
    path = tmp_path / "config.json"
    path.write_text(content)
    message = message_of(load_config, str(path))
    assert "config.json" in message or "field" in message
    assert said in message
