"""The jitted sampler: append tokens to the KV cache of all slots, then decode on the device.

One call appends to every live slot what it has pending (an observation, or the last token of an unfinished reply),
samples where nothing more is pending, and keeps decoding until enough rows have stopped or `decode_chunk` steps are
done. History is never prefilled again. Sampling noise is a function of (run seed, step, group, member, turn,
position) alone.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.models import cache as kv
from jaxagent.models.decoder import DecoderConfig
from jaxagent.sharding import rules

KEY_WORDS = 5  # run seed, step, group, member, turn
BLOCK = 128  # tokens a block of the two-level inverse CDF


@dataclasses.dataclass(frozen=True)
class SamplerConfig:
    """Static shapes and stop rules of one sampler."""

    slots: int
    max_context: int
    max_turn_tokens: int
    extend_buckets: tuple[int, ...]
    decode_chunk: int
    ready_slots: int
    stop_ids: tuple[int, ...]
    top_p: float = 1.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Request:
    """What one call does to each of N slots."""

    tokens: np.ndarray  # [N, W] int32 to append
    counts: np.ndarray  # [N] int32, how many of them; 0 leaves the slot alone
    reset: np.ndarray  # [N] bool, the slot starts a new episode
    sample: np.ndarray  # [N] bool, nothing more is pending: sample after appending
    keys: np.ndarray  # [N, 5] uint32: run seed, step, group, member, turn
    position: np.ndarray  # [N] int32, tokens of this reply sampled in earlier calls


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sampled:
    """What one call drew: row i's tokens stand in columns 0..counts[i]-1."""

    tokens: jax.Array  # [N, decode_chunk + 1] int32
    logprobs: jax.Array  # [N, decode_chunk + 1] float32, under the tempered distribution that drew them
    counts: jax.Array  # [N] int32
    stopped: jax.Array  # [N] bool, a stop token was drawn or the reply hit its cap
    decode_steps: jax.Array  # [] int32, forward passes after the first
    live_steps: jax.Array  # [] int32, row-steps that served a live episode


def sample_tokens(logits: jax.Array, uniforms: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Inverse-CDF sampling in two levels, one uniform a row.

    Cheaper than a categorical draw over a large vocabulary (no noise per entry, no sort), and the log-prob falls out
    of the same sums. Tokens of probability 0 are never drawn.

    Args:
      logits: [N, V] float32, already divided by the temperature.
      uniforms: [N] float32 in [0, 1).

    Returns:
      tokens [N] int32 and their log-probs [N] float32.
    """
    vocab = logits.shape[-1]
    padding = -vocab % BLOCK
    top = jnp.max(logits, axis=-1, keepdims=True)
    mass = jnp.pad(jnp.exp(logits - top), ((0, 0), (0, padding))).reshape(
        logits.shape[0], -1, BLOCK
    )  # [N, V/BLOCK, BLOCK]
    block_mass = jnp.sum(mass, axis=-1)
    total = jnp.sum(block_mass, axis=-1)
    target = uniforms * total
    block, before = _first_above(block_mass, target)
    inner = jnp.take_along_axis(mass, block[:, None, None], axis=1)[:, 0]  # [N, BLOCK]
    offset, _ = _first_above(inner, target - before)
    tokens = block * BLOCK + offset
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return tokens.astype(jnp.int32), chosen - top[:, 0] - jnp.log(total)


def nucleus(logits: jax.Array, top_p: float) -> jax.Array:
    """Logits with -inf outside the nucleus (arXiv 1904.09751): the likeliest tokens that together reach `top_p`.

    A token stays where those strictly likelier than it have less than `top_p` of the mass, so equally likely tokens
    stay or go together and the likeliest always stay.

    Args:
      logits: [N, V] float32, already divided by the temperature.
      top_p: static, in (0, 1].
    """
    if top_p >= 1.0:
        return logits
    ordered = jnp.sort(logits, axis=-1, descending=True)
    mass = jax.nn.softmax(ordered, axis=-1)
    inside = jnp.cumsum(mass, axis=-1) - mass < top_p  # a run from the left, the likeliest included
    least = jnp.min(jnp.where(inside, ordered, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(logits >= least, logits, -jnp.inf)


def uniforms_for(keys: jax.Array, position: jax.Array) -> jax.Array:
    """One uniform a row from its key words [N, 5] and the token's position in the reply [N]; [N] float32."""

    def one(words: jax.Array, place: jax.Array) -> jax.Array:
        key = jax.random.key(0)
        for i in range(KEY_WORDS):
            key = jax.random.fold_in(key, words[i])
        return jax.random.uniform(jax.random.fold_in(key, place))

    return jax.vmap(one)(keys, position)


class Sampler:
    """Owns the KV cache of all slots and the compiled call. Weights are handed in with `set_params`."""

    def __init__(self, model: DecoderConfig, config: SamplerConfig, mesh: jax.sharding.Mesh) -> None:
        self.config = config
        self._cache = jax.device_put(kv.init_cache(model, config.slots, config.max_context), rules.batch_sharding(mesh))
        self._generate = _compiled_generate(model, config, mesh)
        stop = np.zeros(model.vocab_size, bool)
        stop[list(config.stop_ids)] = True
        self._stop = jax.device_put(stop, rules.replicated(mesh))
        self._params = None

    def set_params(self, params: dict) -> None:
        """Takes decoding parameters (`models.cache.decoding_params`), placed for the sampler's mesh."""
        self._params = params

    def bucket(self, pending: int) -> int:
        """The compiled append width for the longest pending run of tokens."""
        return next((width for width in self.config.extend_buckets if width >= pending), self.config.extend_buckets[-1])

    def __call__(self, request: Request, temperature: float) -> Sampled:
        """Runs one call; everything comes back as host arrays."""
        self._cache, sampled = self._generate(
            params=self._params,
            cache=self._cache,
            stop=self._stop,
            request=request,
            temperature=np.float32(temperature),
        )
        return jax.device_get(sampled)

    def warm_up(self, temperature: float) -> None:
        """Compiles every declared append width."""
        for width in self.config.extend_buckets:
            self(idle_request(self.config.slots, width), temperature)


def idle_request(slots: int, width: int) -> Request:
    """A request that does nothing, to be filled in by the engine."""
    return Request(
        tokens=np.zeros((slots, width), np.int32),
        counts=np.zeros(slots, np.int32),
        reset=np.zeros(slots, bool),
        sample=np.zeros(slots, bool),
        keys=np.zeros((slots, KEY_WORDS), np.uint32),
        position=np.zeros(slots, np.int32),
    )


def generate(
    model: DecoderConfig,
    config: SamplerConfig,
    *,
    params: dict,
    cache: dict,
    stop: jax.Array,
    request: Request,
    temperature: jax.Array,
) -> tuple[dict, Sampled]:
    """Appends, samples, decodes. Pure; `cache` may be donated.

    Returns the cache and what was drawn. The last token of each reply is not in the cache yet: it comes back with the
    next request, so that an observation and the reply before it are appended together.
    """
    columns = config.decode_chunk + 1
    ready = config.ready_slots or max(1, config.slots // 8)
    cache = cache | {"lengths": jnp.where(request.reset, 0, cache["lengths"])}

    def draw(hidden: jax.Array, position: jax.Array, active: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        logits = kv.next_token_logits(params, hidden) / temperature
        token, logprob = sample_tokens(nucleus(logits, config.top_p), uniforms_for(request.keys, position))
        done = stop[token] | (position + 1 >= config.max_turn_tokens)
        return token, logprob, active & done

    def record(column: jax.Array, active: jax.Array, drawn: tuple, carry: tuple) -> tuple:
        token, logprob, done = drawn
        tokens, logprobs, counts, stopped = carry
        tokens = tokens.at[:, column].set(jnp.where(active, token, 0))
        logprobs = logprobs.at[:, column].set(jnp.where(active, logprob, 0.0))
        return tokens, logprobs, counts + active, stopped | done

    hidden, cache = kv.append(model, params, cache, request.tokens, request.counts)
    drawn = draw(hidden, request.position, request.sample)
    empty = (
        jnp.zeros((config.slots, columns), jnp.int32),
        jnp.zeros((config.slots, columns), jnp.float32),
        jnp.zeros(config.slots, jnp.int32),
        jnp.zeros(config.slots, bool),
    )
    carry = record(0, request.sample, drawn, empty)

    def going_on(state: tuple) -> jax.Array:
        step, _, _, (_, _, _, stopped), _ = state
        running = request.sample & ~stopped
        return (step < config.decode_chunk) & jnp.any(running) & (jnp.sum(stopped) < ready)

    def decode(state: tuple) -> tuple:
        step, cache, last, carry, live = state
        active = request.sample & ~carry[3]
        hidden, cache = kv.append(model, params, cache, last[:, None], active.astype(jnp.int32))
        drawn = draw(hidden, request.position + step + 1, active)
        carry = record(step + 1, active, drawn, carry)
        return step + 1, cache, jnp.where(active, drawn[0], last), carry, live + jnp.sum(active)

    live = jnp.sum(request.counts > 0)
    steps, cache, _, carry, live = jax.lax.while_loop(
        going_on, decode, (jnp.int32(0), cache, drawn[0], carry, live.astype(jnp.int32))
    )
    tokens, logprobs, counts, stopped = carry
    return cache, Sampled(tokens, logprobs, counts, stopped, steps, live)


@functools.lru_cache(maxsize=16)
def _compiled_generate(model: DecoderConfig, config: SamplerConfig, mesh: jax.sharding.Mesh):
    """The jitted call; samplers of equal shape in one process share it."""
    return jax.jit(
        functools.partial(generate, model, config),
        out_shardings=(rules.batch_sharding(mesh), rules.replicated(mesh)),
        donate_argnames="cache",
    )


def _first_above(mass: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Per row the first column whose running sum exceeds `target`, and the sum before it; never a column of mass 0."""
    running = jnp.cumsum(mass, axis=-1)
    column = jnp.sum(running <= target[:, None], axis=-1)
    last = mass.shape[-1] - 1 - jnp.argmax(jnp.flip(mass > 0, axis=-1), axis=-1)
    column = jnp.minimum(column, last)
    before = jnp.where(
        column > 0, jnp.take_along_axis(running, jnp.maximum(column - 1, 0)[:, None], axis=-1)[:, 0], 0.0
    )
    return column, before
