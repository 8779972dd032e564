"""The table of a comparison: a row a policy, a column a told budget, and in each cell Pass@K with its interval.

A summary is the dictionary of `summary.json`: `world, k, n, num_tasks, panel_hash, seed` and `policies`, which maps
policy -> told budget in per cent -> `pass_at_k, low, high, pass_at_1, feasible, unannounced_pass_at_k` (shares in 0..1;
None: no value).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxagent.errors import UserError

_MEASURES = ("pass_at_k", "pass_at_1", "feasible", "unannounced_pass_at_k")


def percents(summary: Mapping[str, Any]) -> list[str]:
    """The told budgets of a summary, in per cent, ascending."""
    try:
        found = {percent for cells in summary["policies"].values() for percent in cells}
        return sorted(found, key=int)
    except (KeyError, AttributeError, TypeError, ValueError):
        raise UserError("not a summary: it has no `policies` with told budgets in per cent") from None


def summary_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The table as plain dictionaries: one a policy and told budget, with the summary's own keys beside."""
    rows = []
    for policy, cells in summary["policies"].items():
        for percent in percents(summary):
            if percent in cells:
                rows.append({"world": summary["world"], "policy": policy, "percent": int(percent), **cells[percent]})
    return rows


def summary_table(summary: Mapping[str, Any], *, markdown: bool = False) -> str:
    """The table as text: aligned columns for a terminal, or a Markdown table."""
    columns = percents(summary)
    header = ["policy", "measure", *(f"{percent} %" for percent in columns)]
    rows = []
    for policy, cells in summary["policies"].items():
        for measure in _MEASURES:
            values = [_cell(cells.get(percent, {}), measure) for percent in columns]
            if any(value != "-" for value in values):
                rows.append([policy if measure == "pass_at_k" else "", _measure_name(measure, summary["k"]), *values])
    title = _title(summary)
    return _markdown(title, header, rows) if markdown else _aligned(title, header, rows)


def _title(summary: Mapping[str, Any]) -> str:
    return (
        f"{summary['world']}, seed {summary['seed']}: solved tasks in % by told budget (share of the full budget); "
        f"n = {summary['n']}, {summary['num_tasks']} tasks"
    )


def _measure_name(measure: str, k: int) -> str:
    return {
        "pass_at_k": f"Pass@{k} [95 %]",
        "pass_at_1": "Pass@1",
        "feasible": "feasible share",
        "unannounced_pass_at_k": f"Pass@{k} unannounced",
    }[measure]


def _cell(cell: Mapping[str, Any], measure: str) -> str:
    if cell.get(measure) is None:
        return "-"
    text = f"{100 * cell[measure]:.1f}"
    if measure == "pass_at_k" and cell.get("low") is not None and cell.get("high") is not None:
        text += f" [{100 * cell['low']:.1f}, {100 * cell['high']:.1f}]"
    return text


def _aligned(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    lines = [title, ""]
    for row in [header, ["-" * width for width in widths], *rows]:
        left = [text.ljust(width) for text, width in zip(row[:2], widths[:2], strict=True)]
        right = [text.rjust(width) for text, width in zip(row[2:], widths[2:], strict=True)]
        lines.append("  ".join(left + right).rstrip())
    return "\n".join(lines)


def _markdown(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    ruler = ["---", "---", *["---:"] * (len(header) - 2)]
    lines = [f"**{title}**", ""]
    lines += ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in [header, ruler, *rows]]
    return "\n".join(lines)
