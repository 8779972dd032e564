"""The policy update, pure: all epochs and minibatches over one batch with fixed old log-probs, advantages and values.

    for each epoch, for each minibatch:  global token weights -> scanned micro-batches -> one step of each optimizer
    then: the moving average of the reference policy, the update counter

Policy and critic have an optimizer each. All per-token statistics are kept per tenth of the full budget as well.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxagent.algorithms import FUNCTIONS, losses
from jaxagent.algorithms.kl import kl
from jaxagent.batches import TokenBatch
from jaxagent.budgets import NUM_TENTHS
from jaxagent.training import critic as critics
from jaxagent.training.options import AlgorithmOptions
from jaxagent.training.state import TrainState, make_optimizer, with_base
from jaxagent.training.step import (
    Metrics,
    StepConfig,
    accumulate,
    hidden_scores,
    hidden_states,
    loss_mask,
    split_rows,
    weighted_mean,
)

TENTH_STATISTICS = ("ratio", "clip_share", "kl_behaviour", "entropy", "advantage", "advantage_square", "kl_reference")


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    """The static part of an update: equal ones share one compilation."""

    step: StepConfig
    options: AlgorithmOptions
    optimizer: optax.GradientTransformation


def train_step(config: PolicyConfig, state: TrainState, batch: TokenBatch) -> tuple[TrainState, Metrics]:
    """One update from one batch of rollouts.

    Args:
      config: static.
      state: may be donated.
      batch: [M * R, S] rows as `prepare.prepare_batch` filled them; minibatch m holds rows m R to (m + 1) R, R a
        multiple of the rows of a micro-batch.

    Returns:
      the new state and metrics: means over all gradient steps (differences from the sampler's log-probs: of the
      first), and [10] arrays per budget tenth (`*_by_tenth`).
    """
    options = config.options
    steps = options.epochs * options.minibatches
    if steps == 1:
        state, (metrics, tenths) = _gradient_step(config, state, batch)
    else:
        pieces = split_rows(config.step, batch, batch.tokens.shape[0] // options.minibatches)
        order = jnp.tile(jnp.arange(options.minibatches), options.epochs)

        def body(state: TrainState, number: jax.Array) -> tuple[TrainState, Any]:
            return _gradient_step(config, state, jax.tree.map(lambda leaf: leaf[number], pieces))

        state, (metrics, tenths) = jax.lax.scan(body, state, order)
        # The sampler's weights are those of the first step; later ones differ from it for good reason.
        metrics = {n: x[0] if n.startswith("train/logprob_diff") else jnp.mean(x) for n, x in metrics.items()}
        tenths = jnp.sum(tenths, axis=0)
    metrics["train/tokens"] = jnp.sum(loss_mask(batch)).astype(jnp.float32)
    state = dataclasses.replace(state, reference=_averaged(options, state), step=state.step + 1)
    return state, metrics | _by_tenth(tenths, with_reference=options.needs_reference)


def _gradient_step(
    config: PolicyConfig, state: TrainState, batch: TokenBatch
) -> tuple[TrainState, tuple[Metrics, jax.Array]]:
    """One step of the policy's optimizer, and of the critic's."""
    mask, weights, value_weights = _weights(config.options, batch)
    params = (state.params, state.critic.params if state.critic else None)
    loss_fn = functools.partial(_loss, config, state.base)
    inputs = (batch, mask, weights, value_weights)
    (policy_grads, critic_grads), (metrics, tenths) = accumulate(config.step, loss_fn, params, inputs, loss_mask(batch))
    updates, opt_state = config.optimizer.update(policy_grads, state.opt_state, state.params)
    metrics |= {"train/grad_norm": optax.tree.norm(policy_grads), "train/update_norm": optax.tree.norm(updates)}
    moved = dataclasses.replace(state, params=optax.apply_updates(state.params, updates), opt_state=opt_state)
    if state.critic:
        # While the critic learns alone the policy and its moments stand still.
        alone = state.step < config.options.critic.alone_updates
        moved = jax.tree.map(lambda new, old: jnp.where(alone, old, new), moved, state)
        moved = dataclasses.replace(moved, critic=_critic_step(config, state.critic, critic_grads))
        metrics["critic/grad_norm"] = optax.tree.norm(critic_grads)
    return moved, (metrics, tenths)


def _critic_step(config: PolicyConfig, critic: critics.CriticState, grads: dict) -> critics.CriticState:
    optimizer = make_optimizer(config.options.critic.optimizer)
    updates, opt_state = optimizer.update(grads, critic.opt_state, critic.params)
    return critics.CriticState(params=optax.apply_updates(critic.params, updates), opt_state=opt_state)


def _weights(options: AlgorithmOptions, batch: TokenBatch) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(mask of the policy loss, its weights, weights of the value loss): denominators over the whole minibatch."""
    everything = mask = loss_mask(batch)
    loss = options.loss
    if loss.sequence_mask:
        low, high = loss.sequence_mask
        drift = losses.masked_difference(batch.old_logprobs, batch.behaviour_logprobs, mask)
        ids = batch.episode_index
        mask = losses.sequence_mask(drift, mask, ids, low=low, high=high, geometric=loss.sequence_mask_mean)
    ids = batch.group_ids if loss.aggregation == "prompt_mean" else batch.episode_index
    weights = losses.token_weights(mask, ids, loss.aggregation, constant=loss.aggregation_constant)
    return mask, weights, losses.token_weights(everything, None, "token_mean")


def _loss(
    config: PolicyConfig,
    base: dict | None,
    params: tuple[dict, dict | None],
    batch: TokenBatch,
    mask: jax.Array,
    weights: jax.Array,
    value_weights: jax.Array,
) -> tuple[jax.Array, tuple[Metrics, jax.Array]]:
    """A micro-batch's share of the loss: policy, and value where there is a critic."""
    policy, critic = with_base(base, params[0]), params[1]
    hidden = hidden_states(config.step, policy, batch)
    logprob, entropy = hidden_scores(config.step, policy, hidden, batch)
    loss, metrics, tenths = _policy_loss(config.options, batch, mask, weights, logprob, entropy)
    metrics |= _sampler_difference(batch, value_weights, logprob)
    if critic is not None:
        settings = config.options.critic
        values = critics.values(
            config.step.model,
            critic,
            hidden,
            batch.tokens,
            batch.positions,
            batch.segment_ids,
            trunk_weight=settings.trunk_weight,
            base=base,
        )
        value_loss, value_metrics = _value_loss(config.options, batch, value_weights, values)
        loss, metrics = loss + value_loss, metrics | value_metrics
    return loss, (metrics, tenths)


def _policy_loss(
    options: AlgorithmOptions,
    batch: TokenBatch,
    mask: jax.Array,
    weights: jax.Array,
    logprob: jax.Array,
    entropy: jax.Array,
) -> tuple[jax.Array, Metrics, jax.Array]:
    """Clipped surrogate with its corrections, entropy bonus and KL term; metrics; sums per budget tenth."""
    loss = options.loss
    log_ratio = losses.masked_difference(logprob, batch.old_logprobs, mask)
    log_ratio = FUNCTIONS["ratio"][loss.ratio](log_ratio, mask, batch.episode_index)
    bounds = {"clip_low": loss.clip_low, "clip_high": loss.clip_high, "dual_clip": loss.dual_clip}
    per_token, clipped = losses.surrogate(log_ratio, batch.advantages, mask=mask, **bounds)
    if loss.importance_cap:
        drift = losses.masked_difference(batch.old_logprobs, batch.behaviour_logprobs, mask)
        per_token *= losses.truncated_importance_weights(drift, cap=loss.importance_cap, mask=mask)
    if loss.entropy_coefficient:
        per_token += losses.entropy_bonus(entropy, loss.entropy_coefficient, mask)
    if options.needs_reference and options.kl.place == "loss":
        distance = losses.masked_difference(logprob, batch.ref_logprobs, mask)
        per_token += options.kl.coefficient * kl(options.kl.kind, distance, mask)
    total = losses.weighted_sum(per_token, mask, weights)
    statistics = _statistics(options, batch, mask, logprob, entropy, log_ratio, clipped)
    mean = functools.partial(weighted_mean, mask, weights)
    metrics = {
        "train/loss": total,
        **{f"train/{name}": mean(statistics[name]) for name in ("entropy", "ratio", "clip_share", "kl_behaviour")},
    }
    if options.needs_reference:
        metrics["train/kl_reference"] = mean(statistics["kl_reference"])
    return total, metrics, _sums_by_tenth(batch, mask, statistics)


def _sampler_difference(batch: TokenBatch, weights: jax.Array, logprob: jax.Array) -> Metrics:
    """How far log-probs lie from the sampler's, token by token; `weights` are those of a mean over tokens."""
    mask = loss_mask(batch)
    difference = jnp.abs(losses.masked_difference(logprob, batch.behaviour_logprobs, mask))
    return {
        "train/logprob_diff_mean": weighted_mean(mask, weights, difference),
        "train/logprob_diff_max": jax.lax.stop_gradient(jnp.max(difference)),
    }


def _value_loss(
    options: AlgorithmOptions, batch: TokenBatch, weights: jax.Array, values: jax.Array
) -> tuple[jax.Array, Metrics]:
    mask = loss_mask(batch)
    clip = options.ppo.value_clip or None
    per_token, clipped = losses.value_loss(values, batch.returns, batch.old_values, clip=clip, mask=mask)
    loss = losses.weighted_sum(per_token, mask, weights)
    mean = functools.partial(weighted_mean, mask, weights)
    metrics = {
        "critic/loss": loss,
        "critic/value": mean(values),
        "critic/return": mean(batch.returns),
        "critic/clip_share": mean(clipped.astype(jnp.float32)),
    }
    return loss, metrics


def _statistics(
    options: AlgorithmOptions,
    batch: TokenBatch,
    mask: jax.Array,
    logprob: jax.Array,
    entropy: jax.Array,
    log_ratio: jax.Array,
    clipped: jax.Array,
) -> dict[str, jax.Array]:
    """Per-token quantities [B, S] for the log; 0 outside the mask, no gradient."""
    bounded = lambda x: jnp.clip(x, -losses.MAX_LOG_RATIO, losses.MAX_LOG_RATIO)  # noqa: E731
    drift = bounded(losses.masked_difference(logprob, batch.behaviour_logprobs, mask))
    advantages = jnp.where(mask, batch.advantages, 0.0)
    found = {
        "ratio": jnp.exp(bounded(log_ratio)),
        "clip_share": clipped.astype(jnp.float32),
        "kl_behaviour": jnp.expm1(drift) - drift,  # k3 of KL(behaviour || policy)
        "entropy": jnp.where(mask, entropy, 0.0),
        "advantage": advantages,
        "advantage_square": jnp.square(advantages),
    }
    if options.needs_reference:
        found["kl_reference"] = kl("k3", losses.masked_difference(logprob, batch.ref_logprobs, mask), mask)
    return jax.lax.stop_gradient(found)


def _sums_by_tenth(batch: TokenBatch, mask: jax.Array, statistics: dict[str, jax.Array]) -> jax.Array:
    """[10, 1 + statistics]: the number of tokens and the sums over them."""
    # By name: a dictionary that went through jax has its keys in another order.
    chosen = [statistics[name] for name in TENTH_STATISTICS if name in statistics]
    stacked = jnp.stack([mask.astype(jnp.float32), *(jnp.where(mask, x, 0.0) for x in chosen)])
    members = (batch.budget_tenths[None] == jnp.arange(NUM_TENTHS)[:, None, None]) & mask
    return jnp.einsum("tbs,kbs->tk", members.astype(jnp.float32), stacked, precision=jax.lax.Precision.HIGHEST)


def _by_tenth(sums: jax.Array, *, with_reference: bool) -> Metrics:
    """Means over the tokens of each tenth, [10], NaN where it has none."""
    names = TENTH_STATISTICS if with_reference else TENTH_STATISTICS[:-1]
    means = dict(zip(names, (sums[:, 1:] / sums[:, :1]).T, strict=True))
    means["advantage_std"] = jnp.sqrt(jnp.maximum(means.pop("advantage_square") - jnp.square(means["advantage"]), 0.0))
    return {f"train/{name}_by_tenth": values for name, values in means.items()}


def _averaged(options: AlgorithmOptions, state: TrainState) -> dict | None:
    """The reference after an update: as it was, or moved towards the policy."""
    if state.reference is None or options.kl.reference == "frozen":
        return state.reference
    decay = options.kl.decay
    return jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, state.reference, state.params)
