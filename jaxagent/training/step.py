"""The pure training steps: gradients by scanned micro-batches with global denominators, and one optimizer update.

    weights of all tokens (global) -> scan over micro-batches: loss and gradient sums -> one optax update

A micro-batch contributes a sum whose weights already hold the global denominator, so 1, 2 or 4 micro-batches and 1 or
8 devices add up to the same gradient. Micro-batches without a trained token are skipped.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from jaxagent.algorithms import losses
from jaxagent.batches import EpisodeArrays, TokenBatch
from jaxagent.models import decoder, logprobs
from jaxagent.sharding import rules
from jaxagent.training.state import TrainState

Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class StepConfig:
    """The static part of a training step."""

    model: decoder.DecoderConfig
    micro_rows: int
    logprob_chunk: int
    temperature: float
    clip_low: float
    clip_high: float
    entropy_coefficient: float
    mesh: jax.sharding.Mesh


def train_step(
    config: StepConfig, optimizer: optax.GradientTransformation, state: TrainState, batch: TokenBatch
) -> tuple[TrainState, Metrics]:
    """One policy-gradient update: clipped surrogate (PPO, arXiv 1707.06347; clip-higher, DAPO arXiv 2503.14476),
    token mean.

    Args:
      config: static settings.
      optimizer: an optax transformation.
      state: may be donated.
      batch: [B, S] rows with advantages and old log-probs filled in; B a multiple of `config.micro_rows`.

    Returns:
      the new state and metrics averaged over all trained tokens.
    """
    mask = loss_mask(batch)
    weights = losses.token_weights(mask, batch.episode_index, "token_mean")

    def loss_fn(params: dict, micro: TokenBatch, micro_mask: jax.Array, micro_weights: jax.Array):
        logprob, entropy = score_tokens(config, params, micro)
        return _policy_loss(config, micro, micro_mask, micro_weights, logprob, entropy)

    grads, metrics = _accumulate(config, loss_fn, state.params, (batch, mask, weights), mask)
    metrics["train/tokens"] = jnp.sum(mask).astype(jnp.float32)
    return _apply(optimizer, state, grads, metrics)


def sft_step(
    config: StepConfig,
    optimizer: optax.GradientTransformation,
    state: TrainState,
    batch: TokenBatch,
    observation_weight: jax.Array,
) -> tuple[TrainState, Metrics]:
    """One supervised update: mean negative log-likelihood of the replies plus `observation_weight` times that of the
    rest.

    The first token of an episode has no context to be predicted from and is left out.
    """
    policy = batch.policy_mask
    observed = (batch.segment_ids != 0) & (batch.positions != 0) & ~policy
    mask = policy | observed
    weights = jnp.where(
        policy,
        losses.token_weights(policy, batch.episode_index, "token_mean"),
        observation_weight * losses.token_weights(observed, batch.episode_index, "token_mean"),
    )

    def loss_fn(params: dict, micro: TokenBatch, micro_mask: jax.Array, micro_weights: jax.Array):
        logprob, entropy = score_tokens(config, params, micro)
        loss = jnp.sum(jnp.where(micro_mask, -micro_weights * logprob, 0.0))
        mean = functools.partial(_weighted_mean, micro.policy_mask, micro_weights)
        return loss, {"sft/loss": loss, "sft/policy_nll": mean(-logprob), "sft/policy_entropy": mean(entropy)}

    grads, metrics = _accumulate(config, loss_fn, state.params, (batch, mask, weights), mask)
    return _apply(optimizer, state, grads, metrics)


def score_step(config: StepConfig, params: dict, batch: TokenBatch) -> jax.Array:
    """Log-probs [B, S] of the batch's tokens under `params`, without gradients, by the same micro-batches as
    training."""
    chunks = _split(config, batch)
    scores = jax.lax.map(lambda micro: score_tokens(config, params, micro)[0], chunks)
    return scores.reshape(batch.tokens.shape)


def loss_mask(batch: TokenBatch) -> jax.Array:
    """Which tokens are trained, [B, S] bool: drawn by the sampler, within the budget, in an episode that is not
    void."""
    return jnp.asarray(batch.policy_mask & batch.budget_mask & batch.valid)


def gather_advantages(advantages: jax.Array, batch: TokenBatch) -> jax.Array:
    """Spreads advantages over tokens: [N] by episode, [N, T] by episode and turn; 0 on padding. Returns [B, S]."""
    episode = jnp.maximum(batch.episode_index, 0)
    turn = jnp.maximum(batch.turn_index, 0)
    spread = advantages[episode] if advantages.ndim == 1 else advantages[episode, turn]
    return jnp.where(batch.episode_index >= 0, spread, 0.0)


def prepare_batch(
    advantage_fn: Callable[[EpisodeArrays], jax.Array],
    arrays: EpisodeArrays,
    batch: TokenBatch,
    old_logprobs: jax.Array | None,
) -> TokenBatch:
    """Fills in the advantages and, where they were recomputed, the old log-probs."""
    advantages = gather_advantages(advantage_fn(arrays), batch)
    old = batch.behaviour_logprobs if old_logprobs is None else old_logprobs
    return dataclasses.replace(batch, advantages=advantages, old_logprobs=old)


def score_tokens(config: StepConfig, params: dict, batch: TokenBatch) -> tuple[jax.Array, jax.Array]:
    """Log-probs and entropies [B, S], float32, at the rollout's temperature; the value at s speaks of token s."""
    hidden = decoder.forward(config.model, params, batch.tokens, batch.positions, batch.segment_ids)
    return logprobs.token_logprobs(
        config.model, params, hidden, batch.tokens, temperature=config.temperature, chunk=config.logprob_chunk
    )


def _policy_loss(
    config: StepConfig,
    batch: TokenBatch,
    mask: jax.Array,
    weights: jax.Array,
    logprob: jax.Array,
    entropy: jax.Array,
) -> tuple[jax.Array, Metrics]:
    # Selected before the arithmetic, so that what stands under the mask reaches neither value nor gradient.
    log_ratio = jnp.where(mask, logprob - jnp.where(mask, batch.old_logprobs, 0.0), 0.0)
    advantages = jnp.where(mask, batch.advantages, 0.0)
    per_token, clipped = losses.surrogate(log_ratio, advantages, clip_low=config.clip_low, clip_high=config.clip_high)
    if config.entropy_coefficient:
        per_token += losses.entropy_bonus(entropy, config.entropy_coefficient, mask)
    loss = jnp.sum(jnp.where(mask, weights * per_token, 0.0))
    drift = jax.lax.stop_gradient(jnp.where(mask, logprob - batch.behaviour_logprobs, 0.0))
    mean = functools.partial(_weighted_mean, mask, weights)
    metrics = {
        "train/loss": loss,
        "train/entropy": mean(entropy),
        "train/ratio": mean(jnp.exp(log_ratio)),
        "train/clip_share": mean(clipped.astype(jnp.float32)),
        "train/kl_behaviour": mean(jnp.expm1(drift) - drift),  # k3 of KL(behaviour || policy)
        "train/logprob_diff_mean": mean(jnp.abs(drift)),
    }
    return loss, metrics


def _weighted_mean(mask: jax.Array, weights: jax.Array, values: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(jnp.sum(jnp.where(mask, weights * values, 0.0)))


def _split(config: StepConfig, tree: object) -> object:
    """[B, ...] to [B / micro_rows, micro_rows, ...] on every leaf; the rows of a micro-batch lie on all devices."""
    rows = NamedSharding(config.mesh, PartitionSpec(None, *rules.batch_sharding(config.mesh).spec))

    def split(leaf: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(leaf.reshape(-1, config.micro_rows, *leaf.shape[1:]), rows)

    return jax.tree.map(split, tree)


def _accumulate(
    config: StepConfig, loss_fn: Callable, params: dict, inputs: tuple, mask: jax.Array
) -> tuple[dict, Metrics]:
    """Sums gradients and metrics of `loss_fn(params, *micro inputs)` over micro-batches; empty ones are skipped."""
    value_and_grad = jax.grad(loss_fn, has_aux=True)

    def compute(chunk: tuple) -> tuple[dict, Metrics]:
        return value_and_grad(params, *chunk)

    chunks = _split(config, inputs)
    any_token = jnp.any(_split(config, mask), axis=(1, 2))
    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(compute, jax.tree.map(lambda x: x[0], chunks))
    )

    def body(total: tuple, xs: tuple) -> tuple[tuple, None]:
        chunk, needed = xs
        added = jax.lax.cond(needed, compute, lambda _: zeros, chunk)
        return jax.tree.map(jnp.add, total, added), None

    total, _ = jax.lax.scan(body, zeros, (chunks, any_token))
    return total


def _apply(
    optimizer: optax.GradientTransformation, state: TrainState, grads: dict, metrics: Metrics
) -> tuple[TrainState, Metrics]:
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    metrics = metrics | {
        "train/grad_norm": optax.tree.norm(grads),
        "train/update_norm": optax.tree.norm(updates),
    }
    return TrainState(params=params, opt_state=opt_state, step=state.step + 1), metrics
