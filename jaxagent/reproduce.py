"""`jaxagent reproduce`: a whole comparison from configs: base policy, training arms, evaluation, figure and table.

    for each world and seed:  sft -> base;  train each arm from base;  evaluate all on one panel -> summary.json
    for each world:           contrasts of the arms over all seeds, with intervals

Safe to repeat: runs that are complete are kept, one that was interrupted goes on.
"""

import dataclasses
import itertools
import json
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from jaxagent.config_files import apply_overrides, load_config
from jaxagent.episodes import Episode, read_episodes
from jaxagent.errors import UserError
from jaxagent.evaluation import evaluate
from jaxagent.evaluation.pass_at import PassGrid, pass_at_k_percent
from jaxagent.evaluation.summaries import paired_contrast
from jaxagent.reporting.plots import plot_pass_at_kt
from jaxagent.reporting.run_folder import write_json
from jaxagent.reporting.run_log import RunLog
from jaxagent.reporting.tables import summary_table
from jaxagent.reporting.workdir import prepare_workdir
from jaxagent.rollout.setup import make_setup
from jaxagent.training import loop, sft
from jaxagent.training.options import check_algorithm

BASE = "base"
EVALUATION = "panel"
# The base policy must leave room above and below, else a comparison of budgets says nothing (see the README).
GATES = (
    ("base Pass@1 at 100 % within [0.15, 0.5]", lambda base: 0.15 <= base["100"]["pass_at_1"] <= 0.5),
    ("base Pass@K at 100 % at most 0.9", lambda base: base["100"]["pass_at_k"] <= 0.9),
    ("feasible share at 25 % at least 0.3", lambda base: base["25"]["feasible"] >= 0.3),
    ("base Pass@K at 25 % at least 0.02", lambda base: base["25"]["pass_at_k"] >= 0.02),
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One world and seed: its folder, and what each policy did on the panel."""

    folder: pathlib.Path
    seed: int
    results: dict[str, dict[str, Any]]  # policy -> eval summary.json


def run(
    worlds: Sequence[str],
    arms: Sequence[str],
    seeds: Sequence[int],
    workdir: str | pathlib.Path,
    *,
    overrides: Sequence[str],
) -> None:
    """Runs the comparison and prints its tables.

    Args:
      worlds: experiments by name or path.
      arms: variants of each; `base` is always made, the others start from it.
      seeds: training seeds.
      workdir: gets `WORLD/seed_S/POLICY` run folders, `WORLD/summary.json`, `WORLD/contrasts.json`, the figure, and
        `summary.json` of the first world and seed.
      overrides: `field=value` settings for every config.
    """
    workdir = pathlib.Path(workdir)
    begun = time.perf_counter()
    arms = [BASE, *(arm for arm in arms if arm != BASE)]
    folders = {world: workdir / pathlib.Path(world).stem for world in worlds}
    for world, arm in itertools.product(worlds, arms):  # a mistake in the last arm shows before the first is trained
        config = _load(world, arm, seeds[0], folders[world], overrides)
        make_setup(config)
        check_algorithm(config)
    summaries = []
    for world, folder in folders.items():
        comparisons = [_compare(world, arms, seed, folder / f"seed_{seed}", overrides) for seed in seeds]
        summaries += _report_world(arms, comparisons, folder)
    figure = plot_pass_at_kt(summaries, workdir / "pass_at_kt.png")
    first = write_json(workdir / "summary.json", summaries[0])
    print(f"\n{(time.perf_counter() - begun) / 60:.1f} minutes in all")
    print(f"figure    {figure}\nsummary   {first}")
    print(f"episodes  {workdir}/*/seed_*/*/eval/{EVALUATION}/episodes.jsonl.gz")


def _compare(world: str, arms: Sequence[str], seed: int, folder: pathlib.Path, overrides: Sequence[str]) -> Comparison:
    results = {}
    for arm in arms:
        config = _load(world, arm, seed, folder, overrides)
        setup = make_setup(config)
        _train_policy(config, arm, folder / arm, f"{world} {arm} seed {seed}")
        result_file = folder / arm / "eval" / EVALUATION / "summary.json"
        if not result_file.exists():
            engine = setup.make_engine()
            result = evaluate.evaluate_run(setup, engine, folder / arm, result_file.parent)
            engine.close()
            evaluate.write_result(setup, result, result_file.parent)
        results[arm] = _read_result(result_file)
    return Comparison(folder, seed, results)


def _read_result(path: pathlib.Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except ValueError:
        raise UserError(f"{path}: is damaged; delete it to evaluate again") from None


def _load(world: str, arm: str, seed: int, folder: pathlib.Path, overrides: Sequence[str]) -> ConfigDict:
    config = apply_overrides(load_config(f"{world}:{arm}"), [*overrides, f"seed={seed}"])
    if arm != BASE:
        config.model.init_from = str(folder / BASE)
    return config


def _train_policy(config: ConfigDict, arm: str, folder: pathlib.Path, label: str) -> None:
    """Trains unless the folder holds the finished run; goes on with an interrupted one."""
    total = config.sft.steps if arm == BASE else config.algorithm.steps
    done = _updates_done(folder)
    if done > total:
        raise UserError(f"{folder}: holds a run of {done} updates, {total} are asked for; choose another --workdir")
    if done == total:
        prepare_workdir(folder, config, resume=True)  # refuses a run of other settings
        print(f"{label}: complete in {folder}")
        return
    begun = time.perf_counter()
    train = sft.run if arm == BASE else loop.run
    with RunLog(folder, config, resume=True, label=label) as log:
        train(config, folder, resume=True, log=log)
    print(f"{label}: {time.perf_counter() - begun:.0f} s")


def _updates_done(folder: pathlib.Path) -> int:
    """The newest checkpoint's step by its folder name: cheap, and complete ones alone carry a number."""
    latest = folder / "checkpoints" / "latest"
    return max((int(path.name) for path in latest.glob("*") if path.name.isdigit()), default=-1)


def _report_world(arms: Sequence[str], comparisons: Sequence[Comparison], folder: pathlib.Path) -> list[dict[str, Any]]:
    """Writes and prints a world's summaries, gates and contrasts; returns the first seed's summary."""
    summaries = []
    for comparison in comparisons:
        summary = _summary(folder.name, comparison)
        write_json(comparison.folder / "summary.json", summary)
        summaries.append(summary)
        print(f"\n{summary_table(summary)}\n")
        _print_diagnostics(comparison)
    write_json(folder / "summary.json", summaries[0])
    contrasts = _contrasts(arms, comparisons)
    if contrasts:
        write_json(folder / "contrasts.json", contrasts)
        _print_contrasts(contrasts, len(comparisons))
    return summaries[:1]


def _summary(world: str, comparison: Comparison) -> dict[str, Any]:
    first = next(iter(comparison.results.values()))
    hashes = {result["panel_hash"] for result in comparison.results.values()}
    if len(hashes) != 1:
        raise UserError(f"{comparison.folder}: the policies were evaluated on different panels {sorted(hashes)}")
    shared = {"world": world} | {name: first[name] for name in ("k", "n", "num_tasks", "panel_hash")}
    policies = {policy: result["budgets"] for policy, result in comparison.results.items()}
    return shared | {"seed": comparison.seed, "policies": policies}


def _print_diagnostics(comparison: Comparison) -> None:
    base = comparison.results[BASE]["budgets"]
    if {"25", "100"} <= base.keys():
        for name, holds in GATES:
            print(f"gate: {name}: {'passed' if holds(base) else 'FAILED'}")
    for policy, result in comparison.results.items():
        used = "  ".join(f"{percent} %: {share:.2f}" for percent, share in result["turns_used_over_told"].items())
        sensitivity = result["line_sensitivity"]
        line = "no line" if sensitivity is None else f"{sensitivity:.3f} nats"
        print(f"{policy}: line sensitivity {line}; mean turns used / told  {used}")


def _contrasts(arms: Sequence[str], comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Pass@K and Pass@1 of each pair of policies, over all seeds, in points with intervals."""
    pairs = [(arms[j], arms[i]) for i in range(len(arms)) for j in range(i + 1, len(arms))]
    grids = {arm: [_grid(comparison, arm) for comparison in comparisons] for arm in arms}
    k = comparisons[0].results[BASE]["k"]
    return {
        f"{first} - {second}": {
            f"pass_at_{size}": paired_contrast(grids[first], grids[second], k=size) for size in dict.fromkeys((k, 1))
        }
        for first, second in pairs
    }


def _grid(comparison: Comparison, arm: str) -> PassGrid:
    result = comparison.results[arm]
    episodes: list[Episode] = list(read_episodes(comparison.folder / arm / "eval" / EVALUATION / "episodes.jsonl.gz"))
    percents = [int(percent) for percent in result["budgets"]]
    mode = "blind" if all(episode.told_budget is None for episode in episodes) else "told"
    return pass_at_k_percent(episodes, tuple(dict.fromkeys((1, result["k"]))), percents, mode=mode)


def _print_contrasts(contrasts: dict[str, Any], num_seeds: int) -> None:
    what = "one seed, tasks resampled" if num_seeds == 1 else f"{num_seeds} seeds, seeds and tasks resampled"
    print(f"\ndifferences in points, 95 % intervals ({what})")
    for pair, measures in contrasts.items():
        for measure, cells in measures.items():
            values = "  ".join(
                f"{percent} %: {cell['points']:+.1f} [{cell['low']:.1f}, {cell['high']:.1f}]"
                for percent, cell in cells.items()
            )
            print(f"{pair}  {measure.replace('pass_at_', 'Pass@')}  {values}")
