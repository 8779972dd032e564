"""Programs a second through the sandbox, and what one costs over a bare interpreter.

    python benchmarks/sandbox.py [--programs=300]

Each row runs the same small programs (read a line, print a line), every one in a process of its own. `bare` starts the
sandbox's Python with no isolation and no judge, `bwrap` through a plain bubblewrap command line; the rest is
`jaxagent.envs.sandbox`, with each set of walls, one or two programs at once, started when needed (cold) or kept ready
(warm). `wait` is the time from asking for one program to its outcome with 50 ms between programs, as between turns.

Measured with 150 programs a row on two idle cores, time of a program over that of the bare interpreter (11.6 ms; 5.9
two at once): plain bubblewrap 1.7; one at a time behind all walls, cold 4.3 and warm 3.5; two at once, warm, a function
3.4 and an assert with its two sandboxes 6.3. Two at once over one: 2.1 warm. A warm sandbox answers in 0.7 of the time
that a bare interpreter takes to start.
"""

import argparse
import concurrent.futures
import statistics
import subprocess
import time
from collections.abc import Callable

from jaxagent.envs import sandbox, sandbox_layers
from jaxagent.envs.sandbox import Call, Calls, Check, Layers, Sandbox, SandboxOptions, Script

PROGRAM = "print(int(input()) + 1)"
FUNCTION = "def f(x):\n    return x + 1"
JOBS = {
    "standard input": Script(PROGRAM, b"41"),
    "function": Calls(FUNCTION, (Call("f", [41]),)),
    "assert (two sandboxes)": Check(FUNCTION, "assert f(41) == 42", ["f"]),
}


def bare_command(isolated: bool) -> list[str]:
    """A plain command line that runs the program."""
    interpreter = sandbox_layers.find_interpreter()
    if isolated:
        return sandbox_layers.bubblewrap_command(interpreter, PROGRAM, [], None)
    return [interpreter.binary, "-I", "-S", "-c", PROGRAM]


def run_plain(command: list[str]) -> None:
    """One program without a judge."""
    done = subprocess.run(command, input=b"41", capture_output=True, check=True)
    if done.stdout != b"42\n":
        raise RuntimeError(f"wrong output: {done}")


def plain_rate(command: list[str], programs: int, workers: int) -> float:
    """Programs a second of plain command lines, `workers` at once."""
    begun = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda _: run_plain(command), range(programs)))
    return programs / (time.perf_counter() - begun)


def median_wait(run: Callable[[], object], repeats: int) -> float:
    """Median seconds of one call with a pause before each."""
    waits = []
    for _ in range(repeats):
        time.sleep(0.05)
        begun = time.perf_counter()
        run()
        waits.append(time.perf_counter() - begun)
    return statistics.median(waits)


def sandbox_row(job, layers: Layers, programs: int, *, parallel: int, warm: int) -> tuple[float, float]:
    """(programs a second, median wait of one)."""
    options = SandboxOptions(parallel=parallel, warm=warm, seconds=30.0)
    with Sandbox(options, layers) as box:
        for outcome in box.run([job] * 8):
            if outcome.kind != "ok":
                raise RuntimeError(f"not ok: {outcome}")
        begun = time.perf_counter()
        for _ in box.run([job] * programs):
            pass
        rate = programs / (time.perf_counter() - begun)
        return rate, median_wait(lambda: list(box.run([job])), min(programs, 60))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=300)
    programs = parser.parse_args().programs
    every, complaint = sandbox.isolation()
    if every is None:
        raise SystemExit(complaint)
    print(
        f"walls that work here: {every}; Python {sandbox_layers.find_interpreter().version}; {programs} programs a row"
    )
    print(f"{'':44s}{'at once':>8s}{'programs/s':>12s}{'ms each':>9s}{'wait ms':>9s}")
    for name, isolated in (("bare", False), ("bwrap", True)):
        command = bare_command(isolated)
        for workers in (1, 2):
            rate = plain_rate(command, programs, workers)
            wait = median_wait(lambda command=command: run_plain(command), 60) if workers == 1 else float("nan")
            print(f"{name:44s}{workers:8d}{rate:12.1f}{1e3 / rate:9.1f}{1e3 * wait:9.1f}")
    bubblewrap = Layers(bubblewrap=True)
    rows = [("standard input", bubblewrap, "bubblewrap", n, 0) for n in (1, 2)]
    rows += [("standard input", every, "all walls", n, warm) for warm in (0, 2) for n in (1, 2)]
    rows += [(name, every, "all walls", 2, 2) for name in JOBS if name != "standard input"]
    for name, layers, walls, parallel, warm in rows:
        rate, wait = sandbox_row(JOBS[name], layers, programs, parallel=parallel, warm=warm)
        label = f"{name}, {walls}, {'warm' if warm else 'cold'}"
        print(f"{label:44s}{parallel:8d}{rate:12.1f}{1e3 / rate:9.1f}{1e3 * wait:9.1f}")


if __name__ == "__main__":
    main()
