"""Whether a policy reads the budget line: how far its next reply changes when only the line does.

KL(policy told the full budget || policy told a tight one) at the first token of each reply, in states that the policy
reached when it was told the full budget. About 0 means that the line is not read, and that a budget experiment says
nothing about budgets.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.budgets import budget_line, percent_of
from jaxagent.episodes import Episode
from jaxagent.models import decoder
from jaxagent.rollout.setup import Setup

MAX_EPISODES = 256


def line_sensitivity(setup: Setup, params: dict, episodes: Sequence[Episode], *, percent: int) -> float | None:
    """Mean KL in nats over the turns that both budgets have; None where no episode can be compared.

    Args:
      setup: the run's setup; its budget section wrote the lines.
      params: the policy's training parameters.
      episodes: those told the full budget are used, at most 256.
      percent: the tight budget that is written into their lines instead.
    """
    full = [episode for episode in episodes if episode.told_budget == episode.max_budget and not episode.is_void]
    pairs = [pair for episode in full[:MAX_EPISODES] if (pair := _rewritten(setup, episode, percent)) is not None]
    if not pairs:
        return None
    length = max(len(ids) for pair in pairs for ids in pair[:2])
    turns = max(len(pair[2]) for pair in pairs)
    kl = _reply_kl(
        setup.model,
        setup.config.rollout.temperature,
        params,
        _padded([pair[0] for pair in pairs], length),
        _padded([pair[1] for pair in pairs], length),
        _padded([pair[2] for pair in pairs], turns, fill=-1),
        _padded([pair[3] for pair in pairs], turns, fill=-1),
    )
    return float(kl)


def _rewritten(
    setup: Setup, episode: Episode, percent: int
) -> tuple[list[int], list[int], list[int], list[int]] | None:
    """The transcript as told, the same with tight lines, and the places before each reply in both; None if not alike.

    Lines are replaced as ids at the end of each observation, where the engine put them; a tokenizer that merges the
    line with what stands before it cannot be compared this way.
    """
    section, encode = setup.config.budget, setup.chat.ending_ids
    tight = percent_of(episode.max_budget, percent)
    told_ids: list[int] = []
    tight_ids: list[int] = []
    told_places: list[int] = []
    tight_places: list[int] = []
    for turn in episode.turns[:tight]:
        lines = [
            encode(
                budget_line(budget, turn.index, announce=section.announce, wording=section.wording),
                first=turn.index == 1,
            )
            for budget in (episode.told_budget, tight)
        ]
        observed = turn.observation_ids
        if not lines[0] or observed[-len(lines[0]) :] != lines[0]:
            return None
        told_ids += observed
        tight_ids += observed[: -len(lines[0])] + lines[1]
        told_places.append(len(told_ids) - 1)
        tight_places.append(len(tight_ids) - 1)
        told_ids += turn.sampled_ids
        tight_ids += turn.sampled_ids
    return told_ids, tight_ids, told_places, tight_places


def _padded(rows: list[list[int]], length: int, fill: int = 0) -> np.ndarray:
    table = np.full((len(rows), length), fill, np.int32)
    for row, values in enumerate(rows):
        table[row, : len(values)] = values
    return table


@functools.partial(jax.jit, static_argnums=(0, 1))
def _reply_kl(
    model: decoder.DecoderConfig,
    temperature: float,
    params: dict,
    told: jax.Array,
    tight: jax.Array,
    told_places: jax.Array,
    tight_places: jax.Array,
) -> jax.Array:
    """Mean KL over the given places; ids [N, S], places [N, P] padded with -1."""
    log_p = _log_probs_at(model, temperature, params, told, told_places)
    log_q = _log_probs_at(model, temperature, params, tight, tight_places)
    kl = jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)
    return jnp.sum(jnp.where(told_places >= 0, kl, 0.0)) / jnp.sum(told_places >= 0)


def _log_probs_at(
    model: decoder.DecoderConfig, temperature: float, params: dict, ids: jax.Array, places: jax.Array
) -> jax.Array:
    """Next-token log-probs [N, P, V] after the places [N, P]."""
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    hidden = decoder.forward(model, params, ids, positions, jnp.ones_like(ids))
    chosen = jnp.take_along_axis(hidden, jnp.maximum(places, 0)[:, :, None], axis=1)
    logits = jnp.einsum("npd,dv->npv", chosen, decoder.head_matrix(params), preferred_element_type=jnp.float32)
    return jax.nn.log_softmax(logits / temperature, axis=-1)
