"""An environment as `verifiers` drives it, written without the package: guess a number in five turns."""

import asyncio
import signal
import types


class Rubric:
    async def score_rollout(self, state):
        if state["row"]["answer"] == "ill":
            raise RuntimeError("the judge fell ill")
        state["reward"] = 1.0 if state["right"] else 0.5


class Game:
    max_turns = 5

    def __init__(self, rewrites=False, tools=False, groups=False):
        self.rewrites, self.rubric, self.cleaned = rewrites, Rubric(), 0
        self.tools = [{"name": "guess", "parameters": {}}] if tools else None
        self.requires_group_rollouts = groups
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def get_dataset(self):
        prompt = [{"role": "system", "content": "A game."}, {"role": "user", "content": "Guess."}]
        return [{"prompt": prompt, "answer": str(i), "example_id": i, "task": "game"} for i in range(100)]

    async def rollout(self, input, client, model, sampling_args):
        state = {"row": input, "right": False, "error": None, "final_env_response": None}
        messages = list(input["prompt"])
        try:
            for turn in range(self.max_turns):
                response = await client.get_response(messages, model, sampling_args, self.tools, state=state)
                said, calls = response.message.content, response.message.tool_calls
                await asyncio.sleep(0)
                messages = [*messages, {"role": "assistant", "content": said}]
                guess = calls[0].arguments if calls else said
                if guess == input["answer"]:
                    state["right"] = True
                    state["final_env_response"] = "Right!"
                    break
                if guess == "crash":
                    raise KeyError("a bug")
                if guess in ("sandbox", "slow"):
                    kind = types.new_class("SandboxError", (Exception,))
                    return state | ({"error": kind("gone")} if guess == "sandbox" else {"timed_out": True})
                if self.rewrites:
                    messages = messages[-1:]
                messages = [*messages, {"role": "tool" if calls else "user", "content": f"no {turn}: {guess}"}]
        finally:
            self.cleaned += 1
        return state


def load_environment(**args):
    return Game(**args)
