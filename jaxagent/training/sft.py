"""The base policy: cloning scripted demonstrations of mixed quality.

Demonstrators never look at the budget line. It stands in a share of the demonstrations with a total drawn from the
grid, and those are cut there: the line is in vocabulary and says nothing about what to do. The rest have no line and
run to the full budget.
"""

import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from jaxagent import batches, budgets
from jaxagent.envs.base import Environment, StepResult, TaskSource
from jaxagent.episodes import Episode, EpisodeSpec, Task, Turn, finished_episode
from jaxagent.errors import UserError
from jaxagent.rollout.engine import environment_seed
from jaxagent.rollout.setup import Setup, make_setup
from jaxagent.sharding import rules
from jaxagent.training import checkpoints as ckpt
from jaxagent.training import state as states
from jaxagent.training import step as steps
from jaxagent.training.interrupts import Interrupts
from jaxagent.training.loop import RunLog, device_names, initial_state, interrupted_message, make_step_config

DEMONSTRATION_STREAM = 0xDE70
_TRIED_FOR_ROOM = 256


def run(config: ConfigDict, workdir: str | pathlib.Path, *, resume: bool, log: RunLog) -> None:
    """Clones demonstrations as the `sft` section says; the checkpoint is what `model.init_from` of later runs names.

    Raises:
      UserError: bad settings, or an environment without scripted demonstrations.
      SystemExit: after Ctrl-C or SIGTERM, once the state is saved.
    """
    setup = make_setup(config)
    _check(config, setup)
    settings = states.optimizer_settings(config.optimizer, learning_rate=config.sft.learning_rate)
    optimizer = states.make_optimizer(settings)
    setup.keep_description(workdir)
    saved = ckpt.Checkpoints(workdir, setup.trained_model, kind="sft", keep=config.checkpoint.keep)
    state, _ = initial_state(setup, optimizer, saved, resume=resume)
    try:
        with Interrupts() as interrupts:
            _train(setup, optimizer, state, saved, log, interrupts)
    finally:
        saved.close()
    if interrupts.received is not None:
        print(interrupted_message(workdir), flush=True)
        raise SystemExit(interrupts.exit_status)


def demonstrate(setup: Setup, environment: Environment, task: Task, *, step: int, member: int) -> Episode:
    """One scripted episode as the engine would have recorded it; log-probs are 0, nothing sampled it.

    Replies stay whole where they are longer than rollout.max_turn_tokens. The episode ends with `context` where its
    next reply, or the longest that a policy may write, does not fit the context.
    """
    config = setup.config
    random = np.random.default_rng([config.seed, DEMONSTRATION_STREAM, step, member])
    told, enforced = None, task.max_turns
    if random.random() < config.sft.line_share:
        told = enforced = budgets.candidate_budgets(task.max_turns)[random.integers(budgets.NUM_TENTHS)]
    spec = EpisodeSpec(task, config.seed, step, member, 0, told, enforced)
    observation = environment.reset(task, environment_seed(spec))
    demonstrator = setup.entry.make_demonstrator(environment, random)
    turns: list[Turn] = []
    result, length = StepResult(observation), 0
    while len(turns) < enforced and result.ended is None:
        number = len(turns) + 1
        line = budgets.budget_line(told, number, announce=config.budget.announce, wording=config.budget.wording)
        reply = demonstrator()
        observed = setup.chat.observation_ids(observation.text + line, first=number == 1)
        sampled = setup.chat.reply_ids(reply)
        length += len(observed)
        if length + max(len(sampled), config.rollout.max_turn_tokens) > config.rollout.max_context:
            return finished_episode(spec, turns, "context", detail="demonstration")
        length += len(sampled)
        written = setup.chat.reply_text(sampled)
        result = environment.step(written)
        if "\n" in reply.strip() and "\n" not in written.strip() and not result.info.get("valid", True):
            raise UserError(
                f"env.name={config.env.name} is shown by replies of several lines, but a tokenizer without a chat "
                "template ends a reply with its line: use one with a template (model.pretrained, model.tokenizer)"
            )
        turns.append(_turn(number, observed, sampled, reply, result, observation.anchor, enforced))
        observation = result.observation
    outcome = result.reward if result.ended else 0.0
    return finished_episode(spec, turns, result.ended or "budget", outcome=outcome, detail="demonstration")


def _demonstration(setup: Setup, environment: Environment, task: Task, step: int, member: int) -> Episode:
    """`demonstrate`; what an environment or its demonstrator raises is said in a line, as a `UserError`."""
    try:
        return demonstrate(setup, environment, task, step=step, member=member)
    except UserError:
        raise
    except Exception as error:
        where = f"env.name={setup.config.env.name}: the demonstration of task {task.id}"
        raise UserError(f"{where} failed: {error!r:.300}") from error


def _check(config: ConfigDict, setup: Setup) -> None:
    sft = config.sft
    if setup.entry.make_demonstrator is None and sft.steps > 0:
        raise UserError(f"env.name={config.env.name} has no scripted demonstrations to clone")
    if sft.observation_weight < 0:
        raise UserError(f"sft.observation_weight must not be negative, got {sft.observation_weight}")
    if not 0.0 <= sft.line_share <= 1.0:
        raise UserError(f"sft.line_share must lie in [0, 1], got {sft.line_share}")
    if config.budget.announce == "none" and sft.line_share > 0:
        raise UserError("sft.line_share > 0 needs a budget line, but budget.announce=none: set sft.line_share=0")
    for name, least in (("steps", 0), ("demonstrations", 1)):
        if sft[name] < least:
            raise UserError(f"sft.{name} must be at least {least}, got {sft[name]}")


def _train(
    setup: Setup,
    optimizer: object,
    state: states.TrainState,
    saved: ckpt.Checkpoints,
    log: RunLog,
    interrupts: Interrupts,
) -> None:
    config = setup.config
    # Demonstrations are text that nobody sampled: the temperature of rollouts does not apply.
    step_fn = _compiled_step(dataclasses.replace(make_step_config(setup), temperature=1.0), optimizer)
    tasks = setup.tasks("train", config.env.train_tasks)
    environment = setup.entry.make_environment(config.env.options.to_dict())
    num_rows = batches.num_packed_rows(
        config.sft.demonstrations, config.rollout.max_context, config.optimizer.row_tokens, config.optimizer.micro_rows
    )
    weight = np.float32(config.sft.observation_weight)
    # Compiled before the clock starts, with an empty batch on a copy of the state.
    step_fn(jax.tree.map(jnp.copy, state), batches.empty_token_batch(num_rows, config.optimizer.row_tokens), weight)
    if int(state.step) < config.sft.steps:
        _check_room(setup, environment, tasks)
    log.start(step=int(state.step), total=config.sft.steps, devices=device_names(setup))
    while int(state.step) < config.sft.steps and interrupts.received is None:
        begun = time.perf_counter()
        number = int(state.step)
        order = np.random.default_rng([config.seed, DEMONSTRATION_STREAM, number])
        chosen = [tasks.task(int(index)) for index in order.integers(len(tasks), size=config.sft.demonstrations)]
        made = [_demonstration(setup, environment, task, number, i) for i, task in enumerate(chosen)]
        batch = _make_batch(config, made, num_rows)
        state, metrics = step_fn(state, batch, weight)
        metrics = {name: float(value) for name, value in jax.device_get(metrics).items()}
        metrics["sft/demonstration_success"] = float(np.mean([episode.success for episode in made]))
        metrics["sft/demonstration_context"] = float(np.mean([episode.end_reason == "context" for episode in made]))
        metrics["time/step"] = time.perf_counter() - begun
        log.write(int(state.step), metrics)
        if int(state.step) % config.checkpoint.every == 0:
            saved.save(state, {})
    environment.close()
    saved.save(state, {})


def _check_room(setup: Setup, environment: Environment, tasks: TaskSource) -> None:
    """`UserError` where not one of the first demonstrations has a turn; the first that has one ends the search."""
    count = min(len(tasks), _TRIED_FOR_ROOM)
    if any(_demonstration(setup, environment, tasks.task(index), 0, index).turns for index in range(count)):
        return
    rollout = setup.config.rollout
    raise UserError(
        f"of {count} demonstrations not one has room for a turn: its first observation and its reply, taken as at "
        f"least rollout.max_turn_tokens={rollout.max_turn_tokens}, exceed rollout.max_context={rollout.max_context}: "
        "raise that"
    )


@functools.lru_cache(maxsize=16)
def _compiled_step(config: steps.StepConfig, optimizer: object) -> Callable:
    shardings = states.state_shardings(config.model, optimizer, config.mesh)
    rows, everywhere = rules.batch_sharding(config.mesh), rules.replicated(config.mesh)
    return jax.jit(
        functools.partial(steps.sft_step, config, optimizer),
        in_shardings=(shardings, rows, everywhere),
        out_shardings=(shardings, everywhere),
        donate_argnums=0,
    )


def _make_batch(config: ConfigDict, made: list[Episode], num_rows: int) -> batches.TokenBatch:
    arrays = batches.episode_arrays(made, num_episodes=len(made), max_turns=config.rollout.max_turns)
    return batches.pack_episodes(made, arrays, row_tokens=config.optimizer.row_tokens, num_rows=num_rows)


def _turn(
    number: int,
    observed: tuple[int, ...],
    sampled: tuple[int, ...],
    reply: str,
    result: StepResult,
    anchor: str | None,
    enforced: int,
) -> Turn:
    return Turn(
        index=number,
        observation_ids=observed,
        sampled_ids=sampled,
        logprobs=(0.0,) * len(sampled),
        weight_version=0,
        text=reply,
        action=result.info.get("action"),
        valid=bool(result.info.get("valid", True)),
        error=result.info.get("error"),
        reward=0.0 if result.ended else float(result.reward),
        anchor=anchor,
        remaining=budgets.remaining_turns(enforced, number),
    )
