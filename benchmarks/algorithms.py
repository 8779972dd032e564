"""Group advantages at scale: one jitted call against straightforward NumPy in the same process, time and memory.

    python benchmarks/algorithms.py [--episodes=65536] [--turns=64] [--group=8] [--repeats=5]

On CPU, huge pages for malloc (`GLIBC_TUNABLES=glibc.malloc.hugetlb=1`) spare most of the page faults of the large
buffers. NumPy groups by `np.unique` and sums by `np.bincount`; every result is compared before it is timed.
"""

import argparse
import functools
import time
import tracemalloc

import jax
import numpy as np

from jaxagent.algorithms import advantages

EPSILON = 1e-6


def make_batch(episodes: int, turns: int, group: int, states: int, *, scattered: bool) -> tuple[np.ndarray, ...]:
    """(step_rewards, group_ids, anchor_ids, turn_mask, valid): sparse outcomes, `states` anchors a group.

    `scattered` draws anchor ids from all of int32 instead of numbering them densely.
    """
    rng = np.random.default_rng(0)
    group_ids = np.repeat(np.arange(-(-episodes // group), dtype=np.int32), group)[:episodes]
    cells = rng.integers(0, states, (episodes, turns))
    dense = group_ids[:, None] * states + cells
    names = rng.integers(-(2**31), 2**31, (group_ids.max() + 1) * states) if scattered else np.arange(dense.max() + 1)
    lengths = rng.integers(1, turns + 1, episodes)
    step_rewards = np.zeros((episodes, turns), np.float32)
    step_rewards[np.arange(episodes), lengths - 1] = rng.random(episodes) < 0.5
    mask = np.arange(turns) < lengths[:, None]
    return step_rewards, group_ids, names[dense].astype(np.int32), mask, rng.random(episodes) < 0.97


def numpy_centre(values: np.ndarray, keys: np.ndarray, normalize_std: bool) -> np.ndarray:
    """Deviations from the mean of equal keys, over their standard deviation on request."""
    _, inverse, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    centred = values - (np.bincount(inverse, values) / sizes)[inverse]
    if normalize_std:
        std = np.sqrt(np.bincount(inverse, centred**2) / np.maximum(sizes - 1, 1))
        centred = centred / (std + EPSILON)[inverse]
    return centred


def numpy_grpo(rewards, group_ids, valid, *, normalize_std=False):
    """`grpo_advantages` in NumPy."""
    result = np.zeros(rewards.shape, np.float32)
    result[valid] = numpy_centre(rewards[valid], group_ids[valid], normalize_std)
    return result


def numpy_gigpo(step_rewards, group_ids, anchor_ids, turn_mask, valid, *, gamma=0.95, normalize_std=False):
    """`gigpo_advantages` in NumPy."""
    mask = turn_mask & valid[:, None]
    rewards = np.where(mask, step_rewards, 0.0)
    returns = np.zeros(rewards.shape)
    running = np.zeros(len(rewards))
    for turn in reversed(range(rewards.shape[1])):
        running = rewards[:, turn] + gamma * running
        returns[:, turn] = running
    episode = numpy_grpo(rewards.sum(axis=1), group_ids, valid, normalize_std=normalize_std)
    keys = (group_ids[:, None].astype(np.int64) << 32) + anchor_ids
    result = np.zeros(rewards.shape, np.float32)
    result[mask] = numpy_centre(returns[mask], keys[mask], normalize_std)
    return np.where(mask, episode[:, None] + result, 0.0)


def best_time(function, repeats: int) -> float:
    """Seconds of the fastest of `repeats` calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def peak_of(function) -> float:
    """MiB that Python and NumPy held at once during a call, its inputs not counted."""
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def measure(name: str, ours, reference, arrays: tuple[np.ndarray, ...], repeats: int) -> str:
    """One row of the table; raises where the two disagree."""
    on_device = jax.device_put(arrays)
    compiled = jax.jit(ours).lower(*on_device).compile()
    expected = reference(*arrays)
    # A std that is almost 0 in one precision and 0 in the other decides nothing: such groups are centred at 0 in both.
    np.testing.assert_allclose(np.asarray(compiled(*on_device)), expected, atol=2e-3)
    seconds = best_time(lambda: jax.block_until_ready(compiled(*on_device)), repeats)
    peer = best_time(lambda: reference(*arrays), min(repeats, 2))
    memory = compiled.memory_analysis()
    mebibytes = (memory.temp_size_in_bytes + memory.output_size_in_bytes) / 2**20
    peer_mebibytes = peak_of(lambda: reference(*arrays))
    return (
        f"{name:32} {seconds * 1e3:9.1f} {peer * 1e3:9.1f} {peer / seconds:7.1f}x"
        f" {mebibytes:9.0f} {peer_mebibytes:9.0f} {peer_mebibytes / mebibytes:7.1f}x"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=65_536)
    parser.add_argument("--turns", type=int, default=64)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--states", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    size = (options.episodes, options.turns, options.group, options.states)
    batch = make_batch(*size, scattered=False)
    outcomes = (batch[0].sum(axis=1), batch[1], batch[4])

    print(f"{options.episodes} episodes of {options.turns} turns, groups of {options.group}, {jax.devices()[0]}")
    print(f"{'':32} {'ms':>9} {'NumPy ms':>9} {'ratio':>8} {'MiB':>9} {'NumPy MiB':>9} {'ratio':>8}")
    for flag in (False, True):
        ours, reference = (functools.partial(f, normalize_std=flag) for f in (advantages.grpo_advantages, numpy_grpo))
        print(measure("grpo" + ", std" * flag, ours, reference, outcomes, options.repeats))
    for flag in (False, True):
        ours, reference = (functools.partial(f, normalize_std=flag) for f in (advantages.gigpo_advantages, numpy_gigpo))
        print(measure("gigpo" + ", std" * flag, ours, reference, batch, options.repeats))
    scattered = make_batch(*size, scattered=True)
    name = "gigpo, anchors anywhere in int32"
    print(measure(name, advantages.gigpo_advantages, numpy_gigpo, scattered, options.repeats))


if __name__ == "__main__":
    main()
