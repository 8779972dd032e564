"""What training carries from update to update, and where it lives on the mesh."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from jaxagent.errors import UserError
from jaxagent.models import decoder, lora
from jaxagent.sharding import rules
from jaxagent.training import critic as critics

ADAPTER_STREAM = 0x10A4  # folded into the run's seed for new adapters


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """fp32 master weights, the optimizer's moments, and the number of updates made so far; more where it is used.

    With LoRA `params` (and so moments, reference and a critic's trunk) are adapters, beside the one frozen `base`.
    """

    params: dict
    opt_state: optax.OptState
    step: jax.Array  # [] int32
    reference: dict | None = None  # the reference policy's parameters, of a KL term
    critic: critics.CriticState | None = None  # PPO's
    base: dict | None = None  # LoRA's frozen weights


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
    schedule: str = "constant"
    decay_steps: int = 0
    final_share: float = 0.0


@dataclasses.dataclass(frozen=True)
class CriticSettings:
    """PPO's critic: where it lives, its optimizer, and how the two networks touch."""

    kind: str
    optimizer: OptimizerSettings
    alone_updates: int
    trunk_weight: float


@dataclasses.dataclass(frozen=True)
class StateExtras:
    """What a training state holds besides the policy."""

    reference: bool = False
    critic: CriticSettings | None = None


POLICY_ALONE = StateExtras()


def optimizer_settings(config: ConfigDict, **replaced: float) -> OptimizerSettings:
    """The settings of an `optimizer` section; `replaced` fields (`learning_rate`, ...) stand in for the section's own.

    Raises:
      UserError: an unknown optimizer, or a setting that it does not have.
    """
    names = [field.name for field in dataclasses.fields(OptimizerSettings)]
    settings = OptimizerSettings(**{name: config[name] for name in names} | replaced)
    if settings.name not in ("adam", "adamw", "sgd"):
        raise UserError(f"optimizer.name must be adam, adamw or sgd, got {settings.name!r}")
    if settings.weight_decay and settings.name != "adamw":
        raise UserError(f"optimizer.weight_decay needs optimizer.name=adamw, got {settings.name!r}")
    _check_schedule(settings)
    return settings


@functools.lru_cache(maxsize=16)
def make_optimizer(settings: OptimizerSettings) -> optax.GradientTransformation:
    """The optax transformation: clipping by global norm, then the optimizer under its schedule."""
    schedule = _schedule(settings)
    moments = {"b1": settings.b1, "b2": settings.b2, "eps": settings.eps}
    if settings.name == "adam":
        optimizer = optax.adam(schedule, **moments)
    elif settings.name == "adamw":
        optimizer = optax.adamw(schedule, **moments, weight_decay=settings.weight_decay)
    else:
        optimizer = optax.sgd(schedule)
    return optax.chain(optax.clip_by_global_norm(settings.clip_norm), optimizer) if settings.clip_norm else optimizer


def init_state(
    model: decoder.DecoderConfig,
    optimizer: optax.GradientTransformation,
    seed: int,
    extras: StateExtras = POLICY_ALONE,
) -> TrainState:
    """As `from_params`, with fresh weights from `seed`."""
    return from_params(model, optimizer, decoder.init_params(model, jax.random.key(seed)), seed=seed, extras=extras)


def from_params(
    model: decoder.DecoderConfig,
    optimizer: optax.GradientTransformation,
    params: dict,
    *,
    seed: int,
    extras: StateExtras = POLICY_ALONE,
) -> TrainState:
    """The state before the first update, not yet placed; a reference policy and a critic's trunk are copies.

    With `model.lora` the given weights are the frozen base of new adapters.
    """
    base = None
    if model.lora:
        key = jax.random.fold_in(jax.random.key(seed), ADAPTER_STREAM)
        base, params = params, lora.init_adapters(model, key)
    return TrainState(
        base=base,
        params=params,
        opt_state=optimizer.init(params),
        step=jnp.int32(0),
        reference=jax.tree.map(jnp.copy, params) if extras.reference else None,
        critic=_init_critic(extras.critic, model, params) if extras.critic else None,
    )


def policy_params(state: TrainState) -> dict:
    """What `decoder.forward` reads: the weights, or base and adapters together."""
    return with_base(state.base, state.params)


def with_base(base: dict | None, params: dict) -> dict:
    """Trained parameters together with the frozen base, where there is one."""
    return params if base is None else lora.combine(base, params)


def policy_shardings(model: decoder.DecoderConfig, mesh: jax.sharding.Mesh) -> dict:
    """The sharding of every plain weight (no adapters) in training, in the structure of `decoder.init_params`."""
    return rules.param_shardings(mesh, decoder.logical_axes(model), decoder.param_shapes(model))


def state_shardings(
    model: decoder.DecoderConfig,
    optimizer: optax.GradientTransformation,
    mesh: jax.sharding.Mesh,
    extras: StateExtras = POLICY_ALONE,
) -> TrainState:
    """A `TrainState` of NamedShardings: parameters by the rules, moments as their parameters, the rest replicated."""
    abstract = jax.eval_shape(lambda: init_state(model, optimizer, 0, extras))
    base = policy_shardings(model, mesh) if model.lora else None
    axes = lora.adapter_axes(model) if model.lora else decoder.logical_axes(model)
    params = rules.param_shardings(mesh, axes, abstract.params)
    critic_shardings = None
    if extras.critic:
        axes_of_critic = critics.logical_axes(extras.critic.kind, axes)
        critic_params = rules.param_shardings(mesh, axes_of_critic, abstract.critic.params)
        moments = _moment_shardings(
            make_optimizer(extras.critic.optimizer), abstract.critic.opt_state, critic_params, mesh
        )
        critic_shardings = critics.CriticState(params=critic_params, opt_state=moments)
    return TrainState(
        params=params,
        opt_state=_moment_shardings(optimizer, abstract.opt_state, params, mesh),
        step=rules.replicated(mesh),
        reference=params if extras.reference else None,
        critic=critic_shardings,
        base=base,
    )


def _init_critic(settings: CriticSettings, model: decoder.DecoderConfig, policy_params: dict) -> critics.CriticState:
    params = critics.init_params(settings.kind, model, policy_params)
    return critics.CriticState(params=params, opt_state=make_optimizer(settings.optimizer).init(params))


def _moment_shardings(
    optimizer: optax.GradientTransformation, opt_state: optax.OptState, params: dict, mesh: jax.sharding.Mesh
) -> optax.OptState:
    everywhere = rules.replicated(mesh)
    return optax.tree_utils.tree_map_params(
        optimizer, lambda _, sharding: sharding, opt_state, params, transform_non_params=lambda _: everywhere
    )


def _check_schedule(settings: OptimizerSettings) -> None:
    if settings.schedule not in ("constant", "cosine"):
        raise UserError(f"optimizer.schedule must be constant or cosine, got {settings.schedule!r}")
    if settings.schedule == "cosine" and settings.decay_steps <= settings.warmup_steps:
        raise UserError(
            f"optimizer.schedule=cosine needs optimizer.decay_steps above warmup_steps={settings.warmup_steps}, "
            f"got {settings.decay_steps}"
        )
    if settings.schedule == "constant" and (settings.decay_steps or settings.final_share):
        raise UserError("optimizer.decay_steps and final_share need optimizer.schedule=cosine")
    if not 0 <= settings.final_share <= 1:
        raise UserError(f"optimizer.final_share must lie in [0, 1], got {settings.final_share}")


def _schedule(settings: OptimizerSettings) -> optax.Schedule:
    """Linear from 0 over the warm-up, then constant, or a half cosine to the final share at `decay_steps`."""
    peak, warm = settings.learning_rate, settings.warmup_steps
    if settings.schedule == "cosine":
        after = optax.cosine_decay_schedule(peak, settings.decay_steps - warm, alpha=settings.final_share)
    else:
        after = optax.constant_schedule(peak)
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warm), after], [warm]) if warm else after
