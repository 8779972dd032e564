"""Figures as PNG files: Pass@K over told budgets, and learning curves.

Colours are Okabe and Ito's, told apart by colour-blind readers; policies differ in marker too. Figures are made without
pyplot, so no state is shared with the caller's own plotting and no display is needed.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from jaxagent.errors import UserError
from jaxagent.reporting.run_folder import Run
from jaxagent.reporting.tables import percents

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_GREY = "#777777"
_SPREAD = 1.6  # percentage points of the x axis between neighbouring policies, so that interval bars do not overlap
# Metric -> what its panel is called. Cloning is drawn only where nothing was trained by reward.
_REWARD_CURVES = {"reward/mean": "mean reward of the training groups", "eval/pass_at_1": "Pass@1 on held-out tasks"}
_CLONING_CURVES = {"sft/loss": "cloning loss", "sft/demonstration_success": "success of the demonstrations"}


def plot_pass_at_kt(summary: Mapping[str, Any] | Sequence[Mapping[str, Any]], path: str | pathlib.Path) -> pathlib.Path:
    """Draws Pass@K (left) and Pass@1 (right) over the told budget, a row of panels for each summary; returns the path.

    Solid with interval bars: told the budget. Dashed: told the full budget and cut. Grey: the share of tasks that any
    policy could solve within the budget. The shape of a summary: `reporting.tables`.
    """
    summaries = [summary] if isinstance(summary, Mapping) else list(summary)
    if not summaries:
        raise UserError("nothing to draw: no summary")
    figure = Figure(figsize=(11, 4.2 * len(summaries) + 0.6), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.12)
    grid = figure.subplots(len(summaries), 2, squeeze=False, sharey=True)
    for (left, right), one in zip(grid, summaries, strict=True):
        _draw_summary(left, right, one)
    handles, labels = _legend_entries(grid[:, 0])
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False, fontsize=11)
    return _save(figure, path)


def curve_columns(runs: Sequence[Run]) -> list[str]:
    """The metrics that learning curves are drawn of: reward and held-out Pass@1, else the cloning loss; as far as any
    run has them."""
    for curves in (_REWARD_CURVES, _CLONING_CURVES):
        found = [name for name in curves if any(_has(run, name) for run in runs)]
        if found:
            return found
    return []


def plot_learning_curves(runs: Sequence[Run], path: str | pathlib.Path) -> pathlib.Path:
    """Draws one panel a metric of `curve_columns(runs)`, one line a run, over the update; returns the path.

    Raw values are thin and pale, the running mean over a twentieth of the run is bold.
    """
    columns = curve_columns(runs)
    runs = [run for run in runs if any(_has(run, name) for name in columns)]
    if not columns:
        raise UserError("nothing to draw: no run has a learning curve")
    figure = Figure(figsize=(5.5 * len(columns), 4.6), layout="constrained")
    panels = figure.subplots(1, len(columns), squeeze=False, sharex=True)[0]
    for panel, name in zip(panels, columns, strict=True):
        for index, (label, run) in enumerate(zip(run_labels(runs), runs, strict=True)):
            if _has(run, name):
                _draw_curve(panel, run.metrics[name].dropna(), label, index)
        _dress(panel, title=(_REWARD_CURVES | _CLONING_CURVES)[name], xlabel="update")
    handles, labels = _legend_entries(panels)
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 3), frameon=False, fontsize=11)
    return _save(figure, path)


def _has(run: Run, metric: str) -> bool:
    return metric in run.metrics and bool(run.metrics[metric].notna().any())


def _draw_summary(left: Axes, right: Axes, summary: Mapping[str, Any]) -> None:
    ticks = [int(percent) for percent in percents(summary)]
    policies = summary["policies"]
    for index, (policy, cells) in enumerate(policies.items()):
        offset = _SPREAD * (index - (len(policies) - 1) / 2)
        _draw_policy(left, right, policy, cells, index, offset)
    feasible = next(iter(policies.values()), {})
    for panel in (left, right):
        points = [(int(p), 100 * cell["feasible"]) for p, cell in feasible.items() if cell.get("feasible") is not None]
        if points:
            panel.plot(*zip(*sorted(points), strict=True), color=_GREY, linewidth=1.4, zorder=1, label="feasible share")
        panel.set_xticks(ticks, [f"{tick} %" for tick in ticks])
        panel.set_ylim(-3, 103)
    where = f"{summary['world']}, seed {summary['seed']}"
    xlabel = "told budget (share of the full budget)"
    _dress(left, title=f"Pass@{summary['k']}: {where}", xlabel=xlabel, ylabel="tasks solved [%]")
    _dress(right, title=f"Pass@1: {where}", xlabel=xlabel)


def _draw_policy(
    left: Axes, right: Axes, policy: str, cells: Mapping[str, Mapping[str, Any]], index: int, offset: float
) -> None:
    style = {"color": _COLOURS[index % len(_COLOURS)], "marker": _MARKERS[index % len(_MARKERS)], "markersize": 6}
    order = sorted(cells, key=int)
    known = [percent for percent in order if cells[percent].get("pass_at_k") is not None]
    at = [int(percent) + offset for percent in known]
    values = [100 * cells[percent]["pass_at_k"] for percent in known]
    bars = [[], []]
    for percent, value in zip(known, values, strict=True):
        for bar, bound, sign in ((bars[0], "low", -1), (bars[1], "high", 1)):
            limit = cells[percent].get(bound)
            bar.append(0.0 if limit is None else max(sign * (100 * limit - value), 0.0))
    left.errorbar(at, values, yerr=bars, capsize=3, linewidth=2, zorder=3, label=policy, **style)
    for panel, key, linestyle, label in (
        (left, "unannounced_pass_at_k", "--", f"{policy}, unannounced"),
        (right, "pass_at_1", "-", policy),
    ):
        points = [(int(p) + offset, 100 * cells[p][key]) for p in order if cells[p].get(key) is not None]
        if points:
            hollow = {"markerfacecolor": "white", "linewidth": 1.3} if linestyle == "--" else {"linewidth": 2}
            panel.plot(*zip(*points, strict=True), linestyle=linestyle, zorder=2, label=label, **hollow, **style)


def _draw_curve(panel: Axes, series: Any, label: str, index: int) -> None:
    colour = _COLOURS[index % len(_COLOURS)]
    window = max(len(series) // 20, 1)
    if window > 1:
        panel.plot(series.index, series.to_numpy(), color=colour, alpha=0.25, linewidth=0.8)
    smooth = series.rolling(window, min_periods=1).mean()
    sparse = {"marker": _MARKERS[index % len(_MARKERS)], "markersize": 5} if len(series) <= 20 else {}
    panel.plot(series.index, smooth.to_numpy(), color=colour, linewidth=2, label=label, **sparse)


def run_labels(runs: Sequence[Run]) -> list[str]:
    """Folder names, with as many parents as tell the runs apart."""
    parts = [run.path.resolve().parts for run in runs]
    for depth in range(1, max((len(part) for part in parts), default=1) + 1):
        labels = ["/".join(part[-depth:]) for part in parts]
        if len(set(labels)) == len(labels):
            return labels
    return ["/".join(part) for part in parts]


def _legend_entries(panels: Sequence[Axes]) -> tuple[list[Any], list[str]]:
    """Each label once, from all panels; the told lines first, then unannounced, then the feasible share."""
    entries: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    ordered = sorted(entries, key=lambda label: (label == "feasible share", label.endswith(", unannounced")))
    return [entries[label] for label in ordered], ordered


def _dress(panel: Axes, *, title: str, xlabel: str, ylabel: str = "") -> None:
    panel.set_title(title, fontsize=12)
    panel.set_xlabel(xlabel, fontsize=11)
    panel.set_ylabel(ylabel, fontsize=11)
    panel.tick_params(labelsize=10)
    panel.grid(axis="y", color="#dddddd", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: str | pathlib.Path) -> pathlib.Path:
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    partial = path.with_name(path.name + ".partial")
    figure.savefig(partial, format="png", dpi=150)
    partial.replace(path)
    return path
