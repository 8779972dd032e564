"""From a config to a run with a chat template: cloning and training through the same turns; settings that are
refused."""

import warnings

import numpy as np
import pytest
from made_tokenizers import CHATML, THINKING, made_tokenizer
from tiny_runs import SilentLog

from jaxagent.config_files import apply_overrides, load_config
from jaxagent.episodes import read_episodes
from jaxagent.errors import UserError
from jaxagent.rollout.chat import LineChat, TemplateChat
from jaxagent.rollout.setup import make_setup
from jaxagent.training import loop, sft

SMALL = (
    "env.options.size=3",
    "env.options.max_path=3",
    "env.options.min_path=2",
    "env.options.view=full",
    "env.options.max_turns=4",
    "env.train_tasks=16",
    "model.width=16",
    "model.num_heads=2",
    "model.num_kv_heads=1",
    "model.head_dim=8",
    "model.mlp_width=16",
    "rollout.slots=8",
    "rollout.max_context=512",
    "rollout.max_turns=4",
    "rollout.max_turn_tokens=4",
    "rollout.extend_buckets=(64,)",
    "rollout.on_turn_cap=close",
    "rollout.temperature=0.7",
    "optimizer.row_tokens=512",
    "optimizer.micro_rows=8",
    "algorithm.groups=2",
    "algorithm.group_size=4",
    "algorithm.steps=1",
    "sft.demonstrations=8",
    "sft.steps=1",
    "eval.every=0",
    "logging.trajectories=all",
    "logging.tensorboard=False",
)


def chat_config(tmp_path, template, *overrides):
    folder = tmp_path / "tokenizer"
    made_tokenizer(template).save_pretrained(folder)
    return apply_overrides(load_config("fog_lake_tiny"), [*SMALL, f"model.tokenizer={folder}", *overrides])


@pytest.mark.slow
def test_cloning_and_training_speak_in_turns(tmp_path):
    config = chat_config(tmp_path, CHATML, "rollout.chat.system=Walk.")
    log = SilentLog()
    sft.run(config, tmp_path / "base", resume=False, log=log)
    assert np.isfinite(log.lines[1]["sft/loss"])
    config = apply_overrides(config, [f"model.init_from={tmp_path / 'base'}"])
    loop.run(config, tmp_path / "run", resume=False, log=log)
    assert log.lines[1]["train/logprob_diff_max"] < 1e-4 and log.lines[1]["cost/compilations"] == 0
    assert log.lines[1]["reward/truncated_share"] > 0 and log.lines[1]["end/turn_tokens"] == 0
    chat = make_setup(config).chat
    for episode in read_episodes(next((tmp_path / "run" / "trajectories").iterdir())):
        text = chat.tokenizer.decode(episode.token_ids())
        assert text.startswith("<|im_start|>system\nWalk.<|im_end|>\n<|im_start|>user\n cell_")
        assert text.count("<|im_start|>assistant\n") == len(episode.turns) == text.count(" remaining_")
        for before, turn in zip(episode.turns, episode.turns[1:], strict=False):
            assert (turn.observation_ids[0] == chat.closing_ids[0]) == before.truncated


def test_chat_settings_reach_the_template(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        off = make_setup(chat_config(tmp_path, THINKING, "rollout.chat.reasoning=off")).chat
        tool = make_setup(chat_config(tmp_path, THINKING, "rollout.chat.observations=tool")).chat
        named = make_setup(chat_config(tmp_path, "{{ title }}" + THINKING, "rollout.chat.variables.title=Lake")).chat
    assert isinstance(off, TemplateChat) and "</think>" in off.pieces.tail
    assert "<tool_response>" in tool.pieces.between and named.pieces.head.startswith("Lake")


def test_without_a_template_turns_are_lines(tmp_path):
    plain = make_setup(apply_overrides(load_config("fog_lake_tiny"), ["rollout.on_turn_cap=close"]))
    assert isinstance(plain.chat, LineChat)
    with pytest.raises(UserError, match="this one has none"):
        make_setup(apply_overrides(load_config("fog_lake_tiny"), ["rollout.chat.tool_calls=json"]))
    with pytest.raises(UserError, match=r"rollout.on_turn_cap must be end or close, got 'stop'"):
        make_setup(apply_overrides(load_config("fog_lake_tiny"), ["rollout.on_turn_cap=stop"]))
