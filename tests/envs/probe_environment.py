"""An environment whose replies are orders: for the tests of the workers, loaded by `probe_environment:ENTRY`."""

import os
import subprocess
import sys
import time

from jaxagent.envs.base import InfrastructureError, Observation, StepResult
from jaxagent.envs.registry import EnvironmentEntry


class Probe:
    def __init__(self):
        self.count = 0
        self.kept = []

    def reset(self, task, seed):
        self._order(task.data.get("order", ""))
        self.count = 0
        return Observation(f"{task.id} {seed}", "start")

    def step(self, reply):
        self.count += 1
        if reply == "none":
            return None
        reward = {"nan": float("nan"), "text": "1.0"}.get(reply, 0.0)
        ended = {"win": "success", "odd end": "maybe"}.get(reply)
        reply, info = reply[:100], {"answer": self._order(reply)}
        return StepResult(Observation(f"{self.count} {reply}"), reward=reward, ended=ended, info=info)

    def close(self):
        pass

    def _order(self, order):
        word, _, rest = order.partition(" ")
        if word == "die":
            os._exit(7)
        if word == "hang":
            time.sleep(float(rest))
        if word == "raise":
            raise ZeroDivisionError("a bug in the environment")
        if word == "void":
            raise InfrastructureError("sandbox", "no sandbox here")
        if word == "child":  # a process of its own that outlives the step
            return subprocess.Popen(["sleep", "600"]).pid
        if word == "keep":
            self.kept.append(b"x" * int(float(rest)))
        if word == "secret":
            return lambda: None  # cannot be pickled
        return {"pid": os.getpid(), "jax": "jax" in sys.modules, "main": hasattr(sys.modules["__main__"], "MARK")}.get(
            word
        )


def make_environment(options):
    if options.get("only_in") == "caller" and os.environ.get("PROBE_CALLER") != str(os.getpid()):
        raise RuntimeError("this environment cannot be made in a worker")
    if options.get("slow_in") == "worker" and os.environ.get("PROBE_CALLER") != str(os.getpid()):
        time.sleep(1.5)
    return Probe()


ENTRY = EnvironmentEntry("probe", make_environment, None, None, None)
