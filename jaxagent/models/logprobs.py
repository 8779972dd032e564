"""Log-probs and entropies of tokens without ever holding the logits of a whole batch."""

import jax
import jax.numpy as jnp

from jaxagent.errors import UserError
from jaxagent.models.decoder import DecoderConfig, head_matrix


def token_logprobs(
    config: DecoderConfig,
    params: dict,
    hidden: jax.Array,
    tokens: jax.Array,
    *,
    temperature: float,
    chunk: int,
) -> tuple[jax.Array, jax.Array]:
    """Log-prob of each token given the hidden state before it, and the entropy of the distribution it is drawn from.

    Unshifted: the value at s speaks of `tokens[:, s]` given `hidden[:, s - 1]`; the value at s = 0 is 0. The first
    token of a later segment of a packed row is scored against the segment before it: mask it.

    The rows are cut along S into equal pieces of at most `max(1, chunk // B)` places, so the logits of at most
    `max(chunk, B)` tokens exist at once, in the forward and in the backward pass. Cutting along S leaves every row on
    its device.

    Args:
      config: static; `vocab_size` checks the head.
      params: as from `decoder.init_params`; only the head is read.
      hidden: [B, S, D] from `decoder.forward`; the product with the head has its dtype, accumulated in float32.
      tokens: [B, S] int32.
      temperature: positive; logits are divided by it, as they were when the tokens were drawn.
      chunk: tokens whose logits exist at once.

    Returns:
      (log-probs, entropies), both [B, S] float32 and differentiable.
    """
    if not temperature > 0:
        raise UserError(f"temperature must be positive for log-probs (0 has no distribution), got {temperature}")
    if chunk < 1:
        raise UserError(f"optimizer.logprob_chunk must be at least 1, got {chunk}")
    head = head_matrix(params).astype(hidden.dtype)
    if head.shape[1] != config.vocab_size:
        raise ValueError(f"the head has {head.shape[1]} columns, the vocabulary {config.vocab_size} tokens")
    rows, length = tokens.shape
    width = _piece_width(length - 1, max(1, chunk // rows))

    def piece(_: None, inputs: tuple[jax.Array, jax.Array]) -> tuple[None, tuple[jax.Array, jax.Array]]:
        states, targets = inputs
        return None, _score(states, targets, head, temperature)

    inputs = (_in_pieces(hidden[:, :-1], width), _in_pieces(tokens[:, 1:], width))
    _, scores = jax.lax.scan(jax.checkpoint(piece, prevent_cse=False), None, inputs)
    return tuple(_from_pieces(score, rows, length) for score in scores)


def _piece_width(places: int, limit: int) -> int:
    """The width of equal pieces of at most `limit` that cover `places` with the least padding."""
    pieces = max(1, -(-places // limit))
    return max(1, -(-places // pieces))


def _score(states: jax.Array, targets: jax.Array, head: jax.Array, temperature: float) -> tuple[jax.Array, jax.Array]:
    """states [B, w, D], targets [B, w] -> log-probs and entropies [B, w]."""
    logits = jnp.einsum("bwd,dv->bwv", states, head, preferred_element_type=jnp.float32) / temperature
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    # Select and sum instead of a gather: it fuses, and it keeps a vocabulary that is sharded where it is.
    is_target = targets[:, :, None] == jnp.arange(head.shape[1])
    chosen = jnp.sum(jnp.where(is_target, log_probs, 0.0), axis=-1)
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
    return chosen, entropy


def _in_pieces(values: jax.Array, width: int) -> jax.Array:
    """[B, P, ...] -> [pieces, B, width, ...], padded with 0 at the end of P."""
    rows, places = values.shape[:2]
    pieces = -(-places // width)
    padding = [(0, 0), (0, pieces * width - places)] + [(0, 0)] * (values.ndim - 2)
    padded = jnp.pad(values, padding).reshape(rows, pieces, width, *values.shape[2:])
    return jnp.moveaxis(padded, 1, 0)


def _from_pieces(values: jax.Array, rows: int, length: int) -> jax.Array:
    """[pieces, B, width] -> [B, length]: the scores of places 1 .. length - 1, behind a 0."""
    flat = jnp.moveaxis(values, 0, 1).reshape(rows, -1)[:, : length - 1]
    return jnp.pad(flat, ((0, 0), (1, 0)))
