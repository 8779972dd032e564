"""Run folders: what a run writes (metrics, configuration, environment) and what reads it (frames, tables, figures).

Nothing here imports jax. `metrics`, `progress` and `run_folder` are written to by training; the rest only reads.
"""

from jaxagent.reporting.run_folder import Run, load_run

__all__ = ["Run", "load_run"]
