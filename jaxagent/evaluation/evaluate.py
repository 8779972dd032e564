"""`jaxagent evaluate`: a run's policy on the panel, told each budget with rollouts of its own.

Writes episodes, the panel, the figures by budget (`summary.json`), the Pass@(K,T) surface (`surface.json`) and, with
`eval.analysis`, step quality, recovery and the comparison with `eval.reference_run` (`analysis.json`). An evaluation
that was interrupted keeps its finished rollouts in `unfinished/`; the same command goes on from them.
"""

import dataclasses
import json
import pathlib
import shutil
import time
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from jaxagent.budgets import percent_of
from jaxagent.config_files import config_fields
from jaxagent.envs import registry
from jaxagent.episodes import Episode, EpisodeSpec, Task, write_episodes
from jaxagent.errors import UserError
from jaxagent.evaluation.analysis import analyse, no_line_episodes
from jaxagent.evaluation.likelihood import ModelPolicy
from jaxagent.evaluation.line_sensitivity import line_sensitivity
from jaxagent.evaluation.panels import (
    Panel,
    check_no_overlap,
    check_panel,
    make_panel,
    no_line_specs,
    panel_specs,
    read_panel,
    write_panel,
)
from jaxagent.evaluation.pass_at import Mode
from jaxagent.evaluation.pieces import Pieces
from jaxagent.evaluation.rollouts import Rollouts, load_policy, weights_hash
from jaxagent.evaluation.summaries import mean_turns_used, policy_summary
from jaxagent.evaluation.surface import FULL, surface
from jaxagent.files import write_whole
from jaxagent.rollout.engine import RolloutEngine, sorted_by_work
from jaxagent.rollout.setup import Setup, make_setup, sampler_params_fn

PANEL_SEED = 0x9A9E1  # the panel's own noise, the same for every policy and every training seed
UNFINISHED = "unfinished"
LISTED_TASKS = 50_000  # training sources up to this length are compared with the panel task by task


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
    _check_analysis(config)
    setup = make_setup(config)
    for trained in filter(None, (run_folder, config.eval.reference_run)):
        _check_same_world(config, pathlib.Path(trained))
    engine = setup.make_engine()
    try:
        result = evaluate_run(setup, engine, run_folder, folder)
    finally:
        engine.close()
    return write_result(setup, result, folder)


def _check_analysis(config: ConfigDict) -> None:
    """What the analysis would refuse only after the panel was rolled out, or ignore."""
    settings = config.eval
    if settings.reference_run and not settings.analysis:
        raise UserError("eval.reference_run is read by the analysis alone; set eval.analysis=True, or leave it empty")
    if not settings.analysis:
        return
    for name in ("analysis_samples", "analysis_states", "recovery_horizon"):
        if settings[name] < 1:
            raise UserError(f"eval.{name} must be at least 1, got {settings[name]}")
    if settings.analysis_samples > settings.panel_samples:
        raise UserError(
            f"eval.analysis_samples={settings.analysis_samples} exceeds eval.panel_samples={settings.panel_samples}: "
            "the analysis takes its episodes from the panel's"
        )


def _check_same_world(config: ConfigDict, run_folder: pathlib.Path) -> None:
    """Refuses to evaluate a run in another environment than it was trained in."""
    try:
        trained = json.loads((run_folder / "config.json").read_text())["env"]
        before = {"name": trained["name"], **trained["options"]}
    except (OSError, ValueError, KeyError, TypeError):
        return  # a checkpoint without its config: nothing to compare with
    now = {"name": config.env.name, **_plain(config.env.options.to_dict())}
    if before != now:
        raise UserError(
            f"{run_folder}: was trained in {before}, the config says {now}; evaluate it with its own config"
        )


def evaluate_run(
    setup: Setup, engine: RolloutEngine, run_folder: str | pathlib.Path, folder: str | pathlib.Path | None = None
) -> PanelResult:
    """Loads the weights of a run, rolls them out over the panel and estimates.

    Args:
      setup: of the evaluation.
      engine: for the panel's rollouts; it takes the run's weights.
      run_folder: the run to evaluate.
      folder: where the evaluation will be written; finished rollouts are kept there, and used, until it is complete.
    """
    config, settings = setup.config, setup.config.eval
    policy, step = load_policy(setup, run_folder)
    reference = load_policy(setup, settings.reference_run) if settings.analysis and settings.reference_run else None
    panel, tasks = make_run_panel(setup)
    pieces = None
    if folder is not None:
        pieces = Pieces(pathlib.Path(folder) / UNFINISHED, _settings(setup, panel, policy, reference))
    rollouts = Rollouts(setup, pieces)
    engine.set_params(sampler_params_fn(setup.model, setup.mesh)(policy.params), version=step)
    announced = config.budget.announce != "none"
    mode = "told" if announced else "blind"
    begun = time.perf_counter()
    engine.take_stats()
    episodes = _panel_episodes(setup, engine, pieces, tasks, announced)
    cost = engine.take_stats().metrics() | {"time/eval": time.perf_counter() - begun}
    begun = time.perf_counter()
    untold = no_line_episodes(setup, rollouts, policy, tasks, PANEL_SEED) if settings.analysis and announced else []
    estimates = _estimates(setup, policy, tasks, episodes, untold, mode)
    analysis = analyse(setup, rollouts, policy, reference, episodes, tasks, mode=mode) if settings.analysis else None
    if settings.analysis:
        cost["time/analysis"] = time.perf_counter() - begun
    if pieces is not None and pieces.kept:
        cost["rollout/kept_episodes"] = pieces.kept
    return PanelResult(**estimates, analysis=analysis, panel=panel, episodes=episodes, cost=cost)


def make_run_panel(setup: Setup) -> tuple[Panel, list[Task]]:
    """The panel of a config: a fixed list of tasks, disjoint from training, that of the file `eval.panel` if it is set.

    Raises:
      UserError: a panel file that is of another environment, or whose tasks these options do not make; a task that
        may have been trained on.
    """
    config = setup.config
    options = _plain(config.env.options.to_dict())
    size, given = config.eval.panel_tasks, None
    if config.eval.panel:
        given = read_panel(config.eval.panel)
        if (given.env, _plain(dict(given.options))) != (config.env.name, options):
            raise UserError(
                f"eval.panel={config.eval.panel}: is of {given.env} with {dict(given.options)}, the config says "
                f"{config.env.name} with {options}"
            )
        size = len(given.task_ids)
    source = setup.tasks("panel", size)
    tasks = [source.task(index) for index in range(len(source))]
    panel = make_panel(config.env.name, options, tasks)
    if given is not None:
        check_panel(given, tasks)
    training = setup.tasks("train", config.env.train_tasks)
    if len(training) <= LISTED_TASKS:  # a longer source draws its tasks, and refuses those of other splits by their ids
        check_no_overlap(panel, (training.task(index).id for index in range(len(training))))
    return panel, tasks


def _panel_episodes(
    setup: Setup, engine: RolloutEngine, pieces: Pieces | None, tasks: list[Task], announced: bool
) -> list[Episode]:
    """The panel's rollouts, one piece a told budget, the longest first."""

    def run(specs: Sequence[EpisodeSpec]) -> list[Episode]:
        return list(engine.run_episodes(sorted_by_work(specs)))

    episodes: list[Episode] = []
    for name, specs in _orders(setup, tasks, announced).items():
        episodes += run(specs) if pieces is None else pieces.episodes(name, specs, run)
    return sorted(episodes, key=lambda episode: (episode.step, episode.group, episode.member))


def _estimates(
    setup: Setup, policy: ModelPolicy, tasks: list[Task], episodes: list[Episode], untold: list[Episode], mode: Mode
) -> dict[str, Any]:
    """What the episodes say, as fields of `PanelResult`."""
    settings, seed = setup.config.eval, setup.config.seed
    shared = {"k": settings.k, "percents": settings.percents, "seed": seed, "mode": mode}
    feasible = feasible_tasks(setup, tasks)
    shares = {percent: len(solvable) / len(tasks) for percent, solvable in feasible.items()}
    sensitivity = None
    if mode == "told":
        sensitivity = line_sensitivity(setup, policy.params, episodes, percent=min(settings.percents))
    return {
        "summary": policy_summary(episodes, tasks, feasible=shares, **shared),
        "turns_used": mean_turns_used(episodes, settings.percents, mode=mode),
        "line_sensitivity": sensitivity,
        "surface": surface(episodes, untold=untold, feasible=feasible, **shared),
    }


def _settings(
    setup: Setup, panel: Panel, policy: ModelPolicy, reference: tuple[ModelPolicy, int] | None
) -> dict[str, Any]:
    """All that an order's episode depends on, as flat plain values."""
    sections = ConfigDict({name: setup.config[name] for name in ("env", "budget", "model", "rollout")})
    return {
        **dict(config_fields(sections)),
        "panel": panel.content_hash,
        "weights": weights_hash(policy),
        "reference weights": weights_hash(reference[0]) if reference else None,
    }


def feasible_tasks(setup: Setup, tasks: list[Task]) -> dict[int, list[str]]:
    """The tasks that an ideal policy could solve at all, at each told percentage."""
    return {
        percent: [
            task.id
            for task in tasks
            if registry.feasible_share(setup.entry, [task], [percent_of(task.max_turns, percent)])
        ]
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
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    return summary


def _write_json(path: pathlib.Path, value: dict[str, Any]) -> None:
    """Whole or not at all: `summary.json` also says that an evaluation is complete."""
    write_whole(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def _orders(setup: Setup, tasks: list[Task], announced: bool) -> dict[str, list[EpisodeSpec]]:
    """The panel's orders by piece."""
    settings = setup.config.eval
    shared = {"samples": settings.panel_samples, "run_seed": PANEL_SEED, "k": settings.k}
    if not announced:
        return {"no_line": no_line_specs(tasks, **shared)}
    percents = sorted({*settings.percents, FULL}, reverse=True)
    return {f"told_{percent}": panel_specs(tasks, told_percents=[percent], **shared) for percent in percents}


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives them back: tuples as lists."""
    return json.loads(json.dumps(options))
