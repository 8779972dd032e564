"""Environments behind one call for many slots: in this process, or in worker processes that cannot take the run down.

A worker that dies, hangs or outgrows its memory costs its own slots their episodes, as `InfrastructureError` values,
and is replaced. Nothing of it stays: neither the process nor what it started.
"""

import collections
import contextlib
import dataclasses
import math
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import resource
import signal
import socket
import struct
import sys
import threading
import time
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from jaxagent.envs import step_rewards
from jaxagent.envs.base import Ended, Environment, InfrastructureError, InfrastructureKind, Observation, StepResult
from jaxagent.episodes import Task
from jaxagent.errors import UserError

START_SECONDS = 120.0  # a worker that is not up by then, its environment loaded, counts as dead
RECYCLED_SHARE = 0.5  # a worker that holds more than this share of its memory limit is replaced when the pool rests
_CLOSE_SECONDS = 2.0  # what workers get to leave by themselves
_READY = "ready"
_RESIDENT, _DATA = 1, 5  # fields of `/proc/PID/statm`, in pages


@dataclasses.dataclass(frozen=True)
class ResetRequest:
    """Start `task` in `slot`; all randomness of the environment comes from `seed`."""

    slot: int
    task: Task
    seed: int


@dataclasses.dataclass(frozen=True)
class StepRequest:
    """Give `reply` to the episode in `slot`."""

    slot: int
    reply: str


Recipe = tuple[str, dict[str, Any], str, float]  # the arguments of `step_rewards.make_environment`
Request = ResetRequest | StepRequest
Result = Observation | StepResult | InfrastructureError


class EnvironmentPool:
    """One environment a slot, in this process (`num_workers=0`) or spread over worker processes.

    Slot s lives in worker s % num_workers. The processes are started by spawn, resolve the environment by its registry
    name and never see the caller's main module, so they import neither jax nor a training script. A worker has at most
    one request under way and the next is sent when it has answered, so nothing piles up on either side. Use the pool as
    a context manager or call `close`.
    """

    def __init__(
        self,
        env_name: str,
        options: Mapping[str, Any],
        *,
        num_workers: int,
        step_timeout: float,
        step_reward: str = "none",
        step_reward_scale: float = 1.0,
        worker_memory_gb: float = 0.0,
    ) -> None:
        """A pool that starts its workers at once and waits for none of them.

        Args:
          env_name, options: of the environment; `step_reward` and its scale: as in `step_rewards.make_environment`,
            applied where the environment runs.
          num_workers: processes; 0 runs the environments in this one, where neither limit can be enforced.
          step_timeout: seconds one reset or step may take; loading the environment has its own limit, `START_SECONDS`.
          worker_memory_gb: 10^9 bytes that one worker may allocate beside what Python itself takes; 0 for no limit.

        Raises `UserError` on an unknown environment, a bad option or a bad number, before any process starts.
        """
        _check_numbers(num_workers, step_timeout, worker_memory_gb)
        recipe = (env_name, dict(options), step_reward, step_reward_scale)
        step_rewards.make_environment(*recipe).close()
        self._closed = False
        self._local = _Slots(recipe) if num_workers == 0 else None
        self._workers: list[_Worker] = []
        # Also where `close` is never called: at garbage collection and at exit, before daemons are merely terminated.
        self._finalizer = weakref.finalize(self, _end_all, self._workers, os.getpid())
        try:
            for _ in range(num_workers):
                self._workers.append(_Worker(recipe, step_timeout, int(worker_memory_gb * 1e9)))
        except BaseException:
            self.close()
            raise

    def run(self, requests: Sequence[Request]) -> list[Result]:
        """Answers all requests, in their order; those of one slot are taken in order too.

        An `InfrastructureError` is returned as a value: kind `timeout` for the request that took too long, `worker` for
        a worker that died over a request, for an exception of the environment itself, for an answer that is none, and
        for steps of slots without a live episode; `verifier` for a reward that is no finite number. Those that lost
        their episode or answer only because they shared a worker have `lost` set.
        """
        if self._closed:
            raise RuntimeError("the environment pool is closed")
        if self._local is not None:
            return [self._local.answer(request) for request in requests]
        shares: dict[int, dict[int, Request]] = collections.defaultdict(dict)
        for index, request in enumerate(requests):
            shares[request.slot % len(self._workers)][index] = request
        results: dict[int, Result] = {}
        busy = [self._workers[number] for number in shares]
        try:
            for worker in busy:
                worker.await_start()
            for worker, share in zip(busy, shares.values(), strict=True):
                results.update(worker.begin(share))
            _gather(busy, results)
        except BaseException:  # an interrupt: answers on their way would be taken for those of the next call
            for worker in busy:
                worker.replace()
            raise
        return [results[index] for index in range(len(requests))]

    def rest(self) -> None:
        """To be called while no episode is live: replaces workers that have grown past half of their memory limit.

        The new ones start up while the caller does something else.
        """
        for worker in self._workers:
            if worker.is_overgrown():
                worker.replace()

    def close(self) -> None:
        """Stops all environments and processes; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._local is not None:
            self._local.close()
        self._finalizer()

    def __enter__(self) -> "EnvironmentPool":
        """The pool itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the pool."""
        self.close()


def _check_numbers(num_workers: int, step_timeout: float, worker_memory_gb: float) -> None:
    if num_workers < 0:
        raise UserError(f"env.workers must be 0 or more, got {num_workers}")
    if not 0 < step_timeout < math.inf:
        raise UserError(f"env.step_timeout must be a positive number of seconds, got {step_timeout}")
    if not (worker_memory_gb == 0 or 0.2 <= worker_memory_gb < math.inf):
        raise UserError(f"env.worker_memory_gb must be 0 (no limit) or at least 0.2, got {worker_memory_gb}")


def _gather(busy: list["_Worker"], results: dict[int, Result]) -> None:
    """Waits until every worker has answered all of its requests or has been given up."""
    while busy := [worker for worker in busy if worker.pending]:
        patience = min(worker.deadline for worker in busy) - time.monotonic()
        ready = multiprocessing.connection.wait([worker.connection for worker in busy], max(patience, 0.0))
        for worker in busy:
            if worker.connection in ready:
                results.update(worker.receive())
            elif time.monotonic() >= worker.deadline:
                results.update(worker.give_up("timeout", f"no answer within {worker.timeout} s"))


def _end_all(workers: list["_Worker"], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the caller, whose workers these are not
        return
    for worker in workers:
        worker.dismiss()
    deadline = time.monotonic() + _CLOSE_SECONDS
    for worker in workers:
        worker.end(max(deadline - time.monotonic(), 0.0))


class _Worker:
    """The caller's side of one worker process; it starts at once and is waited for at its first request."""

    def __init__(self, recipe: Recipe, timeout: float, memory_bytes: int) -> None:
        self.timeout = timeout
        self._recipe = recipe
        self._memory_bytes = memory_bytes
        self._start()

    def await_start(self) -> None:
        """Waits until the process is up with its environment loaded; what went wrong is told at the next request."""
        if self._ready or self._fault:
            return
        try:
            if not self.connection.poll(max(self._started + START_SECONDS - time.monotonic(), 0.0)):
                self._fault = f"not started within {START_SECONDS} s"
            elif (message := self.connection.recv()) != _READY:
                self._fault = f"the worker process cannot start: {message}"
            else:
                self._ready = True
        except (OSError, EOFError):
            self._fault = self._obituary()

    def begin(self, requests: Mapping[int, Request]) -> dict[int, Result]:
        """Takes requests by index and sends the first; returns results only where they failed already."""
        self.pending = collections.deque(requests.items())
        if self._fault:
            return self.give_up("worker", self._fault, lost=False)
        return self._send_next()

    def receive(self) -> dict[int, Result]:
        """Takes the answer that has come, by index, and sends the next request."""
        try:
            result = self.connection.recv()
        except BlockingIOError:
            return self.give_up("timeout", f"no whole answer within {self.timeout} s")
        except (OSError, EOFError):
            return self.give_up("worker", self._obituary())
        except Exception as error:  # an answer that this process cannot unpickle
            return self.give_up("worker", f"unreadable answer: {error!r:.500}")
        index, _ = self.pending.popleft()
        return {index: result, **self._send_next()}

    def give_up(self, kind: InfrastructureKind, message: str, *, lost: bool = True) -> dict[int, Result]:
        """Replaces the process: the request under way fails with `kind`, those behind it, by index, with the worker.

        `lost`: whether they only shared its worker.
        """
        (first, _), *others = self.pending
        self.replace()
        behind = {
            index: InfrastructureError("worker", f"lost with its worker ({message})", lost=lost) for index, _ in others
        }
        return {first: InfrastructureError(kind, message), **behind}

    def is_overgrown(self) -> bool:
        """Whether the process holds more memory than a worker should have between episodes."""
        held = _memory_pages(self._process.pid, _RESIDENT) * resource.getpagesize()
        return 0 < self._memory_bytes * RECYCLED_SHARE < held

    def replace(self) -> None:
        """Kills the process and starts another, without the episodes."""
        self.end(0.0)
        self._start()

    def dismiss(self) -> None:
        """Asks the process to leave."""
        with contextlib.suppress(OSError):
            self.connection.send(None)

    def end(self, patience: float) -> None:
        """Waits `patience` seconds for the process to leave, then kills it; nothing that it started is left either."""
        if self._process is None:
            return
        multiprocessing.connection.wait([self._process.sentinel], patience)
        self._bury()
        self._process.close()
        self.connection.close()
        self._process = None

    def _send_next(self) -> dict[int, Result]:
        if not self.pending:
            return {}
        self.deadline = time.monotonic() + self.timeout
        try:
            self.connection.send(self.pending[0][1])
        except BlockingIOError:
            return self.give_up("timeout", f"took no request within {self.timeout} s")
        except OSError:
            return self.give_up("worker", self._obituary())
        return {}

    def _obituary(self) -> str:
        """What the end of the process is reported as; it gets a moment to end by itself."""
        multiprocessing.connection.wait([self._process.sentinel], _CLOSE_SECONDS)
        self._bury()
        return f"the worker process died, exit code {self._process.exitcode}"

    def _bury(self) -> None:
        """Kills the process with its group and reaps it."""
        with contextlib.suppress(OSError):
            # Only while the process is unreaped is its number surely still its own, and that of its group.
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # it may not have had a group yet
        self._process.join()

    def _start(self) -> None:
        self.pending: collections.deque[tuple[int, Request]] = collections.deque()
        self.deadline = 0.0
        self._ready, self._fault = False, ""
        self._started = time.monotonic()
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        _bound_transfers(self.connection, self.timeout)
        # A daemon: the interpreter kills it at exit where `close` was never called.
        process = context.Process(target=_serve, args=(theirs, self._recipe, self._memory_bytes), daemon=True)
        try:
            with _without_main_module():
                process.start()
        except BaseException:
            self.connection.close()
            raise
        finally:
            theirs.close()  # so that the death of the process is the end of the file
        self._process = process


class _Slots:
    """The live environments of one process, one a slot."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._live: dict[int, Environment] = {}
        self._spare: list[Environment] = []

    def prepare(self) -> None:
        """Loads what the environment needs, so that no request pays for it; raises whatever that raises."""
        self._spare.append(step_rewards.make_environment(*self._recipe))

    def answer(self, request: Request) -> Result:
        """The environment's answer; every exception of it is a value, and the end of the slot's episode."""
        slot = request.slot
        try:
            if isinstance(request, ResetRequest):
                if slot not in self._live:
                    self._live[slot] = self._fresh()
                return _checked_observation(self._live[slot].reset(request.task, request.seed))
            if slot not in self._live:
                return InfrastructureError("worker", f"slot {slot} has no live episode", lost=True)
            return _checked_result(self._live[slot].step(request.reply))
        except InfrastructureError as error:
            self._drop(slot)
            return error
        except Exception as error:
            self._drop(slot)
            return InfrastructureError("worker", f"{error!r:.500}")

    def close(self) -> None:
        """Closes all environments."""
        for slot in list(self._live):
            self._drop(slot)
        while self._spare:
            with contextlib.suppress(Exception):
                self._spare.pop().close()

    def _fresh(self) -> Environment:
        return self._spare.pop() if self._spare else step_rewards.make_environment(*self._recipe)

    def _drop(self, slot: int) -> None:
        with contextlib.suppress(Exception):  # it failed already, or the run is over
            environment = self._live.pop(slot, None)
            if environment is not None:
                environment.close()


def _checked_observation(observation: Any) -> Observation:
    if not isinstance(observation, Observation) or not isinstance(observation.text, str):
        raise InfrastructureError(
            "worker", f"the environment observed {observation!r:.200}, not an Observation of text"
        )
    return observation


def _checked_result(result: Any) -> StepResult:
    """A step's result that the rest of the run can take: what an environment gets wrong here is never the agent's."""
    if not isinstance(result, StepResult) or not isinstance(result.info, dict):
        raise InfrastructureError("worker", f"the environment's step returned {result!r:.200}, not a StepResult")
    _checked_observation(result.observation)
    if result.ended is not None and result.ended not in get_args(Ended):
        raise InfrastructureError("worker", f"the environment ended with {result.ended!r}")
    for reward in (result.reward, result.info.get("step_reward", 0.0)):
        if isinstance(reward, str) or not math.isfinite(float(reward)):
            raise InfrastructureError("verifier", f"the reward is {reward!r}, not a finite number")
    return result


def _serve(connection: multiprocessing.connection.Connection, recipe: Recipe, memory_bytes: int) -> None:
    """The worker process: one request in, one answer out, until None or the end of the caller."""
    os.setsid()  # a group of its own, so that whatever it starts can be ended with it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    if memory_bytes:
        # On top of what the interpreter and its libraries have mapped by now: stacks of many threads, on large hosts.
        limit = memory_bytes + _memory_pages("self", _DATA) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    slots = _Slots(recipe)
    with contextlib.suppress(EOFError, OSError):  # the caller is gone
        try:
            slots.prepare()
        except Exception as error:
            connection.send(f"{error!r:.500}")
            return
        connection.send(_READY)
        while (request := connection.recv()) is not None:
            _send(connection, slots.answer(request))
    slots.close()


def _end_with_the_caller() -> None:
    """Ends this process and what it started as soon as the caller has died, whatever a step is doing."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _send(connection: multiprocessing.connection.Connection, result: Result) -> None:
    try:
        connection.send(result)
    except OSError:
        raise
    except Exception as error:
        connection.send(InfrastructureError("worker", f"unsendable answer: {error!r:.500}"))


def _bound_transfers(connection: multiprocessing.connection.Connection, seconds: float) -> None:
    """Makes a read or write that stalls for `seconds` in the middle of a message raise `BlockingIOError`."""
    whole = int(seconds)
    interval = struct.pack("ll", whole, max(int((seconds - whole) * 1e6), 1 if not whole else 0))
    with socket.socket(
        fileno=os.dup(connection.fileno())
    ) as twin:  # the same socket: options are its, not the number's
        twin.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)
        twin.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)


def _memory_pages(process: int | str, field: int) -> int:
    """A field of `/proc/PROCESS/statm`; 0 where the system has none or the process is gone."""
    try:
        return int(pathlib.Path(f"/proc/{process}/statm").read_text().split()[field])
    except (OSError, IndexError):
        return 0


@contextlib.contextmanager
def _without_main_module() -> Iterator[None]:
    """Hides the caller's main module from spawn, which would import it in the child.

    It may import jax, or lack the guard against starting processes when imported.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
