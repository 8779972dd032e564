"""A real language model through the whole of it: SmolLM2-135M acts, and is trained on what it sampled."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from jaxagent.config_files import apply_overrides, load_config
from jaxagent.episodes import read_episodes
from jaxagent.models.weights import importing
from jaxagent.rollout.setup import make_setup

CONFIG = "frozen_lake_smollm2:budgetmix,runlocal"
ONE_UPDATE = (
    "rollout.temperature=0.7",
    "algorithm.steps=1",
    "algorithm.groups=1",
    "rollout.slots=8",
    "algorithm.entropy_coefficient=0.01",  # one group may earn the same reward throughout
    "logging.trajectories=all",
    "logging.tensorboard=False",
)


def train_on_one_device(workdir):
    """In a process of its own: the eight devices that the tests simulate would each hold gradients and moments."""
    overrides = (f"--config.{override}" for override in ONE_UPDATE)
    command = (sys.executable, "-m", "jaxagent.cli", "train", f"--config={CONFIG}", f"--workdir={workdir}", *overrides)
    done = subprocess.run(command, env=os.environ | {"XLA_FLAGS": ""}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_trainer_recomputes_the_log_probs_of_a_real_model(tmp_path, monkeypatch):
    """F1, F10: at temperature 0.7 in float32, and every context is what the template would have rendered."""
    monkeypatch.setenv("JAXAGENT_HOME", str(tmp_path / "home"))
    importing.import_smollm2()
    train_on_one_device(tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert 0 < metrics["train/logprob_diff_mean"] <= metrics["train/logprob_diff_max"] < 1e-4
    assert metrics["train/grad_norm"] > 0 and np.isfinite(metrics["train/loss"])
    assert metrics["cost/compilations"] == 0
    config = apply_overrides(load_config(CONFIG), [*ONE_UPDATE, "optimizer.micro_rows=8"])  # here are eight devices
    chat = make_setup(config).chat
    for episode in read_episodes(next((tmp_path / "run" / "trajectories").iterdir())):
        text = chat.tokenizer.decode(episode.token_ids())
        messages = [{"role": "user", "content": _message(chat, episode.turns[0])}]
        for before, turn in zip(episode.turns, episode.turns[1:], strict=False):
            messages.append({"role": "assistant", "content": before.text})
            messages.append({"role": "user", "content": _message(chat, turn)})
        rendered = chat.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert text.startswith(rendered) and rendered.count("Turns remaining") == len(episode.turns)


def _message(chat, turn):
    """What the environment and the engine said, out of the recorded ids."""
    text = chat.tokenizer.decode(list(turn.observation_ids))
    return text.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
