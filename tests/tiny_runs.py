"""The smallest real run: Lookup, a decoder of a few thousand weights, everything else as in production."""

from jaxagent.config_files import apply_overrides, load_config
from jaxagent.rollout.setup import make_setup

SMALL = (
    "model.width=16",
    "model.num_heads=2",
    "model.num_kv_heads=1",
    "model.head_dim=8",
    "model.mlp_width=16",
    "rollout.slots=16",
    "rollout.max_turn_tokens=4",
    "rollout.max_context=112",
    "optimizer.row_tokens=128",
    "optimizer.micro_rows=8",
    "algorithm.groups=4",
    "algorithm.entropy_coefficient=0.05",  # moves the weights also where no episode earns anything
    "algorithm.group_size=4",
    "env.train_tasks=64",
    "logging.tensorboard=False",
)


def tiny_config(*overrides, variant="budgetmix,runlocal"):
    return apply_overrides(load_config(f"lookup_tiny:{variant}"), [*SMALL, *overrides])


def tiny_setup(*overrides, variant="budgetmix,runlocal"):
    return make_setup(tiny_config(*overrides, variant=variant))


def assert_every_update_moved(lines):
    """A test of a run whose weights stand still says nothing of weights, moments or their resumption."""
    norms = [(line["train/grad_norm"], line["train/update_norm"]) for line in lines]
    assert norms and min(map(min, norms)) > 0, norms


class SilentLog:
    """Keeps what a run logs."""

    def __init__(self):
        self.lines = {}
        self.started = None

    def start(self, *, step, total, devices):
        self.started = (step, total)
        self.lines = {number: line for number, line in self.lines.items() if number <= step}

    def write(self, step, metrics):
        self.lines[step] = metrics
