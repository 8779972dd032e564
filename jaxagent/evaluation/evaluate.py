"""`jaxagent evaluate`: a run's policy on the panel, told each budget with rollouts of its own.

Writes episodes, the panel, the figures by budget (`summary.json`), the Pass@(K,T) surface (`surface.json`) and, with
`eval.analysis`, step quality, recovery and the comparison with `eval.reference_run` (`analysis.json`).
"""

import dataclasses
import json
import pathlib
import time
from typing import Any

from ml_collections import ConfigDict

from jaxagent.budgets import percent_of
from jaxagent.envs import registry
from jaxagent.episodes import Episode, Task, write_episodes
from jaxagent.errors import UserError
from jaxagent.evaluation.analysis import analyse, load_policy, no_line_episodes, surface
from jaxagent.evaluation.line_sensitivity import line_sensitivity
from jaxagent.evaluation.panels import Panel, make_panel, no_line_specs, panel_specs, write_panel
from jaxagent.evaluation.summaries import mean_turns_used, policy_summary
from jaxagent.rollout.engine import RolloutEngine, sorted_by_work
from jaxagent.rollout.setup import Setup, make_setup, sampler_params_fn

PANEL_SEED = 0x9A9E1  # the panel's own noise, the same for every policy and every training seed


@dataclasses.dataclass(frozen=True)
class PanelResult:
    """A policy on the panel: figures per budget (`policy_summary`), what they rest on, and what they cost.

    `surface` and `analysis` are what `jaxagent.evaluation.analysis` makes of it; the latter is None unless
    `eval.analysis` is set.
    """

    summary: dict[str, dict[str, float]]
    turns_used: dict[str, float]
    line_sensitivity: float | None
    surface: dict[str, Any]
    analysis: dict[str, Any] | None
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
    policy, step = load_policy(setup, run_folder)
    engine.set_params(sampler_params_fn(setup.model, setup.mesh)(policy.params), version=step)
    tasks = panel_tasks(setup)
    settings = setup.config.eval
    announced = setup.config.budget.announce != "none"
    begun = time.perf_counter()
    engine.take_stats()
    finished = list(engine.run_episodes(sorted_by_work(_specs(setup, tasks, announced))))
    seconds = time.perf_counter() - begun
    finished.sort(key=lambda episode: (episode.step, episode.group, episode.member))
    mode = "told" if announced else "blind"
    cost = engine.take_stats().metrics() | {"time/eval": seconds}
    begun = time.perf_counter()
    untold = no_line_episodes(setup, policy, tasks, PANEL_SEED) if settings.analysis and announced else []
    analysis = analyse(setup, policy, finished, tasks, mode=mode) if settings.analysis else None
    if settings.analysis:
        cost["time/analysis"] = time.perf_counter() - begun
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
        line_sensitivity=line_sensitivity(setup, policy.params, finished, percent=min(settings.percents))
        if announced
        else None,
        surface=surface(
            finished,
            k=settings.k,
            percents=settings.percents,
            mode=mode,
            seed=setup.config.seed,
            untold=untold,
        ),
        analysis=analysis,
        panel=make_panel(setup.config.env.name, setup.config.env.options.to_dict(), tasks),
        episodes=finished,
        cost=cost,
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
    """Writes episodes, panel, `surface.json`, `summary.json` and, where it was asked for, `analysis.json`.

    Returns the summary.
    """
    settings = setup.config.eval
    folder.mkdir(parents=True, exist_ok=True)
    write_episodes(folder / "episodes.jsonl.gz", result.episodes)
    write_panel(folder / "panel.json", result.panel)
    _write_json(folder / "surface.json", result.surface)
    if result.analysis is not None:
        _write_json(folder / "analysis.json", result.analysis)
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
    _write_json(folder / "summary.json", summary)
    return summary


def _write_json(path: pathlib.Path, value: dict[str, Any]) -> None:
    """Whole or not at all: `summary.json` also says that an evaluation is complete."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)


def _specs(setup: Setup, tasks: list[Task], announced: bool):
    settings = setup.config.eval
    if not announced:
        return no_line_specs(tasks, samples=settings.panel_samples, run_seed=PANEL_SEED, k=settings.k)
    percents = sorted({*settings.percents, 100})
    return panel_specs(tasks, told_percents=percents, samples=settings.panel_samples, run_seed=PANEL_SEED, k=settings.k)
