"""Environments for TRL's `environment_factory`: by hand, and (slow) against what TRL's trainer makes of them."""

import json

import pytest

from jaxagent.envs import registry
from jaxagent.envs.adapters import trl_tools
from jaxagent.envs.base import InfrastructureError
from jaxagent.envs.workers import EnvironmentPool, ResetRequest, StepRequest
from jaxagent.episodes import Task
from jaxagent.errors import UserError


class Counter:
    """Count to a target: written as TRL wants it."""

    def __init__(self):
        self.value = None

    def reset(self, target, **kwargs):
        self.value, self.target = 0, target
        kwargs["seen"].append(target)  # nobody else may see this
        return f" (target {target})"

    def add(self, amount: int) -> str:
        """
        Adds to the counter.

        Args:
            amount: What to add.
        """
        self.value += amount
        return f"now {self.value}"

    async def read(self) -> int:
        """Reads the counter."""
        return self.value

    def get_reward(self):
        if self.value == 13:
            raise RuntimeError("the judge fell ill")
        return 1.0 if self.value == self.target else 0.25

    def _secret(self):
        raise AssertionError


class Unrewarded:
    def reset(self, **kwargs):
        self.calls = 0

    def poke(self) -> None:
        """Pokes."""
        self.calls += 1


class Undescribed(Counter):
    def bare(self, x):
        return x


ROWS = [
    {
        "prompt": [{"role": "system", "content": "Count."}, {"role": "user", "content": "Reach it."}],
        "target": i,
        "seen": [],
    }
    for i in range(200)
]
OPTIONS = {"factory": f"{__name__}:Counter", "dataset": f"{__name__}:ROWS", "max_turns": 6}
TASK = Task("trl", "t", {"row": ROWS[5]}, 6)


def poked(prompts, completions, environments, target, **kwargs):
    assert prompts[0][-1]["content"] == "Reach it." and target == [5]
    return [float(environment.calls == 2 and completions[0][-1]["content"] == "done") for environment in environments]


def broken(**kwargs):
    raise ZeroDivisionError


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.fixture(autouse=True)
def here_importable(monkeypatch, request):
    monkeypatch.syspath_prepend(str(request.path.parent))


def test_an_episode():
    environment = trl_tools.make_environment(OPTIONS)
    text = environment.reset(TASK, 0).text
    assert text.endswith("Count.\n\nReach it. (target 5)")
    described = [json.loads(line) for line in text.splitlines() if line.startswith('{"name"')]
    assert [tool["name"] for tool in described] == ["add", "read"]
    assert described[0]["parameters"]["properties"]["amount"] == {"type": "integer", "description": "What to add."}
    result = environment.step("I shall " + call("add", amount=2) + call("add", amount=3))
    assert (
        result.observation.text == "<tool_response>\nnow 2\n</tool_response>\n<tool_response>\nnow 5\n</tool_response>"
    )
    assert result.ended is None and result.info["valid"]
    assert environment.step(call("read")).observation.text == "<tool_response>\n5\n</tool_response>"
    assert (environment.step("done").ended, ROWS[5]["seen"]) == ("success", [])
    environment.reset(TASK, 0)
    result = environment.step("I give up")
    assert (result.ended, result.reward) == ("failure", 0.25)


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (call("_secret"), "unknown_tool"),
        (call("reset", target=1), "unknown_tool"),
        (call("get_reward"), "unknown_tool"),
        (call("__init__"), "unknown_tool"),
        (call("add"), "tool"),
        (call("add", amount="x"), "tool"),
        (call("add", self=1, amount=2), "tool"),
        ("<tool_call>{</tool_call>", "format"),
        (call("add", amount=[[]] * 10), "tool"),
    ],
)
def test_calls_that_fail_are_answers(reply, error):
    environment = trl_tools.make_environment(OPTIONS)
    environment.reset(TASK, 0)
    result = environment.step(reply)
    assert result.info["error"] == error and not result.info["valid"] and "error" in result.observation.text
    assert result.ended is None
    assert environment.step(call("read")).observation.text == "<tool_response>\n0\n</tool_response>"


def test_reward_functions_of_trls_form():
    options = OPTIONS | {"factory": f"{__name__}:Unrewarded", "reward": f"{__name__}:poked"}
    environment = trl_tools.make_environment(options)
    for pokes, ended in ((1, "failure"), (2, "success")):
        environment.reset(TASK, 0)
        environment.step(call("poke") * pokes)
        assert environment.step("done").ended == ended


def test_what_scores_is_not_the_agents():
    environment = trl_tools.make_environment(OPTIONS)
    environment.reset(TASK, 0)
    environment.step(call("add", amount=13))
    with pytest.raises(InfrastructureError, match=r"verifier.*fell ill"):
        environment.step("done")
    environment = trl_tools.make_environment(OPTIONS | {"reward": f"{__name__}:broken"})
    environment.reset(TASK, 0)
    with pytest.raises(InfrastructureError, match="verifier"):
        environment.step("done")


def test_in_workers_and_side_by_side():
    tasks = trl_tools.make_tasks(OPTIONS, "train", 1000, 0)
    assert 100 < len(tasks) < 200 and tasks.task(0).max_turns == 6
    with EnvironmentPool("trl", OPTIONS, num_workers=1, step_timeout=60.0) as pool:
        chosen = [tasks.task(3), tasks.task(4)]
        pool.run([ResetRequest(slot, task, 0) for slot, task in enumerate(chosen)])
        pool.run([StepRequest(0, call("add", amount=chosen[0].data["row"]["target"])), StepRequest(1, call("read"))])
        assert [result.ended for result in pool.run([StepRequest(0, "."), StepRequest(1, ".")])] == [
            "success",
            "failure",
        ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "need factory and dataset"),
        (OPTIONS | {"max_turns": 0}, r"env\.options\.max_turns"),
        (OPTIONS | {"factory": f"{__name__}:Undescribed"}, r"the tool bare\(\) cannot be described"),
        (OPTIONS | {"factory": f"{__name__}:Unrewarded"}, "nothing scores an episode"),
        (OPTIONS | {"factory": "builtins:dict"}, r"makes a dict without reset\(\)"),
        (OPTIONS | {"factory": "builtins:ord"}, "'builtins:ord' fails when called: TypeError"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        registry.get("trl").make_environment(options)


def test_a_data_set_that_is_none_is_named():
    for dataset, message in [("builtins:ord", "fails when called"), ("math:pi", "is a float, not rows")]:
        with pytest.raises(UserError, match=message):
            registry.get("trl").make_tasks(OPTIONS | {"dataset": dataset}, "train", 5, 0)


@pytest.mark.slow
def test_tools_and_rewards_are_those_of_trls_trainer(tmp_path, monkeypatch):
    """TRL's own trainer, with a tiny random model, finds the same tools and the same reward in the same class."""
    trl = pytest.importorskip("trl")
    torch = pytest.importorskip("torch")
    import datasets
    import tokenizers
    import transformers

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    words = tokenizers.models.WordLevel({"<unk>": 0, "<eos>": 1, "Count.": 2}, unk_token="<unk>")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), eos_token="<eos>", pad_token="<eos>"
    )
    from trl import chat_template_utils

    tokenizer.chat_template = chat_template_utils.qwen3_chat_template
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(vocab_size=8, head_dim=8, num_key_value_heads=1, **shape)
    )
    trainer = trl.GRPOTrainer(
        model=model,
        args=trl.GRPOConfig(
            output_dir=str(tmp_path), report_to=[], use_cpu=True, num_generations=2, per_device_train_batch_size=2
        ),
        train_dataset=datasets.Dataset.from_list([{"prompt": row["prompt"], "target": row["target"]} for row in ROWS]),
        processing_class=tokenizer,
        environment_factory=Counter,
    )
    ours = trl_tools.make_environment(OPTIONS)
    assert sorted(tool.__name__ for tool in trainer.tools) == sorted(trl_tools.tools_of(ours._env))
    (instance,) = trainer._environment_pool[None]
    (reward,) = trainer.reward_funcs
    for amount in (5, 4):
        instance.reset(**ROWS[5] | {"seen": []})
        instance.add(amount)
        ours.reset(TASK, 0)
        ours.step(call("add", amount=amount))
        assert reward(environments=[instance]) == [ours.step("done").reward]
    assert torch.get_num_threads() >= 1
