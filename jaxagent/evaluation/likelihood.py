"""How far a policy has moved from another, turn by turn, and what a policy would say at a given place.

For a pair of policies and recorded episodes: the exact KL divergence over the vocabulary at every policy token, the
log-likelihood ratio of the replies on record, and both entropies, summed over the tokens of a turn. By the chain rule
the divergence of whole trajectories is the sum over turns of the expected divergence at each, where an episode that
has ended adds nothing: `shift_by_turn` gives it beside the averages over the episodes that are still alive.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxagent.episodes import Episode
from jaxagent.errors import UserError
from jaxagent.models import decoder
from jaxagent.models.logprobs import token_logprobs

ROWS = 64  # transcripts in one forward pass
CHUNK = 2048  # tokens whose logits exist at once
_LENGTH_STEP = 16  # transcripts are padded to a multiple, so that sets of similar length share a compilation


@dataclasses.dataclass(frozen=True)
class ModelPolicy:
    """A decoder with its training parameters, at the temperature that it acts with."""

    model: decoder.DecoderConfig
    params: dict
    temperature: float


@dataclasses.dataclass(frozen=True, eq=False)
class TurnLikelihood:
    """Two policies at the turns of N episodes of at most T turns; float [N, T] in nats, 0 where `mask` is False.

    Attributes:
      mask: bool [N, T], whether the episode has the turn.
      log_ratio: log p_first - log p_second of the reply on record.
      kl: KL(first || second), summed over the tokens of the reply on record.
      reverse_kl: KL(second || first), likewise.
      entropy: of the first policy, likewise.
      reference_entropy: of the second.
    """

    mask: NDArray[np.bool_]
    log_ratio: NDArray[np.float64]
    kl: NDArray[np.float64]
    reverse_kl: NDArray[np.float64]
    entropy: NDArray[np.float64]
    reference_entropy: NDArray[np.float64]


def compare_policies(
    first: ModelPolicy, second: ModelPolicy, episodes: Sequence[Episode], *, rows: int = ROWS, chunk: int = CHUNK
) -> TurnLikelihood:
    """Scores the episodes' transcripts under both policies; void episodes are refused.

    Averaged over episodes of the first policy, `kl` and `log_ratio` have the same expectation (their trajectory KL);
    over episodes of the second, `reverse_kl` and minus `log_ratio` do.

    Args:
      first: a policy, the trained one for instance.
      second: another with the same vocabulary.
      episodes: of either, with token ids.
      rows: transcripts a forward pass; the last pass is filled up, so one shape is compiled.
      chunk: tokens whose logits exist at once, two sets of them.
    """
    if not episodes:
        raise UserError("no episodes to score")
    if first.model.vocab_size != second.model.vocab_size:
        raise UserError("the two policies have different vocabularies, so their likelihoods cannot be compared")
    if any(episode.is_void for episode in episodes):
        raise UserError("void episodes hold no whole transcript; leave them out")
    compare = functools.partial(_token_comparison, first, second, chunk=chunk)
    scores = _in_batches(compare, [episode.token_ids() for episode in episodes], rows)
    width = max(len(episode.turns) for episode in episodes)
    mask = np.zeros((len(episodes), width), bool)
    sums = np.zeros((len(scores), len(episodes), width))
    for row, episode in enumerate(episodes):
        place = 0
        for column, turn in enumerate(episode.turns):
            start = place + len(turn.observation_ids)
            place = start + len(turn.sampled_ids)
            mask[row, column] = True
            for kind, score in enumerate(scores):
                sums[kind, row, column] = score[row, start:place].sum(dtype=np.float64)
    return TurnLikelihood(mask, *sums)


def compare_distributions(
    first: NDArray[np.float64], second: NDArray[np.float64], actions: NDArray[np.int64], mask: NDArray[np.bool_]
) -> TurnLikelihood:
    """The same for policies whose action probabilities are known: [N, T, A] each, with the actions taken, int [N, T].

    Raises `UserError` where the second gives probability 0 to what the first may do, or the reverse: the divergence
    of that direction would be infinite.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        log_first, log_second = np.log(first), np.log(second)
        chosen = [np.take_along_axis(log, actions[..., None], axis=-1)[..., 0] for log in (log_first, log_second)]
        parts = (
            chosen[0] - chosen[1],
            np.where(first > 0, first * (log_first - log_second), 0.0).sum(axis=-1),
            np.where(second > 0, second * (log_second - log_first), 0.0).sum(axis=-1),
            -np.where(first > 0, first * log_first, 0.0).sum(axis=-1),
            -np.where(second > 0, second * log_second, 0.0).sum(axis=-1),
        )
    kept = [np.where(mask, part, 0.0) for part in parts]
    if not all(np.isfinite(part).all() for part in kept):
        raise UserError("a policy gives probability 0 where the other does not; the divergence is infinite")
    return TurnLikelihood(mask, *kept)


def shift_by_turn(table: TurnLikelihood) -> dict[str, list[float]]:
    """The comparison by turn, lists of length T.

    Returns:
      `survivors`: episodes that took the turn, the denominator of `log_ratio`, `kl`, `reverse_kl`, `entropy` and
      `reference_entropy`. `cumulative_kl`, `cumulative_reverse_kl` and `cumulative_log_ratio`: sums up to the turn
      averaged over all episodes, by the chain rule the divergence of the trajectories cut there.
    """
    survivors = table.mask.sum(axis=0)
    curves = {"survivors": survivors.tolist()}
    names = ("log_ratio", "kl", "reverse_kl", "entropy", "reference_entropy")
    for name in names:
        values = np.where(table.mask, getattr(table, name), 0.0)
        curves[name] = (values.sum(axis=0) / np.maximum(survivors, 1)).tolist()
        if "entropy" not in name:
            curves[f"cumulative_{name}"] = (values.sum(axis=0).cumsum() / len(values)).tolist()
    return curves


def reply_log_probs(
    policy: ModelPolicy,
    contexts: Sequence[Sequence[int]],
    replies: Sequence[Sequence[int]],
    *,
    rows: int = ROWS,
    chunk: int = CHUNK,
) -> NDArray[np.float64]:
    """log p(reply | context) of N pairs of token ids, [N]; the reply's stop token is part of it, so it is a reply's
    whole probability."""
    if not contexts:
        return np.zeros(0)

    def score(tokens: np.ndarray, segments: np.ndarray) -> tuple[jax.Array]:
        return (_log_probs(policy.model, policy.temperature, chunk, policy.params, tokens, segments),)

    ids = [[*context, *reply] for context, reply in zip(contexts, replies, strict=True)]
    (scores,) = _in_batches(score, ids, rows)
    return np.array(
        [
            scores[row, len(context) : len(context) + len(reply)].sum(dtype=np.float64)
            for row, (context, reply) in enumerate(zip(contexts, replies, strict=True))
        ]
    )


def _in_batches(
    score: Callable[[np.ndarray, np.ndarray], Sequence[jax.Array]], ids: Sequence[Sequence[int]], rows: int
) -> list[np.ndarray]:
    """Runs `score(tokens, segment ids)` over blocks of `rows` padded transcripts; its results stacked, [N, S] each."""
    length = -(-max(map(len, ids)) // _LENGTH_STEP) * _LENGTH_STEP
    rows = min(rows, 1 << (len(ids) - 1).bit_length())
    blocks = []
    for start in range(0, len(ids), rows):
        tokens = np.zeros((rows, length), np.int32)
        segments = np.zeros((rows, length), np.int32)
        for row, transcript in enumerate(ids[start : start + rows]):
            tokens[row, : len(transcript)] = transcript
            segments[row, : len(transcript)] = 1
        blocks.append(jax.device_get(score(tokens, segments)))
    return [np.concatenate(parts)[: len(ids)] for parts in zip(*blocks, strict=True)]


def _token_comparison(
    first: ModelPolicy, second: ModelPolicy, tokens: np.ndarray, segments: np.ndarray, *, chunk: int
) -> tuple[jax.Array, ...]:
    models = (first.model, second.model)
    temperatures = np.array([first.temperature, second.temperature], np.float32)
    return _compare_tokens(models, chunk, temperatures, (first.params, second.params), tokens, segments)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _log_probs(
    model: decoder.DecoderConfig, temperature: float, chunk: int, params: dict, tokens: jax.Array, segments: jax.Array
) -> jax.Array:
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    hidden = decoder.forward(model, params, tokens, positions, segments)
    return token_logprobs(model, params, hidden, tokens, temperature=temperature, chunk=chunk)[0]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _compare_tokens(
    models: tuple[decoder.DecoderConfig, decoder.DecoderConfig],
    chunk: int,
    temperatures: jax.Array,
    params: tuple[dict, dict],
    tokens: jax.Array,
    segments: jax.Array,
) -> tuple[jax.Array, ...]:
    """The five scores of `TurnLikelihood` for each token [B, S]; the value at s speaks of token s, that at 0 is 0."""
    rows, length = tokens.shape
    positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
    width = max(1, chunk // rows)
    pieces = -(-(length - 1) // width)
    padding = pieces * width - (length - 1)

    def cut(values: jax.Array) -> jax.Array:
        """[B, S - 1, ...] -> [pieces, B, width, ...]."""
        padded = jnp.pad(values, [(0, 0), (0, padding)] + [(0, 0)] * (values.ndim - 2))
        return jnp.moveaxis(padded.reshape(rows, pieces, width, *values.shape[2:]), 1, 0)

    def compare(inputs: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        *states, targets = inputs
        logs = []
        for state, weights, temperature in zip(states, params, temperatures, strict=True):
            head = decoder.head_matrix(weights).astype(state.dtype)
            logits = jnp.einsum("bwd,dv->bwv", state, head, preferred_element_type=jnp.float32) / temperature
            logs.append(jax.nn.log_softmax(logits, axis=-1))
        p, q = jnp.exp(logs[0]), jnp.exp(logs[1])
        gap = logs[0] - logs[1]
        chosen = jnp.take_along_axis(gap, targets[..., None], axis=-1)[..., 0]
        sums = (p * gap, -q * gap, -p * logs[0], -q * logs[1])
        return chosen, *(jnp.sum(part, axis=-1) for part in sums)

    hidden = [
        decoder.forward(model, weights, tokens, positions, segments)
        for model, weights in zip(models, params, strict=True)
    ]
    scores = jax.lax.map(compare, (*(cut(states[:, :-1]) for states in hidden), cut(tokens[:, 1:])))
    flat = [jnp.moveaxis(score, 0, 1).reshape(rows, -1)[:, : length - 1] for score in scores]
    return tuple(jnp.pad(score, ((0, 0), (1, 0))) for score in flat)
