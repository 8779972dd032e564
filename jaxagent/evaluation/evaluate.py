"""`jaxagent evaluate`: a run's policy on the panel, told each budget with rollouts of its own."""

import dataclasses
import json
import pathlib
import time
from typing import Any

import jax
from ml_collections import ConfigDict

from jaxagent.budgets import percent_of
from jaxagent.envs import registry
from jaxagent.episodes import Episode, Task, write_episodes
from jaxagent.errors import UserError
from jaxagent.evaluation.line_sensitivity import line_sensitivity
from jaxagent.evaluation.panels import Panel, make_panel, no_line_specs, panel_specs, write_panel
from jaxagent.evaluation.summaries import mean_turns_used, policy_summary
from jaxagent.models import decoder
from jaxagent.rollout.engine import RolloutEngine, sorted_by_work
from jaxagent.rollout.setup import Setup, make_setup, sampler_params_fn
from jaxagent.sharding import rules
from jaxagent.training.checkpoints import load_params

PANEL_SEED = 0x9A9E1  # the panel's own noise, the same for every policy and every training seed


@dataclasses.dataclass(frozen=True)
class PanelResult:
    """A policy on the panel: figures per budget (`policy_summary`), what they rest on, and what they cost."""

    summary: dict[str, dict[str, float]]
    turns_used: dict[str, float]
    line_sensitivity: float | None
    panel: Panel
    episodes: list[Episode]
    cost: dict[str, float]


def run(config: ConfigDict, workdir: str | pathlib.Path, *, run_folder: str, name: str) -> dict[str, Any]:
    """Evaluates the best checkpoint (else the newest) of `run_folder`; writes `WORKDIR/eval/NAME/`.

    Returns what `summary.json` there holds.
    """
    folder = pathlib.Path(workdir) / "eval" / name
    if (folder / "summary.json").exists():
        raise UserError(f"{folder}: already holds an evaluation; choose another --name")
    setup = make_setup(config)
    _check_same_world(config, pathlib.Path(run_folder))
    engine = setup.make_engine()
    try:
        result = evaluate_run(setup, engine, run_folder)
    finally:
        engine.close()
    return write_result(setup, result, folder)


def _check_same_world(config: ConfigDict, run_folder: pathlib.Path) -> None:
    """Refuses to evaluate a run in another environment than it was trained in."""
    try:
        trained = json.loads((run_folder / "config.json").read_text())["env"]
        before = {"name": trained["name"], **trained["options"]}
    except (OSError, ValueError, KeyError, TypeError):
        return  # a checkpoint without its config: nothing to compare with
    now = {"name": config.env.name, **json.loads(json.dumps(config.env.options.to_dict()))}
    if before != now:
        raise UserError(
            f"{run_folder}: was trained in {before}, the config says {now}; evaluate it with its own config"
        )


def evaluate_run(setup: Setup, engine: RolloutEngine, run_folder: str | pathlib.Path) -> PanelResult:
    """Loads the weights of a run and rolls them out over the panel."""
    abstract = jax.eval_shape(lambda: decoder.init_params(setup.model, jax.random.key(0)))
    shardings = rules.param_shardings(setup.mesh, decoder.logical_axes(setup.model), abstract)
    params, record = load_params(run_folder, setup.model, shardings)
    engine.set_params(sampler_params_fn(setup.model, setup.mesh)(params), version=int(record["step"]))
    tasks = panel_tasks(setup)
    settings = setup.config.eval
    announced = setup.config.budget.announce != "none"
    begun = time.perf_counter()
    engine.take_stats()
    finished = list(engine.run_episodes(sorted_by_work(_specs(setup, tasks, announced))))
    seconds = time.perf_counter() - begun
    finished.sort(key=lambda episode: (episode.step, episode.group, episode.member))
    mode = "told" if announced else "blind"
    return PanelResult(
        summary=policy_summary(
            finished,
            tasks,
            k=settings.k,
            percents=settings.percents,
            feasible=feasible_shares(setup, tasks),
            seed=setup.config.seed,
            mode=mode,
        ),
        turns_used=mean_turns_used(finished, settings.percents, mode=mode),
        line_sensitivity=line_sensitivity(setup, params, finished, percent=min(settings.percents))
        if announced
        else None,
        panel=make_panel(setup.config.env.name, setup.config.env.options.to_dict(), tasks),
        episodes=finished,
        cost=engine.take_stats().metrics() | {"time/eval": seconds},
    )


def panel_tasks(setup: Setup) -> list[Task]:
    """The panel of a config: a fixed list, disjoint from training by content hash."""
    source = setup.tasks("panel", setup.config.eval.panel_tasks)
    return [source.task(index) for index in range(len(source))]


def feasible_shares(setup: Setup, tasks: list[Task]) -> dict[int, float]:
    """phi at each told percentage: what an ideal policy could solve at all."""
    return {
        percent: registry.feasible_share(setup.entry, tasks, [percent_of(task.max_turns, percent) for task in tasks])
        for percent in setup.config.eval.percents
    }


def write_result(setup: Setup, result: PanelResult, folder: pathlib.Path) -> dict[str, Any]:
    """Writes episodes, panel and summary; returns the summary."""
    settings = setup.config.eval
    folder.mkdir(parents=True, exist_ok=True)
    write_episodes(folder / "episodes.jsonl.gz", result.episodes)
    write_panel(folder / "panel.json", result.panel)
    summary = {
        "world": setup.config.env.name,
        "k": settings.k,
        "n": settings.panel_samples,
        "num_tasks": len(result.panel.task_ids),
        "panel_hash": result.panel.content_hash,
        "seed": setup.config.seed,
        "budgets": result.summary,
        "turns_used_over_told": result.turns_used,
        "line_sensitivity": result.line_sensitivity,
        "cost": result.cost,
    }
    partial = folder / "summary.json.partial"  # the summary says that the evaluation is complete: it appears whole
    partial.write_text(json.dumps(summary, indent=1, allow_nan=False) + "\n")
    partial.replace(folder / "summary.json")
    return summary


def _specs(setup: Setup, tasks: list[Task], announced: bool):
    settings = setup.config.eval
    if not announced:
        return no_line_specs(tasks, samples=settings.panel_samples, run_seed=PANEL_SEED, k=settings.k)
    percents = sorted({*settings.percents, 100})
    return panel_specs(tasks, told_percents=percents, samples=settings.panel_samples, run_seed=PANEL_SEED, k=settings.k)
