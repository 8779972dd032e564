"""InterCode-SQL: steps a second with one and two workers, memory an episode, and who can finish within a budget.

    python benchmarks/intercode_sql.py [--spider]

`--spider` measures the real questions too; `jaxagent data intercode-sql` must have brought them. Needs no JAX.
"""

import argparse
import os
import pathlib
import time

from jaxagent.envs.intercode_sql.demonstrators import expert_replies
from jaxagent.envs.intercode_sql.environment import make_environment, make_tasks
from jaxagent.envs.intercode_sql.tasks import discovery_turns, minimal_turns
from jaxagent.envs.workers import EnvironmentPool, ResetRequest, StepRequest

SLOTS = 64
EPISODES = 1024
PERCENTS = (25, 50, 75, 100)


def main() -> None:
    """Prints the three tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spider", action="store_true", help="measure the real questions too")
    sources = ["generated", "spider"] if parser.parse_args().spider else ["generated"]
    for source in sources:
        options = {"source": source}
        tasks = make_tasks(options, "train", 512, 0)
        tasks = [tasks.task(index) for index in range(len(tasks))]
        memory = memory_per_episode(options, tasks)
        print(f"\n{source}: {len(tasks)} tasks, {SLOTS} slots, the careful expert plays")
        print("| workers | steps/s | ratio | steps per CPU second |\n|---:|---:|---:|---:|")
        first = None
        for workers in (0, 1, 2):
            begun = time.process_time()
            steps, seconds = play(options, tasks, workers)
            cpu = f"{steps / (time.process_time() - begun):.0f}" if workers == 0 else ""
            first = first or steps / seconds
            print(f"| {workers or 'in process'} | {steps / seconds:.0f} | {steps / seconds / first:.2f} | {cpu} |")
        print(f"memory an episode: {memory:.0f} KB")
        print_feasibility(tasks)


def play(options: dict, tasks: list, workers: int) -> tuple[int, float]:
    """(steps, seconds) of `EPISODES` scripted episodes, the workers' start not counted."""
    with EnvironmentPool("intercode_sql", options, num_workers=workers, step_timeout=60.0) as pool:
        pool.run([ResetRequest(slot, tasks[slot % len(tasks)], 0) for slot in range(SLOTS)])
        begun, steps = time.perf_counter(), 0
        for start in range(0, EPISODES, SLOTS):
            batch = [tasks[(start + slot) % len(tasks)] for slot in range(SLOTS)]
            pool.run([ResetRequest(slot, task, 0) for slot, task in enumerate(batch)])
            replies = [expert_replies(task.data) for task in batch]
            while any(replies):
                requests = [StepRequest(slot, left.pop(0)) for slot, left in enumerate(replies) if left]
                steps += len(requests)
                for result in pool.run(requests):
                    if isinstance(result, Exception):
                        raise result
        return steps, time.perf_counter() - begun


def memory_per_episode(options: dict, tasks: list) -> float:
    """Kilobytes of resident memory that one more live episode takes, from 256 of them."""
    warm = make_environment(options)
    for task in tasks[:64]:
        warm.reset(task, 0)
    environments = [make_environment(options) for _ in range(256)]
    before = resident_kilobytes()
    for environment, index in zip(environments, range(256), strict=True):
        environment.reset(tasks[index % 64], 0)
        environment.step("SHOW TABLES")
    after = resident_kilobytes()
    for environment in (warm, *environments):
        environment.close()
    return (after - before) / 256


def resident_kilobytes() -> float:
    """Resident memory of this process (Linux)."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


def print_feasibility(tasks: list) -> None:
    """phi(T): the share of tasks that two ideal players finish within each budget."""
    print("| phi(T) | " + " | ".join(f"{percent} %" for percent in PERCENTS) + " |\n|---|---:|---:|---:|---:|")
    for name, turns in (("knows the schema", minimal_turns), ("asks for all of it", discovery_turns)):
        shares = []
        for percent in PERCENTS:
            fits = [turns(task.data) <= -(-percent * task.max_turns // 100) for task in tasks]
            shares.append(f"{100 * sum(fits) / len(fits):.0f} %")
        print(f"| {name} | {' | '.join(shares)} |")


if __name__ == "__main__":
    main()
