"""An environment without an oracle that judges its own steps: a list of three items to tick off, in any order."""

from jaxagent.envs.base import InfrastructureError, Observation, StepResult
from jaxagent.envs.generated import GeneratedTasks
from jaxagent.envs.registry import EnvironmentEntry

ITEMS = ("left", "right", "up", "query_1", "query_2")


class CheckList:
    """A needed item is ticked off, `down` takes the last tick back, `look` is idle, `answer_a` gives up."""

    def __init__(self, says=("good", "progress")):
        self.says = says

    def reset(self, task, seed):
        if task.data.get("broken"):
            raise InfrastructureError("sandbox", "broken")
        self.needed, self.ticked = set(task.data["needed"]), []
        return self._observe()

    def step(self, reply):
        word, before, ended = reply.strip(), len(self.ticked), None
        valid = word in (*ITEMS, "down", "look", "answer_a")
        if word in self.needed and word not in self.ticked:
            self.ticked.append(word)
        elif word == "down" and self.ticked:
            self.ticked.pop()
        elif word == "answer_a":
            ended = "gave_up"
        if len(self.ticked) == 3:
            ended = "success"
        signal = {"good": len(self.ticked) > before, "progress": len(self.ticked) / 3}
        info = {"valid": valid, "action": word if valid else None, "error": None if valid else "unknown"}
        info |= {name: signal[name] for name in self.says}
        return StepResult(self._observe(), float(ended == "success"), ended, info)

    def close(self):
        pass

    def _observe(self):
        return Observation(f" found_{len(self.ticked)}" if self.ticked else " start", " ".join(sorted(self.ticked)))


def make_tasks(options, split, size, seed):
    def draw(generator):
        return {"needed": sorted(generator.permutation(ITEMS)[:3].tolist()), "salt": int(generator.integers(1 << 30))}

    return GeneratedTasks("check_list:ENTRY", draw, lambda data: 8, description={}, split=split, size=size, seed=seed)


ENTRY = EnvironmentEntry(
    "check_list:ENTRY", lambda options: CheckList(**options), make_tasks, lambda task, budget: float(budget >= 3), None
)
