"""What training steps share: gradients by scanned micro-batches with global denominators; and the supervised step.

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
from jaxagent.batches import TokenBatch
from jaxagent.models import decoder, logprobs
from jaxagent.sharding import rules
from jaxagent.training.state import TrainState, with_base

Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class StepConfig:
    """The static part of a training step."""

    model: decoder.DecoderConfig
    micro_rows: int
    logprob_chunk: int
    temperature: float
    mesh: jax.sharding.Mesh


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
        logprob, entropy = score_tokens(config, with_base(state.base, params), micro)
        loss = jnp.sum(jnp.where(micro_mask, -micro_weights * logprob, 0.0))
        mean = functools.partial(weighted_mean, micro.policy_mask, micro_weights)
        return loss, {"sft/loss": loss, "sft/policy_nll": mean(-logprob), "sft/policy_entropy": mean(entropy)}

    grads, metrics = accumulate(config, loss_fn, state.params, (batch, mask, weights), mask)
    return _apply(optimizer, state, grads, metrics)


def loss_mask(batch: TokenBatch) -> jax.Array:
    """Which tokens are trained, [B, S] bool: drawn by the sampler, within the budget, in an episode that is not
    void."""
    return jnp.asarray(batch.policy_mask & batch.budget_mask & batch.valid)


def score_tokens(config: StepConfig, params: dict, batch: TokenBatch) -> tuple[jax.Array, jax.Array]:
    """Log-probs and entropies [B, S], float32, at the rollout's temperature; the value at s speaks of token s."""
    return hidden_scores(config, params, hidden_states(config, params, batch), batch)


def hidden_states(config: StepConfig, params: dict, batch: TokenBatch) -> jax.Array:
    """The policy's hidden states [B, S, D]."""
    return decoder.forward(config.model, params, batch.tokens, batch.positions, batch.segment_ids)


def hidden_scores(
    config: StepConfig, params: dict, hidden: jax.Array, batch: TokenBatch
) -> tuple[jax.Array, jax.Array]:
    """As `score_tokens`, from hidden states that are there already."""
    return logprobs.token_logprobs(
        config.model, params, hidden, batch.tokens, temperature=config.temperature, chunk=config.logprob_chunk
    )


def weighted_mean(mask: jax.Array, weights: jax.Array, values: jax.Array) -> jax.Array:
    """A micro-batch's share of a weighted mean, for the log: no gradient."""
    return jax.lax.stop_gradient(jnp.sum(jnp.where(mask, weights * values, 0.0)))


def split_rows(config: StepConfig, tree: object, rows: int | None = None) -> object:
    """[B, ...] to [B / rows, rows, ...] on every leaf; the rows of each piece lie on all devices.

    `rows` is that of a micro-batch unless given.
    """
    placed = NamedSharding(config.mesh, PartitionSpec(None, *rules.batch_sharding(config.mesh).spec))
    size = config.micro_rows if rows is None else rows

    def split(leaf: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(leaf.reshape(-1, size, *leaf.shape[1:]), placed)

    return jax.tree.map(split, tree)


def accumulate(
    config: StepConfig, loss_fn: Callable, params: object, inputs: tuple, mask: jax.Array
) -> tuple[object, Metrics]:
    """Sums gradients and metrics of `loss_fn(params, *micro inputs)` over micro-batches; empty ones are skipped.

    Of metrics whose name ends in `_max`, which are not negative, the largest counts instead of the sum.
    """
    value_and_grad = jax.grad(loss_fn, has_aux=True)

    def compute(chunk: tuple) -> tuple[dict, Metrics]:
        return value_and_grad(params, *chunk)

    chunks = split_rows(config, inputs)
    any_token = jnp.any(split_rows(config, mask), axis=(1, 2))
    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(compute, jax.tree.map(lambda x: x[0], chunks))
    )

    def body(total: tuple, xs: tuple) -> tuple[tuple, None]:
        chunk, needed = xs
        added = jax.lax.cond(needed, compute, lambda _: zeros, chunk)
        return jax.tree.map_with_path(_combined, total, added), None

    total, _ = jax.lax.scan(body, zeros, (chunks, any_token))
    return total


def _combined(path: tuple, total: jax.Array, added: jax.Array) -> jax.Array:
    name = path[-1].key if path and isinstance(path[-1], jax.tree_util.DictKey) else ""
    return jnp.maximum(total, added) if str(name).endswith("_max") else total + added


def _apply(
    optimizer: optax.GradientTransformation, state: TrainState, grads: dict, metrics: Metrics
) -> tuple[TrainState, Metrics]:
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    metrics = metrics | {
        "train/grad_norm": optax.tree.norm(grads),
        "train/update_norm": optax.tree.norm(updates),
    }
    return dataclasses.replace(state, params=params, opt_state=opt_state, step=state.step + 1), metrics
