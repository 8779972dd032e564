"""The training loop: rollouts, arrays, one jitted update, the log; checkpoints and looks at held-out tasks in between.

    specs -> engine -> episodes -> arrays + packed tokens -> advantages -> train_step -> metrics, checkpoint, held-out
    look

All randomness is keyed by the run's seed and the update's number, so a resumed run needs the training state alone.
"""

import dataclasses
import functools
import pathlib
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from jaxagent import batches, episodes
from jaxagent.episodes import Episode, EpisodeSpec
from jaxagent.errors import UserError
from jaxagent.models.weights.load import load_params
from jaxagent.models.weights.sources import SafetensorsFolder
from jaxagent.rollout.engine import RolloutEngine
from jaxagent.rollout.setup import Setup, make_setup, sampler_params_fn
from jaxagent.rollout.specs import draw_budget, group_specs, told_specs
from jaxagent.sharding import rules
from jaxagent.training import checkpoints as ckpt
from jaxagent.training import policy_step, prepare, redraws, rows
from jaxagent.training import state as states
from jaxagent.training import step as steps
from jaxagent.training.episode_metrics import episode_metrics, kept_metrics, part_success
from jaxagent.training.interrupts import Interrupts
from jaxagent.training.options import algorithm_options, budget_sampler
from jaxagent.training.policy_step import PolicyConfig
from jaxagent.training.throughput import CompileCounter, matmul_peak_flops, peak_memory_bytes, train_flops_per_token

HELD_OUT_SEED = 0x4E1D  # added to the run's seed: held-out looks draw their own noise, the same at every look


@dataclasses.dataclass(frozen=True)
class Update:
    """The compiled pieces of one update and the static layout of its batch."""

    train_step: Callable
    score_batch: Callable | None
    prepare: Callable
    num_episodes: int
    num_rows: int


class RunLog(Protocol):
    """Where metrics go: files, a progress line, nothing. `reporting.run_log` has the usual one."""

    def start(self, *, step: int, total: int, devices: Sequence[str]) -> None:
        """The run begins (or goes on) after update `step` of `total`: whatever was logged beyond it is dropped."""
        ...

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Metrics of the update that made `step` updates complete."""
        ...


def run(config: ConfigDict, workdir: str | pathlib.Path, *, resume: bool, log: RunLog) -> None:
    """Trains as `config` says, with checkpoints in `workdir`; `resume` goes on from the newest one.

    Raises:
      UserError: bad settings, a folder that holds another run, an initial checkpoint that does not fit.
      SystemExit: after Ctrl-C or SIGTERM, once the state is saved.
    """
    setup = make_setup(config)
    options = algorithm_options(config)
    parse_trajectories(config.logging.trajectories)
    workdir = pathlib.Path(workdir)
    optimizer = states.make_optimizer(states.optimizer_settings(config.optimizer))
    setup.keep_description(workdir)
    saved = ckpt.Checkpoints(workdir, setup.trained_model, kind="train", keep=config.checkpoint.keep)
    state, record = initial_state(setup, optimizer, saved, resume=resume, extras=options.extras)
    engine = setup.make_engine()
    compiles = CompileCounter()
    try:
        with Interrupts() as interrupts:
            trainer = Trainer(setup, optimizer, engine, saved, log, workdir, compiles, record)
            trainer.train(state, interrupts)
    finally:
        engine.close()
        saved.close()
        compiles.close()
    if interrupts.received is not None:
        print(interrupted_message(workdir), flush=True)
        raise SystemExit(interrupts.exit_status)


def interrupted_message(workdir: str | pathlib.Path) -> str:
    """What an interrupted run says last."""
    return f"interrupted: everything is saved in {workdir}; the same command goes on (train and sft with --resume)"


def device_names(setup: Setup) -> list[str]:
    """The mesh's devices in words, for the run folder."""
    return [f"{device.device_kind} {device.id}" for device in setup.mesh.devices.flat]


def parse_trajectories(value: str) -> int | None:
    """Episodes to write per update: None for all, 0 for none, K for `sample:K`."""
    if value in ("all", "none"):
        return None if value == "all" else 0
    kind, _, count = value.partition(":")
    if kind == "sample" and count.isdigit() and int(count) > 0:
        return int(count)
    raise UserError(f"logging.trajectories must be all, none or sample:K, got {value!r}")


def initial_state(
    setup: Setup,
    optimizer: object,
    saved: ckpt.Checkpoints,
    *,
    resume: bool,
    extras: states.StateExtras = states.POLICY_ALONE,
) -> tuple[states.TrainState, dict]:
    """The state to start from, placed on the mesh: the newest checkpoint, else `model.init_from`, else
    `model.pretrained`, else random weights."""
    if resume and saved.latest_step() is not None:
        state, record = saved.restore(_abstract_state(setup, optimizer, extras))
        saved.drop_best_after(int(state.step))
        return state, record
    params = initial_params(setup)
    if params is None:
        return fresh_state(setup, optimizer, extras), {}
    settings = {"seed": setup.config.seed, "extras": extras}
    create = functools.partial(states.from_params, setup.trained_model, optimizer, **settings)
    shardings = states.state_shardings(setup.trained_model, optimizer, setup.mesh, extras)
    return jax.jit(create, out_shardings=shardings, donate_argnums=0)(params), {}


def initial_params(setup: Setup) -> dict | None:
    """The weights of `model.init_from`, else of `model.pretrained`, placed on the mesh; None for random ones."""
    shardings = states.policy_shardings(setup.model, setup.mesh)
    if setup.config.model.init_from:
        return ckpt.load_params(setup.config.model.init_from, setup.model, shardings)[0]
    if setup.pretrained:
        return load_params(SafetensorsFolder(setup.pretrained), setup.model, shardings)
    return None


def fresh_state(setup: Setup, optimizer: object, extras: states.StateExtras = states.POLICY_ALONE) -> states.TrainState:
    """Random weights from the run's seed, placed on the mesh; no two leaves share a buffer."""
    create = functools.partial(states.init_state, setup.trained_model, optimizer, setup.config.seed, extras)
    return jax.jit(create, out_shardings=states.state_shardings(setup.trained_model, optimizer, setup.mesh, extras))()


def _abstract_state(setup: Setup, optimizer: object, extras: states.StateExtras) -> states.TrainState:
    create = functools.partial(states.init_state, setup.trained_model, optimizer, setup.config.seed, extras)
    shapes = jax.eval_shape(create)
    shardings = states.state_shardings(setup.trained_model, optimizer, setup.mesh, extras)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, shardings
    )


def make_update(setup: Setup, optimizer: object) -> Update:
    """Compiles nothing yet: the jitted functions and the batch's static layout."""
    config = setup.config
    num_episodes = config.algorithm.groups * config.algorithm.group_size
    policy = PolicyConfig(step=make_step_config(setup), options=algorithm_options(config), optimizer=optimizer)
    return Update(**_compiled(policy), num_episodes=num_episodes, num_rows=rows.num_rows(config, num_episodes))


@functools.lru_cache(maxsize=16)
def _compiled(config: PolicyConfig) -> dict[str, Callable | None]:
    """The jitted functions of an `Update`; runs of equal shape in one process share them."""
    step = config.step
    shardings = states.state_shardings(step.model, config.optimizer, step.mesh, config.options.extras)
    placed, everywhere = rules.batch_sharding(step.mesh), rules.replicated(step.mesh)
    train_step = jax.jit(
        functools.partial(policy_step.train_step, config),
        in_shardings=(shardings, placed),
        out_shardings=(shardings, everywhere),
        donate_argnums=0,
    )
    score_batch = jax.jit(
        functools.partial(prepare.score_batch, config), in_shardings=(shardings, placed), out_shardings=placed
    )
    return {
        "train_step": train_step,
        "score_batch": score_batch if prepare.needs_scores(config.options) else None,
        "prepare": jax.jit(functools.partial(prepare.prepare_batch, config.options), out_shardings=placed),
    }


def make_step_config(setup: Setup) -> steps.StepConfig:
    """The static settings of the training step."""
    config = setup.config
    return steps.StepConfig(
        model=setup.trained_model,
        micro_rows=config.optimizer.micro_rows,
        logprob_chunk=config.optimizer.logprob_chunk,
        temperature=config.rollout.temperature,
        mesh=setup.mesh,
    )


def make_batch(
    config: ConfigDict, update: Update, finished: Sequence[Episode], *, replay: Sequence[int] | None = None
) -> tuple[batches.EpisodeArrays, batches.TokenBatch]:
    """Host arrays of one update's episodes, rows in (group, member) order."""
    return rows.make_batch(config, finished, num_episodes=update.num_episodes, replay=replay)


def apply_update(
    update: Update,
    state: states.TrainState,
    arrays: batches.EpisodeArrays,
    packed: batches.TokenBatch,
) -> tuple[states.TrainState, dict[str, float]]:
    """All epochs over one batch; `state` is donated. Behaviour and old log-probs and values stay fixed throughout."""
    scores = update.score_batch(state, packed) if update.score_batch else None
    state, metrics = update.train_step(state, update.prepare(arrays, packed, scores))
    return state, scalar_metrics(jax.device_get(metrics))


def scalar_metrics(metrics: dict[str, np.ndarray]) -> dict[str, float]:
    """Numbers for the log: `NAME_by_tenth` becomes `NAME_tenth_j`, without the tenths that held nothing."""
    found = {}
    for name, value in metrics.items():
        if np.ndim(value) == 0:
            found[name] = float(value)
            continue
        short = name.removesuffix("_by_tenth")
        found |= {f"{short}_tenth_{j}": float(x) for j, x in enumerate(value, start=1) if np.isfinite(x)}
    return found


class Trainer:
    """One run in progress: the compiled update, the engine, and the files of the run folder."""

    def __init__(
        self,
        setup: Setup,
        optimizer: object,
        engine: RolloutEngine,
        saved: ckpt.Checkpoints,
        log: RunLog,
        workdir: pathlib.Path,
        compiles: CompileCounter,
        record: dict,
    ) -> None:
        self._setup = setup
        self._config = setup.config
        self._engine = engine
        self._saved = saved
        self._log = log
        self._workdir = workdir
        self._compiles = compiles
        self._best_score = record.get("best_score")
        self._update = make_update(setup, optimizer)
        self._to_sampler = sampler_params_fn(setup.trained_model, setup.mesh)
        self._budgets = budget_sampler(self._config)
        self._budget_keys: dict[int, str] = {}  # group number -> the task id that keys its budget, this update
        self._train_tasks = setup.tasks("train", self._config.env.train_tasks)
        look = self._config.eval
        self._held_out = setup.tasks("held_out", look.tasks) if look.every else None

    def train(self, state: states.TrainState, interrupts: Interrupts) -> None:
        """Updates until `algorithm.steps` are done or a signal came; the last state is always saved."""
        total = self._config.algorithm.steps
        self._warm_up(state)
        self._compiles.count = 0
        self._log.start(step=int(state.step), total=total, devices=device_names(self._setup))
        while int(state.step) < total and interrupts.received is None:
            state, metrics = self._one_update(state)
            self._log.write(int(state.step), metrics)
            if int(state.step) % self._config.checkpoint.every == 0:
                self._save(state)
        self._save(state)

    def _one_update(self, state: states.TrainState) -> tuple[states.TrainState, dict[str, float]]:
        begun = time.perf_counter()
        number = int(state.step)
        self._set_weights(state)
        collected = self._collect(number)
        finished = batches.sort_episodes(collected.episodes)
        rolled_out = time.perf_counter()
        if all(episode.is_void for episode in finished):
            raise UserError(
                f"update {number}: the infrastructure voided every episode; the last said: {finished[-1].detail}"
            )
        arrays, packed = make_batch(self._config, self._update, finished, replay=self._replayed(number, finished))
        state, metrics = apply_update(self._update, state, arrays, packed)
        updated = time.perf_counter()
        metrics |= episode_metrics(finished, arrays, rows.in_statistics(self._config, arrays, finished))
        singletons, count = metrics["groups/singletons"], metrics["groups/count"]
        if singletons and singletons == count and self._config.algorithm.name != "ppo":
            warnings.warn("every group holds one episode: all advantages are 0, nothing is learned", stacklevel=2)
        metrics |= kept_metrics(finished, arrays, packed) | collected.metrics()
        metrics |= self._engine.take_stats().metrics()
        self._write_trajectories(number, finished)
        if self._held_out and int(state.step) % self._config.eval.every == 0:
            metrics |= self._look(state)
        looked = time.perf_counter()
        metrics |= {
            "time/rollout": rolled_out - begun,
            "time/update": updated - rolled_out,
            "time/eval": looked - updated,
        }
        return state, metrics | self._cost(metrics, packed, looked - begun)

    def _collect(self, number: int) -> redraws.Collected:
        """All episodes of an update; with `algorithm.zero_variance=redraw` flat groups are drawn again."""
        algorithm = self._config.algorithm
        first = self._tasks(number, 0)

        def run(redraw: int, slots: Sequence[int]) -> list[Episode]:
            specs = self._specs(number, first, redraw, slots)
            return list(self._engine.run_episodes(specs))

        def flat_slots(finished: list[Episode]) -> list[int]:
            replay = self._replayed(number, finished)
            arrays = rows.make_arrays(self._config, finished, num_episodes=len(finished), replay=replay)
            flat = rows.flat_rows(self._config, arrays)
            slots = [redraws.slot_of(episode, algorithm.groups) for episode in finished]
            return sorted({slot for slot, is_flat in zip(slots, flat, strict=True) if is_flat})

        rounds = algorithm.max_redraws if algorithm.zero_variance == "redraw" else 0
        return redraws.collect(run, flat_slots, groups=algorithm.groups, max_redraws=rounds)

    def _tasks(self, number: int, redraw: int) -> list[episodes.Task]:
        """The tasks of all slots in a round of redraws; round 0 holds the first."""
        size = {"num_tasks": len(self._train_tasks), "groups": self._config.algorithm.groups}
        if redraw:
            indices = redraws.redraw_indices(self._config.seed, number, redraw, **size)
        else:
            indices = redraws.first_indices(self._config.seed, number, **size)
        tasks = [self._train_tasks.task(int(index)) for index in indices]
        self._check_turns(tasks)
        return tasks

    def _specs(self, number: int, first: list[episodes.Task], redraw: int, slots: Sequence[int]) -> list[EpisodeSpec]:
        """The specs of some slots in a round of redraws; budgets are keyed by the slots' first tasks."""
        algorithm = self._config.algorithm
        tasks = self._tasks(number, redraw) if redraw else first
        groups = [redraws.group_number(slot, redraw, algorithm.groups) for slot in slots]
        keys = [first[slot].id for slot in slots]
        self._budget_keys |= dict(zip(groups, keys, strict=True))
        return group_specs(
            self._config,
            [tasks[slot] for slot in slots],
            step=number,
            group_size=algorithm.group_size,
            sampler=self._budgets,
            groups=groups,
            keys=keys,
        )

    def _check_turns(self, tasks: list[episodes.Task]) -> None:
        for task in tasks:
            if task.max_turns > self._config.rollout.max_turns:
                raise UserError(
                    f"task {task.id} has {task.max_turns} turns, rollout.max_turns is {self._config.rollout.max_turns}"
                )

    def _replayed(self, number: int, finished: list[Episode]) -> list[int] | None:
        """The drawn budgets of full-length, untold episodes, where `algorithm.replay_budgets` asks for them."""
        if not self._config.algorithm.replay_budgets:
            return None
        return [
            draw_budget(self._config, e.max_budget, self._budget_keys[e.group], step=number, sampler=self._budgets)[0]
            for e in finished
        ]

    def _set_weights(self, state: states.TrainState) -> None:
        self._engine.set_params(self._to_sampler(states.policy_params(state)), version=int(state.step))

    def _look(self, state: states.TrainState) -> dict[str, float]:
        """Pass@1 on held-out tasks at each told budget; keeps the checkpoint with the best mean."""
        look = self._config.eval
        self._set_weights(state)
        tasks = [self._held_out.task(index) for index in range(min(look.tasks, len(self._held_out)))]
        metrics, by_part = {}, {}
        for percent in look.percents:
            specs = told_specs(
                tasks,
                percent=percent,
                samples=look.samples,
                run_seed=self._config.seed + HELD_OUT_SEED,
                announced=self._config.budget.announce != "none",
            )
            finished = [episode for episode in self._engine.run_episodes(specs) if not episode.is_void]
            metrics[f"eval/pass_at_1_{percent}"] = float(np.mean([e.success for e in finished])) if finished else 0.0
            by_part |= part_success(finished, f"eval_pass_at_1_{percent}")
        self._engine.take_stats()
        score = float(np.mean(list(metrics.values())))
        metrics |= by_part | {"eval/pass_at_1": score}
        if self._best_score is None or score > self._best_score:
            self._best_score = score
            self._saved.save_best(state, {"best_score": score})
        return metrics

    def _write_trajectories(self, number: int, finished: list[Episode]) -> None:
        count = parse_trajectories(self._config.logging.trajectories)
        if count != 0:
            path = self._workdir / "trajectories" / f"step_{number}.jsonl.gz"
            episodes.write_episodes(path, finished[:count])

    def _cost(self, metrics: dict[str, float], packed: batches.TokenBatch, seconds: float) -> dict[str, float]:
        tokens = int(np.sum(packed.segment_ids != 0))
        trained = tokens * self._config.algorithm.epochs
        segments = int(np.max(packed.segment_ids, axis=1).sum())
        flops = trained * train_flops_per_token(self._setup.model, tokens / max(segments, 1))
        devices = self._setup.mesh.size
        return {
            "time/step": seconds,
            "cost/compilations": float(self._compiles.count),
            "cost/peak_memory_gb": peak_memory_bytes() / 1e9,
            "cost/train_tokens_per_second": trained / max(metrics["time/update"], 1e-9),
            "cost/row_fill": tokens / packed.tokens.size,
            "cost/train_flops_share_of_peak": flops
            / max(metrics["time/update"], 1e-9)
            / (matmul_peak_flops() * devices),
        }

    def _warm_up(self, state: states.TrainState) -> None:
        """Compiles everything that a run needs, with an empty batch on a copy of the state."""
        matmul_peak_flops()
        self._set_weights(state)
        self._engine.warm_up()
        arrays, packed = make_batch(self._config, self._update, [])
        apply_update(self._update, jax.tree.map(jnp.copy, state), arrays, packed)

    def _save(self, state: states.TrainState) -> None:
        self._saved.save(state, {"best_score": self._best_score})
