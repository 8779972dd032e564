"""Rollouts of an evaluation follow the same engine settings as those of training."""

import jax
from tiny_runs import tiny_setup

from jaxagent.episodes import EpisodeSpec
from jaxagent.evaluation.likelihood import ModelPolicy
from jaxagent.evaluation.rollouts import Rollouts
from jaxagent.models import decoder
from jaxagent.rollout.setup import sampler_params_fn


def test_a_reply_at_its_cap_is_treated_as_in_training():
    setup = tiny_setup("rollout.on_turn_cap=close", "rollout.max_turn_tokens=2", "env.workers=0")
    params = decoder.init_params(setup.model, jax.random.key(3))
    source = setup.tasks("held_out", 8)
    specs = [EpisodeSpec(source.task(i), 5, 0, i, 0, 3, 3) for i in range(8)]
    engine = setup.make_engine()
    engine.set_params(sampler_params_fn(setup.model, setup.mesh)(params), version=0)
    trained = sorted(engine.run_episodes(specs), key=lambda episode: episode.group)
    engine.close()
    policy = ModelPolicy(setup.model, params, setup.config.rollout.temperature)
    assert Rollouts(setup).run("x", [policy], specs) == trained
    cut = [turn for episode in trained for turn in episode.turns[:-1] if turn.truncated]
    assert cut, "a cut reply that was played"
