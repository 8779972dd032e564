"""Steps a second of BFCL-v3 multi-turn on one core, and the memory of a live episode.

    python benchmarks/bfcl_multi_turn.py [--episodes=200]

Each row replays the benchmark's own answers, one call a reply, through the environment: reset and steps with parsing,
execution in both worlds, comparison, anchor and step signal. `checker` is the benchmark's own verdict on the same
answers, without a conversation; memory is what 200 live episodes hold together, shared data left out.
"""

import argparse
import gc
import time
import tracemalloc

from jaxagent.envs.bfcl import environment, package, tasks
from jaxagent.envs.bfcl.expert import perfect_reply
from jaxagent.episodes import Task

OPTIONS = {"docs": "full", "tool_format": "tool_call"}


def chosen_tasks(category: str, count: int) -> list[Task]:
    """The first tasks of a category."""
    return [Task("bfcl", entry, data, 99) for entry, data in list(tasks.entries(category).items())[:count]]


def replay(chosen: list[Task]) -> tuple[int, float]:
    """(steps, seconds)."""
    live = environment.make_environment(OPTIONS)
    steps, begun = 0, time.process_time()
    for task in chosen:
        live.reset(task, 0)
        ended = None
        while ended is None:
            ended = live.step(perfect_reply(live, batched=False)).ended
            steps += 1
    return steps, time.process_time() - begun


def checker_seconds(category: str, count: int) -> float:
    """Seconds that the benchmark's own checker takes for the same answers."""
    from bfcl.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    entries = package.read_lines(f"BFCL_v3_multi_turn_{category}.json")[:count]
    answers = {
        line["id"]: line["ground_truth"]
        for line in package.read_lines(f"possible_answer/BFCL_v3_multi_turn_{category}.json")
    }
    begun = time.process_time()
    for entry in entries:
        gold = answers[entry["id"]]
        multi_turn_checker([[[call] for call in turn] for turn in gold], gold, entry, category, "benchmark")
    return time.process_time() - begun


def kilobytes_per_episode(chosen: list[Task]) -> float:
    """Memory of one live episode at its start, the mean over all of `chosen`."""
    live = [environment.make_environment(OPTIONS) for _ in chosen]
    live[0].reset(chosen[0], 0)  # imports and documents are shared
    gc.collect()
    tracemalloc.start()
    for one, task in zip(live, chosen, strict=True):
        one.reset(task, 0)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / len(chosen) / 1024


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=200)
    count = parser.parse_args().episodes
    print(f"{'category':<14}{'steps/s':>10}{'ms/episode':>12}{'checker ms':>12}{'KB/episode':>12}")
    for category in tasks.CATEGORIES:
        chosen = chosen_tasks(category, count)
        replay(chosen)
        steps, seconds = replay(chosen)
        checked = 1000 * checker_seconds(category, count) / len(chosen)
        print(
            f"{category:<14}{steps / seconds:>10.0f}{1000 * seconds / len(chosen):>12.2f}"
            f"{checked:>12.2f}{kilobytes_per_episode(chosen):>12.0f}"
        )


if __name__ == "__main__":
    main()
