"""What training carries from update to update, and where it lives on the mesh."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from jaxagent.errors import UserError
from jaxagent.models import decoder
from jaxagent.sharding import rules


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """fp32 master weights, the optimizer's moments, and the number of updates made so far."""

    params: dict
    opt_state: optax.OptState
    step: jax.Array  # [] int32


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """The fields of a config's `optimizer` section that make the optimizer; equal settings share one compiled step."""

    name: str
    learning_rate: float
    warmup_steps: int
    b1: float
    b2: float
    eps: float
    weight_decay: float
    clip_norm: float


def optimizer_settings(config: ConfigDict, *, learning_rate: float | None = None) -> OptimizerSettings:
    """The settings of an `optimizer` section; `learning_rate` replaces the section's own.

    Raises:
      UserError: an unknown optimizer, or a setting that it does not have.
    """
    names = [field.name for field in dataclasses.fields(OptimizerSettings)]
    settings = OptimizerSettings(**{name: config[name] for name in names})
    if settings.name not in ("adam", "adamw", "sgd"):
        raise UserError(f"optimizer.name must be adam, adamw or sgd, got {settings.name!r}")
    if settings.weight_decay and settings.name != "adamw":
        raise UserError(f"optimizer.weight_decay needs optimizer.name=adamw, got {settings.name!r}")
    return settings if learning_rate is None else dataclasses.replace(settings, learning_rate=learning_rate)


@functools.lru_cache(maxsize=16)
def make_optimizer(settings: OptimizerSettings) -> optax.GradientTransformation:
    """The optax transformation: clipping by global norm, then the optimizer under its schedule."""
    if settings.warmup_steps:
        schedule = optax.linear_schedule(0.0, settings.learning_rate, settings.warmup_steps)
    else:
        schedule = optax.constant_schedule(settings.learning_rate)
    moments = {"b1": settings.b1, "b2": settings.b2, "eps": settings.eps}
    if settings.name == "adam":
        optimizer = optax.adam(schedule, **moments)
    elif settings.name == "adamw":
        optimizer = optax.adamw(schedule, **moments, weight_decay=settings.weight_decay)
    else:
        optimizer = optax.sgd(schedule)
    return optax.chain(optax.clip_by_global_norm(settings.clip_norm), optimizer) if settings.clip_norm else optimizer


def init_state(model: decoder.DecoderConfig, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    """Fresh weights from `seed`, not yet placed."""
    params = decoder.init_params(model, jax.random.key(seed))
    return TrainState(params=params, opt_state=optimizer.init(params), step=jnp.int32(0))


def state_shardings(
    model: decoder.DecoderConfig, optimizer: optax.GradientTransformation, mesh: jax.sharding.Mesh
) -> TrainState:
    """A `TrainState` of NamedShardings: parameters by the rules, moments as their parameters, the rest replicated."""
    abstract = jax.eval_shape(lambda: init_state(model, optimizer, 0))
    params = rules.param_shardings(mesh, decoder.logical_axes(model), abstract.params)
    everywhere = rules.replicated(mesh)
    opt_state = optax.tree_utils.tree_map_params(
        optimizer, lambda _, sharding: sharding, abstract.opt_state, params, transform_non_params=lambda _: everywhere
    )
    return TrainState(params=params, opt_state=opt_state, step=everywhere)
