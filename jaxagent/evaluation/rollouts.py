"""Rollouts of loaded policies in this process: of one, of several that take turns, of a script with one after it."""

import hashlib
import pathlib
from collections.abc import Callable, Sequence

import jax
import numpy as np

from jaxagent.envs.base import Environment
from jaxagent.episodes import Episode, EpisodeSpec
from jaxagent.evaluation.interventions import DirectedSampler, Director, WatchingPool, script
from jaxagent.evaluation.likelihood import ModelPolicy
from jaxagent.evaluation.pieces import Pieces
from jaxagent.rollout.engine import RolloutEngine, sorted_by_work
from jaxagent.rollout.sampler import Sampler
from jaxagent.rollout.setup import Setup, make_sampler, sampler_params_fn
from jaxagent.training.checkpoints import load_params
from jaxagent.training.state import policy_shardings


def load_policy(setup: Setup, run_folder: str | pathlib.Path) -> tuple[ModelPolicy, int]:
    """The best checkpoint (else the newest) of a run as a policy, and its step."""
    params, record = load_params(run_folder, setup.model, policy_shardings(setup.model, setup.mesh))
    return ModelPolicy(setup.model, params, float(setup.config.rollout.temperature)), int(record["step"])


def weights_hash(policy: ModelPolicy) -> str:
    """A hash of the first numbers of every parameter: two trained policies differ in it, whatever mesh they are on."""
    digest = hashlib.blake2b(digest_size=8)
    for leaf in jax.tree.leaves(policy.params):
        digest.update(np.asarray(leaf[(0,) * (leaf.ndim - 1)][:64]).tobytes())
    return digest.hexdigest()


def plain(pool: WatchingPool) -> Director:
    """Nobody interferes: the one policy writes every reply."""
    return script({})


class Rollouts:
    """Directed rollouts of one evaluation. Samplers are made once and take the weights of whoever is to act."""

    def __init__(self, setup: Setup, pieces: Pieces | None = None) -> None:
        """With `pieces` every rollout is kept on disk under its name, and read from there when it is finished."""
        self._setup = setup
        self._pieces = pieces
        self._samplers: list[Sampler] = []

    def run(
        self,
        name: str,
        policies: Sequence[ModelPolicy],
        specs: Sequence[EpisodeSpec],
        director: Callable[[WatchingPool], Director] = plain,
        *,
        fresh_noise: bool = False,
    ) -> list[Episode]:
        """Episodes of all orders, void ones included, in the order of their keys.

        Args:
          name: of the piece.
          policies: whom the director may ask, by number.
          specs: the orders.
          director: made anew for the pool that it may watch.
          fresh_noise: draws the replies with other noise than plain rollouts of the same orders do; the environment's
            noise stays.
        """

        def run(missing: Sequence[EpisodeSpec]) -> list[Episode]:
            return self._roll_out(policies, missing, director, fresh_noise)

        if self._pieces is not None:
            return self._pieces.episodes(name, specs, run)
        return sorted(run(specs), key=lambda episode: (episode.step, episode.group, episode.member))

    def _roll_out(
        self,
        policies: Sequence[ModelPolicy],
        specs: Sequence[EpisodeSpec],
        director: Callable[[WatchingPool], Director],
        fresh_noise: bool,
    ) -> list[Episode]:
        setup = self._setup
        while len(self._samplers) < len(policies):
            self._samplers.append(make_sampler(setup))
        samplers = self._samplers[: len(policies)]
        convert = sampler_params_fn(setup.model, setup.mesh)
        for sampler, policy in zip(samplers, policies, strict=True):
            sampler.set_params(convert(policy.params))
        pool = WatchingPool(lambda: make_environment(setup))
        directed = DirectedSampler(samplers, director(pool), fresh_noise=fresh_noise)
        engine = RolloutEngine(directed, pool, setup.chat, setup.engine_config())
        try:
            return list(engine.run_episodes(sorted_by_work(specs)))
        finally:
            engine.close()


def make_environment(setup: Setup) -> Environment:
    """A fresh environment of a setup, without added step rewards."""
    return setup.entry.make_environment(setup.config.env.options.to_dict())
