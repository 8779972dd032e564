"""The `algorithm` section, checked in one place and turned into hashable settings that compiled functions close over.

What only the host reads (overruns, redraws, turn cost) stays in the config; it is checked here all the same.
"""

import dataclasses
from collections.abc import Iterator

from ml_collections import ConfigDict

from jaxagent import budgets
from jaxagent.algorithms import FUNCTIONS
from jaxagent.config import default_config
from jaxagent.errors import UserError
from jaxagent.training.state import CriticSettings, StateExtras, optimizer_settings

NAMES = (*FUNCTIONS["group_advantages"], "ppo")
STD_NAMES = ("grpo", "gigpo")  # those with the switch `normalize_std`


@dataclasses.dataclass(frozen=True)
class KLOptions:
    """The fields of `algorithm.kl`."""

    coefficient: float
    kind: str
    place: str
    reference: str
    decay: float


@dataclasses.dataclass(frozen=True)
class GiGPOOptions:
    """The fields of `algorithm.gigpo` that the advantages read."""

    gamma: float
    step_weight: float
    episode_stats: str
    require_distinct_trajectories: bool


@dataclasses.dataclass(frozen=True)
class PPOOptions:
    """The fields of `algorithm.ppo`."""

    advantage: str
    gamma: float
    lam: float
    turn_gamma: float
    turn_lam: float
    bootstrap: str
    whiten: bool
    value_clip: float


@dataclasses.dataclass(frozen=True)
class LossOptions:
    """The policy loss of one gradient step."""

    clip_low: float
    clip_high: float
    dual_clip: float | None
    ratio: str
    aggregation: str
    aggregation_constant: int | None
    entropy_coefficient: float
    importance_cap: float
    sequence_mask: tuple[float, float] | None
    sequence_mask_mean: bool


@dataclasses.dataclass(frozen=True)
class AlgorithmOptions:
    """All that the compiled functions of an update depend on, apart from the model and the optimizer."""

    name: str
    normalize_std: bool
    std_floor: float
    group_baseline: bool
    old_logprobs: str
    epochs: int
    minibatches: int
    loss: LossOptions
    kl: KLOptions
    gigpo: GiGPOOptions
    ppo: PPOOptions
    critic: CriticSettings | None

    @property
    def needs_reference(self) -> bool:
        """Whether a reference policy is kept and scored."""
        return self.kl.coefficient > 0

    @property
    def extras(self) -> StateExtras:
        """What the training state holds besides the policy."""
        return StateExtras(reference=self.needs_reference, critic=self.critic)


def algorithm_options(config: ConfigDict) -> AlgorithmOptions:
    """The settings of a config.

    Raises:
      UserError: an option, or a combination of options, that cannot be honoured; one line that names it and the remedy.
    """
    check_algorithm(config)
    section = config.algorithm
    return AlgorithmOptions(
        name=section.name,
        normalize_std=section.normalize_std,
        std_floor=section.std_floor,
        group_baseline=section.group_baseline,
        old_logprobs=section.old_logprobs,
        epochs=section.epochs,
        minibatches=section.minibatches,
        loss=_loss_options(config),
        kl=_from_section(KLOptions, section.kl),
        gigpo=_from_section(GiGPOOptions, section.gigpo),
        ppo=_from_section(PPOOptions, section.ppo),
        critic=_critic_settings(config),
    )


def check_algorithm(config: ConfigDict) -> None:
    """Raises `UserError` where the `algorithm` section, or what it needs of others, cannot be honoured."""
    _check_ranges(config.algorithm)
    budget_sampler(config)
    for complaint in _complaints(config):
        raise UserError(complaint)


def budget_sampler(config: ConfigDict) -> budgets.BudgetSampler:
    """The budget sampler of a config. A setting that the sampler or the announcement does not use raises."""
    section = config.budget
    if section.percent != 100 and section.sampler != "fixed":
        raise UserError(f"budget.percent={section.percent} needs budget.sampler=fixed, got {section.sampler!r}")
    if section.stages and section.sampler != "curriculum":
        raise UserError(f"budget.stages needs budget.sampler=curriculum, got {section.sampler!r}")
    if section.announce == "none" and section.announce_probability != 1.0:
        raise UserError("budget.announce_probability needs a budget line, but budget.announce=none")
    if not 0 <= section.turn_cost <= 1:
        raise UserError(f"budget.turn_cost must lie in [0, 1], got {section.turn_cost}")
    budgets.budget_line(1, 1, announce=section.announce, wording=section.wording)
    return budgets.make_sampler(section.sampler, percent=section.percent, stages=tuple(section.stages))


def _from_section(kind: type, section: ConfigDict) -> object:
    return kind(**{field.name: section[field.name] for field in dataclasses.fields(kind)})


def _loss_options(config: ConfigDict) -> LossOptions:
    section, rollout = config.algorithm, config.rollout
    aggregation = _aggregation(section)
    # The most policy tokens an episode can have: replies of full length, and no room for anything else.
    most = min(rollout.max_context, rollout.max_turns * rollout.max_turn_tokens)
    return LossOptions(
        clip_low=section.clip_low,
        clip_high=section.clip_high,
        dual_clip=section.dual_clip or None,
        ratio=section.ratio,
        aggregation=aggregation,
        aggregation_constant=most if aggregation == "dr_grpo" else None,
        entropy_coefficient=section.entropy_coefficient,
        importance_cap=section.importance_cap,
        sequence_mask=tuple(map(float, section.sequence_mask)) or None,
        sequence_mask_mean=section.sequence_mask_mean,
    )


def _aggregation(section: ConfigDict) -> str:
    if section.aggregation != "auto":
        return section.aggregation
    if section.name == "dr_grpo":
        return "dr_grpo"
    return "token_mean" if section.ratio == "token" else "sequence_mean"


def _critic_settings(config: ConfigDict) -> CriticSettings | None:
    section = config.algorithm.critic
    if section.kind == "none":
        return None
    optimizer = optimizer_settings(
        config.optimizer, learning_rate=section.learning_rate, warmup_steps=section.warmup_steps
    )
    return CriticSettings(
        kind=section.kind,
        optimizer=optimizer,
        alone_updates=section.alone_updates,
        trunk_weight=section.trunk_weight,
    )


def _check_ranges(section: ConfigDict) -> None:
    """Choices and numbers by themselves."""
    _check_choices(
        {
            "name": NAMES,
            "ratio": tuple(FUNCTIONS["ratio"]),
            "aggregation": ("auto", *FUNCTIONS["aggregation"]),
            "old_logprobs": ("behaviour", "recomputed"),
            "overruns": ("zero", "mask", "drop", "penalty"),
            "zero_variance": ("keep", "drop", "redraw"),
            "kl.kind": tuple(FUNCTIONS["kl"]),
            "kl.place": ("loss", "reward"),
            "kl.reference": ("frozen", "moving_average"),
            "gigpo.episode_stats": ("trajectories", "rows"),
            "gigpo.anchor_match": ("exact", "similar"),
            "ppo.advantage": tuple(FUNCTIONS["token_advantages"]),
            "ppo.bootstrap": ("turn_start", "turn_end"),
            "critic.kind": ("none", "head", "separate"),
        },
        section,
    )
    unit = ("gigpo.gamma", "ppo.gamma", "ppo.lam", "ppo.turn_gamma", "ppo.turn_lam", "kl.decay")
    _check_numbers(section, ("steps", "groups", "group_size", "epochs", "minibatches", "max_redraws"), 1, None)
    _check_numbers(section, (*unit, "clip_low", "critic.trunk_weight"), 0, 1)
    positive = ("std_floor", "clip_high", "entropy_coefficient", "importance_cap", "overrun_penalty", "kl.coefficient")
    more = (
        "gigpo.step_weight",
        "ppo.value_clip",
        "critic.learning_rate",
        "critic.warmup_steps",
        "critic.alone_updates",
    )
    _check_numbers(section, (*positive, *more), 0, None)
    if section.dual_clip and not section.dual_clip > 1:
        raise UserError(f"algorithm.dual_clip must exceed 1 (3.0 is usual) or be 0 for none, got {section.dual_clip}")
    bounds = section.sequence_mask
    if bounds and not (len(bounds) == 2 and 0 <= bounds[0] <= 1 <= bounds[1]):
        raise UserError(f"algorithm.sequence_mask must be (low, high) with 0 <= low <= 1 <= high, got {bounds}")


def _complaints(config: ConfigDict) -> Iterator[str]:
    """What cannot work together, each as one line."""
    section, top_p = config.algorithm, config.rollout.top_p
    if top_p != 1:
        yield (
            f"rollout.top_p={top_p} with importance ratios: the sampler's log-probs are of a cut distribution, the "
            "trainer's of the whole one; train with rollout.top_p=1.0 and set it for `jaxagent evaluate` alone"
        )
    yield from _advantage_complaints(config)
    yield from _loss_complaints(section)
    yield from _unused_complaints(section)
    if section.groups * section.group_size % section.minibatches:
        yield (
            f"algorithm.minibatches={section.minibatches} does not divide the {section.groups * section.group_size} "
            "episodes of an update"
        )
    if section.overruns != "penalty" and section.overrun_penalty:
        yield "algorithm.overrun_penalty needs algorithm.overruns=penalty"
    if section.overruns == "penalty" and not section.overrun_penalty:
        yield "algorithm.overruns=penalty needs algorithm.overrun_penalty above 0"
    if section.name == "ppo" and section.critic.kind == "none":
        yield "algorithm.name=ppo needs a critic: set algorithm.critic.kind to head or separate"
    if section.name == "ppo" and not section.critic.learning_rate:
        yield "algorithm.critic.learning_rate=0 leaves the critic as it starts: give it a rate above 0"


def _advantage_complaints(config: ConfigDict) -> Iterator[str]:
    section = config.algorithm
    name = section.name
    if section.normalize_std and name not in STD_NAMES:
        yield f"algorithm.normalize_std=True has no meaning for algorithm.name={name}: set it to False"
    if section.std_floor and not section.normalize_std:
        yield "algorithm.std_floor needs algorithm.normalize_std=True"
    if config.budget.turn_cost and section.normalize_std and not section.std_floor:
        yield (
            "budget.turn_cost with algorithm.normalize_std=True makes groups of successes push at full size and "
            "collapses the agent: set algorithm.std_floor (0.25 works), or normalize_std=False"
        )
    if section.group_size == 1 and name != "ppo":
        yield f"algorithm.group_size=1 gives every episode advantage 0 with {name}: use at least 2"
    if section.zero_variance != "keep" and name == "ppo":
        yield "algorithm.zero_variance is about group baselines; algorithm.name=ppo has none: leave it at keep"
    if section.zero_variance != "redraw" and section.max_redraws != default_config().algorithm.max_redraws:
        yield "algorithm.max_redraws needs algorithm.zero_variance=redraw"
    if config.env.step_reward != "none" and name not in ("gigpo", "ppo"):
        yield f"env.step_reward={config.env.step_reward} reaches gigpo and ppo alone, algorithm.name is {name}"
    if config.env.step_reward == "none" and config.env.step_reward_scale != default_config().env.step_reward_scale:
        yield f"env.step_reward_scale={config.env.step_reward_scale} needs env.step_reward"
    if not section.group_baseline and name != "reinforce_plus_plus":
        yield f"algorithm.group_baseline=False is an option of reinforce_plus_plus, algorithm.name is {name}"


def _loss_complaints(section: ConfigDict) -> Iterator[str]:
    if section.name == "dr_grpo" and section.aggregation not in ("auto", "dr_grpo"):
        yield f"algorithm.name=dr_grpo aggregates by dr_grpo, got algorithm.aggregation={section.aggregation}: use grpo"
    for option in ("importance_cap", "sequence_mask"):
        if section[option] and section.old_logprobs != "recomputed":
            yield f"algorithm.{option} compares old and behaviour log-probs: it needs algorithm.old_logprobs=recomputed"
    if section.sequence_mask_mean and not section.sequence_mask:
        yield "algorithm.sequence_mask_mean needs algorithm.sequence_mask=(low, high)"
    kl = section.kl
    if not kl.coefficient:
        return
    ragen = section.ppo.advantage == "bi_level_gae" and section.ppo.bootstrap == "turn_end"
    if kl.place == "reward" and section.name == "ppo" and ragen:
        yield (
            "algorithm.kl.place=reward with ppo.advantage=bi_level_gae and ppo.bootstrap=turn_end charges a turn for "
            "tokens that its value already knows: use bootstrap=turn_start, turn_gae, or kl.place=loss"
        )
    if kl.place == "reward" and kl.kind in ("k2", "k3_st"):
        yield f"algorithm.kl.kind={kl.kind} shapes a gradient, and a reward has none: use k1 or k3 with place=reward"
    if kl.place == "loss" and kl.kind == "k1":
        yield "algorithm.kl.kind=k1 has a gradient of mean 0 in the loss: use k2, k3 or k3_st, or place=reward"


def _unused_complaints(section: ConfigDict) -> Iterator[str]:
    """Sections that another algorithm reads must stand at their defaults: nothing is ignored in silence."""
    default = default_config().algorithm
    readers = {"gigpo": section.name == "gigpo", "ppo": section.name == "ppo", "critic": section.name == "ppo"}
    readers["kl"] = section.kl.coefficient > 0
    for part, is_read in readers.items():
        for field in () if is_read else section[part]:
            if section[part][field] != default[part][field]:
                why = "algorithm.kl.coefficient is 0" if part == "kl" else f"algorithm.name is {section.name}"
                yield f"algorithm.{part}.{field}={section[part][field]} has no effect: {why}"
    yield from _unread_fields(section, default)


def _unread_fields(section: ConfigDict, default: ConfigDict) -> Iterator[str]:
    """Fields inside a section that is read, but for another choice."""
    unread = []
    if section.name == "ppo" and section.ppo.advantage != "bi_level_gae":
        unread += [("ppo", field, "ppo.advantage=bi_level_gae") for field in ("turn_gamma", "turn_lam", "bootstrap")]
    if section.name == "ppo" and section.critic.kind != "head":
        unread.append(("critic", "trunk_weight", "critic.kind=head"))
    if section.kl.coefficient and section.kl.reference != "moving_average":
        unread.append(("kl", "decay", "kl.reference=moving_average"))
    for part, field, needed in unread:
        if section[part][field] != default[part][field]:
            yield f"algorithm.{part}.{field} needs algorithm.{needed}"


def _check_choices(choices: dict[str, tuple[str, ...]], section: ConfigDict) -> None:
    for field, allowed in choices.items():
        value = _field(section, field)
        if value not in allowed:
            raise UserError(f"algorithm.{field} must be one of {', '.join(allowed)}, got {value!r}")


def _check_numbers(section: ConfigDict, fields: tuple[str, ...], low: float, high: float | None) -> None:
    for field in fields:
        value = _field(section, field)
        if not low <= value <= (float("inf") if high is None else high):
            bounds = f"be at least {low}" if high is None else f"lie in [{low}, {high}]"
            raise UserError(f"algorithm.{field} must {bounds}, got {value}")


def _field(section: ConfigDict, field: str) -> object:
    for name in field.split("."):
        section = section[name]
    return section
