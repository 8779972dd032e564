"""A world of three states: 0 -> 1 -> 2, the goal. Small enough for every figure to be worked out by hand."""

from jaxagent.envs.base import Observation, StepOracle, StepResult
from jaxagent.episodes import Episode, Task, Turn

ACTIONS = ("go", "back", "leap")
# The known policy: probabilities of the three actions in states 0 and 1; the rest goes to invalid replies.
POLICY = {0: {"go": 0.6, "back": 0.2, "leap": 0.1}, 1: {"go": 0.5, "back": 0.3, "leap": 0.2}}


class ThreeStates:
    """`go` and `back` move by one, `leap` ends the episode: in failure unless the task says `lucky`."""

    def reset(self, task, seed):
        self.state, self.lucky, self.seed = 0, task.data.get("lucky", False), seed
        return self._observe()

    def step(self, reply):
        if reply not in ACTIONS:
            return StepResult(self._observe(), info={"valid": False, "action": None, "error": "unknown_action"})
        info = {"valid": True, "action": reply, "error": None}
        if reply == "leap":
            won = self.lucky
            return StepResult(self._observe(), float(won), "success" if won else "failure", info)
        self.state = self.state + 1 if reply == "go" else max(0, self.state - 1)
        won = self.state == 2
        return StepResult(self._observe(), float(won), "success" if won else None, info)

    def oracle(self, turns_left=None):
        distance = 2 - self.state
        late = turns_left is not None and turns_left < distance
        return StepOracle(("leap",) if late else ("go",), distance)

    def close(self):
        pass

    def _observe(self):
        return Observation(f" s{self.state}", str(self.state))


def make_task(name="x", **data):
    return Task(env="three_states", id=name, data=data, max_turns=4)


def play(replies, *, task=None, member=0, budget=4, told=None):
    """The episode that these replies give, cut at the budget."""
    task = task or make_task()
    world, turns, ended = ThreeStates(), [], None
    observation = world.reset(task, 0)
    for index, reply in enumerate(replies[:budget], start=1):
        result = world.step(reply)
        turns.append(
            Turn(
                index=index,
                observation_ids=(3, 4 + int(observation.anchor)),
                sampled_ids=(10 + len(reply), 1),
                logprobs=(-0.5, 0.0),
                weight_version=0,
                text=reply,
                action=result.info["action"],
                valid=result.info["valid"],
                error=result.info["error"],
                reward=0.0,
                anchor=observation.anchor,
                remaining=budget - index + 1,
            )
        )
        observation, ended = result.observation, result.ended
        if ended:
            break
    won = ended == "success"
    return Episode(
        run_seed=0,
        step=0,
        task_id=task.id,
        env=task.env,
        group=0,
        member=member,
        max_budget=task.max_turns,
        told_budget=told,
        enforced_budget=budget,
        turns=tuple(turns),
        reward=float(won),
        success=won,
        success_turn=len(turns) if won else None,
        end_reason=ended or "budget",
    )
