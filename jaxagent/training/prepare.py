"""Before the gradient steps: the score pass without gradients, then advantages, and a critic's returns."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from jaxagent.algorithms import FUNCTIONS, advantages, losses
from jaxagent.algorithms.kl import kl
from jaxagent.batches import EpisodeArrays, TokenBatch
from jaxagent.training import critic as critics
from jaxagent.training.options import AlgorithmOptions, PPOOptions
from jaxagent.training.policy_step import PolicyConfig
from jaxagent.training.state import TrainState, policy_params, with_base
from jaxagent.training.step import hidden_scores, hidden_states, loss_mask, score_tokens, split_rows


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scores:
    """What the score pass found, [B, S] float32 each; None where nothing needs it."""

    old_logprobs: jax.Array | None = None
    ref_logprobs: jax.Array | None = None
    old_values: jax.Array | None = None


def needs_scores(options: AlgorithmOptions) -> bool:
    """Whether an update needs the score pass at all."""
    return options.old_logprobs == "recomputed" or options.needs_reference or options.critic is not None


def score_batch(config: PolicyConfig, state: TrainState, batch: TokenBatch) -> Scores:
    """One pass by micro-batches under the present policy, its reference and its critic; empty ones are skipped."""
    options = config.options
    params = policy_params(state)

    def score(micro: TokenBatch) -> Scores:
        found = Scores()
        if options.old_logprobs == "recomputed" or options.critic:
            hidden = hidden_states(config.step, params, micro)
        if options.old_logprobs == "recomputed":
            found = dataclasses.replace(found, old_logprobs=hidden_scores(config.step, params, hidden, micro)[0])
        if options.critic:
            inputs = (micro.tokens, micro.positions, micro.segment_ids)
            values = critics.values(config.step.model, state.critic.params, hidden, *inputs, base=state.base)
            found = dataclasses.replace(found, old_values=values)
        if options.needs_reference:
            reference = with_base(state.base, state.reference)
            found = dataclasses.replace(found, ref_logprobs=score_tokens(config.step, reference, micro)[0])
        return found

    chunks = split_rows(config.step, batch)
    empty = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(score, jax.tree.map(lambda x: x[0], chunks))
    )

    def score_unless_empty(micro: TokenBatch) -> Scores:
        return jax.lax.cond(jnp.any(loss_mask(micro)), score, lambda _: empty, micro)

    scores = jax.lax.map(score_unless_empty, chunks)
    return jax.tree.map(lambda leaf: leaf.reshape(batch.tokens.shape), scores)


def prepare_batch(
    options: AlgorithmOptions, arrays: EpisodeArrays, batch: TokenBatch, scores: Scores | None
) -> TokenBatch:
    """Fills in old log-probs, reference log-probs, advantages, and for PPO old values and returns.

    Everything that it fills in stays fixed over the epochs of the update.
    """
    scores = scores or Scores()
    if scores.old_logprobs is not None:
        batch = dataclasses.replace(batch, old_logprobs=scores.old_logprobs)
    else:
        batch = dataclasses.replace(batch, old_logprobs=batch.behaviour_logprobs)
    batch = dataclasses.replace(batch, ref_logprobs=scores.ref_logprobs, old_values=scores.old_values)
    penalty = _kl_penalty(options, batch)
    if options.name == "ppo":
        return _with_gae(options.ppo, arrays, batch, penalty)
    if penalty is not None:
        arrays = _charge(arrays, batch, penalty)
    return dataclasses.replace(batch, advantages=gather_advantages(group_advantages(options, arrays), batch))


def group_advantages(options: AlgorithmOptions, arrays: EpisodeArrays) -> jax.Array:
    """Advantages of a group method: [N], or [N, T] for GiGPO."""
    name = options.name
    function = FUNCTIONS["group_advantages"][name]
    divisor = {"normalize_std": options.normalize_std, "std_floor": options.std_floor}
    if name == "gigpo":
        ids = (arrays.group_ids, arrays.anchor_ids)
        settings = dataclasses.asdict(options.gigpo) | divisor
        return function(arrays.step_rewards, *ids, arrays.turn_mask, arrays.valid, **settings)
    settings = divisor if name in ("grpo", "dr_grpo") else {}
    if name == "reinforce_plus_plus":
        settings = {"group_baseline": options.group_baseline}
    return function(arrays.rewards, arrays.group_ids, arrays.valid, **settings)


def gather_advantages(values: jax.Array, batch: TokenBatch) -> jax.Array:
    """Spreads advantages over tokens: [N] by episode, [N, T] by episode and turn; 0 on padding. Returns [B, S]."""
    episode = jnp.maximum(batch.episode_index, 0)
    spread = values[episode] if values.ndim == 1 else values[episode, jnp.maximum(batch.turn_index, 0)]
    return jnp.where(batch.episode_index >= 0, spread, 0.0)


def _kl_penalty(options: AlgorithmOptions, batch: TokenBatch) -> jax.Array | None:
    """coefficient * KL a token [B, S] of the old policy against the reference, where it belongs in the reward."""
    if not options.needs_reference or options.kl.place != "reward":
        return None
    mask = loss_mask(batch)
    distance = losses.masked_difference(batch.old_logprobs, batch.ref_logprobs, mask)
    return options.kl.coefficient * kl(options.kl.kind, distance, mask)


def _charge(arrays: EpisodeArrays, batch: TokenBatch, penalty: jax.Array) -> EpisodeArrays:
    """Takes the penalty out of the turns' rewards and out of the outcomes; tokens outside the loss cost nothing."""
    num, width = arrays.step_rewards.shape
    place = jnp.where(loss_mask(batch), batch.episode_index * width + batch.turn_index, num * width)
    costs = jax.ops.segment_sum(penalty.reshape(-1), place.reshape(-1), num * width + 1)[:-1].reshape(num, width)
    return dataclasses.replace(
        arrays, rewards=arrays.rewards - jnp.sum(costs, axis=1), step_rewards=arrays.step_rewards - costs
    )


def _with_gae(options: PPOOptions, arrays: EpisodeArrays, batch: TokenBatch, penalty: jax.Array | None) -> TokenBatch:
    mask = loss_mask(batch)
    rewards = advantages.turn_rewards_to_tokens(arrays.step_rewards, mask, batch.episode_index, batch.turn_index)
    if penalty is not None:
        rewards -= penalty
    gae = functools.partial(FUNCTIONS["token_advantages"][options.advantage], gamma=options.gamma, lam=options.lam)
    tokens = (rewards, batch.old_values, mask, batch.segment_ids)
    if options.advantage == "token_gae":
        found, returns = gae(*tokens)
    elif options.advantage == "turn_gae":
        found, returns = gae(*tokens, batch.turn_index)
    else:
        turns = {"turn_gamma": options.turn_gamma, "turn_lam": options.turn_lam, "bootstrap": options.bootstrap}
        found, returns = gae(*tokens, batch.turn_index, **turns)
    if options.whiten:
        found = losses.whiten(found, mask)
    return dataclasses.replace(batch, advantages=found, returns=returns)
