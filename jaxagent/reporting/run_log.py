"""The log of a run as the command line keeps it: `metrics.jsonl`, TensorBoard, and a live progress line."""

import pathlib
from collections.abc import Sequence
from types import TracebackType

from ml_collections import ConfigDict

from jaxagent.reporting.metrics import MetricsWriter
from jaxagent.reporting.progress import Progress
from jaxagent.reporting.run_folder import write_environment
from jaxagent.reporting.workdir import prepare_workdir

# What the progress line shows, and the metric it shows.
HEADLINE = {
    "reward": "reward/mean",
    "loss": "sft/loss",
    "Pass@1": "eval/pass_at_1",
    "occupancy": "rollout/occupancy",
    "turns/s": "rollout/turns_per_second",
}


class RunLog:
    """Prepares the run folder, then takes the metrics of each update. A context manager."""

    def __init__(self, workdir: str | pathlib.Path, config: ConfigDict, *, resume: bool, label: str) -> None:
        self._workdir = prepare_workdir(workdir, config, resume=resume)
        self._writer = MetricsWriter(self._workdir, tensorboard=config.logging.tensorboard)
        self._label = label
        self._progress: Progress | None = None
        self._shown: dict[str, float] = {}

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.__exit__(kind, error, trace)
        self._writer.close()

    def start(self, *, step: int, total: int, devices: Sequence[str]) -> None:
        """Drops what was logged beyond `step`, writes `environment.json`, and opens the progress line."""
        write_environment(self._workdir, {"devices": list(devices)})
        self._writer.truncate_after(step)
        self._progress = Progress(total, self._label, start=step)
        self._progress.__enter__()

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """One line of metrics; the progress line keeps a figure until a newer one comes."""
        self._writer.write(step, metrics)
        self._shown |= {name: metrics[key] for name, key in HEADLINE.items() if key in metrics}
        self._progress.update(step, self._shown)
