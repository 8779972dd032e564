"""`jaxagent report`: the figures and the table of finished runs."""

import pathlib
from collections.abc import Sequence
from typing import Any

from jaxagent.errors import UserError
from jaxagent.reporting.metrics import METRICS_FILE
from jaxagent.reporting.plots import curve_columns, plot_learning_curves, plot_pass_at_kt, run_labels
from jaxagent.reporting.run_folder import SUMMARY_FILE, Run, load_run
from jaxagent.reporting.tables import summary_table

TABLE_FILE = "table.md"
PASS_FILE = "pass_at_kt.png"
CURVES_FILE = "learning_curves.png"
_SHARED = ("world", "k", "n", "num_tasks", "panel_hash", "seed")


def run(workdirs: Sequence[str | pathlib.Path], output: str | pathlib.Path) -> list[pathlib.Path]:
    """Writes `pass_at_kt.png`, `learning_curves.png` and `table.md` to `output`, as far as there is data for each,
    prints the tables and the paths, and returns the paths.

    A folder that holds several runs (what `jaxagent reproduce` makes) stands for all of them. Raises `UserError` for a
    folder without any run, and where nothing can be shown.
    """
    runs = [found for workdir in workdirs for found in find_runs(workdir)]
    output = pathlib.Path(output)
    summaries = _summaries(runs)
    written = []
    if summaries:
        for summary in summaries:
            print(summary_table(summary), end="\n\n")
        table = "\n\n".join(summary_table(summary, markdown=True) for summary in summaries) + "\n"
        output.mkdir(parents=True, exist_ok=True)
        (output / TABLE_FILE).write_text(table, encoding="utf-8")
        written = [output / TABLE_FILE, plot_pass_at_kt(summaries, output / PASS_FILE)]
    if curve_columns(runs):
        written.append(plot_learning_curves(runs, output / CURVES_FILE))
    if not written:
        names = ", ".join(str(one.path) for one in runs)
        raise UserError(f"nothing to report: neither an evaluation's summary nor training metrics in {names}")
    for path in written:
        print(path)
    return written


def find_runs(workdir: str | pathlib.Path) -> list[Run]:
    """The run in `workdir` and those in folders below it, in the order of their paths."""
    workdir = pathlib.Path(workdir)
    if not workdir.is_dir():
        raise UserError(f"{workdir}: no such run folder")
    markers = [*workdir.rglob(METRICS_FILE), *workdir.rglob(SUMMARY_FILE)]
    folders = {path.parent for path in markers}
    # eval/NAME/summary.json belongs to the run two folders up.
    folders = {folder.parent.parent if folder.parent.name == "eval" else folder for folder in folders}
    inside = sorted(folder for folder in folders if folder == workdir or workdir in folder.parents)
    return [load_run(folder) for folder in inside] or [load_run(workdir)]


def _summaries(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Every different comparison that the runs hold, then those that their own evaluations make together: runs that met
    the same panel under the same seed, K and n stand side by side under their labels."""
    found: list[dict[str, Any]] = []
    for one in runs:
        summary = one.summaries.get("", {})
        if "policies" in summary and summary not in found:
            found.append(summary)
    shown = [cells for summary in found for cells in summary["policies"].values()]
    together: dict[tuple, dict[str, Any]] = {}
    for label, one in zip(run_labels(runs), runs, strict=True):
        for name, summary in one.summaries.items():
            if "budgets" not in summary or summary["budgets"] in shown:
                continue
            shared = {key: summary.get(key) for key in _SHARED}
            comparison = together.setdefault((name, *shared.values()), shared | {"policies": {}})
            comparison["policies"][label] = summary["budgets"]
    return found + list(together.values())
