"""Environments behind one call for many slots: in this process, or in worker processes that cannot take the run down.

A worker that dies or hangs costs its own slots their episodes, as `InfrastructureError` values, and is replaced.
"""

import collections
import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import signal
import sys
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxagent.envs import step_rewards
from jaxagent.envs.base import Environment, InfrastructureError, InfrastructureKind, Observation, StepResult
from jaxagent.episodes import Task
from jaxagent.errors import UserError

START_SECONDS = 120.0  # a worker that is not up by then counts as dead
_CLOSE_SECONDS = 2.0  # what workers get to leave by themselves
_READY = "ready"


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
    name and never see the caller's main module, so they import neither jax nor a training script. Use it as a context
    manager or call `close`.
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
    ) -> None:
        """`step_timeout`: seconds one reset or step may take in a worker; it cannot be enforced inside this process.
        `step_reward`: the rule of `step_rewards.make_environment`, applied where the environment runs.

        Raises `UserError` on an unknown environment, a bad option or a bad number, before any process starts.
        """
        if num_workers < 0:
            raise UserError(f"env.workers must be 0 or more, got {num_workers}")
        if not step_timeout > 0:
            raise UserError(f"env.step_timeout must be a positive number of seconds, got {step_timeout}")
        recipe = (env_name, dict(options), step_reward, step_reward_scale)
        step_rewards.make_environment(*recipe).close()
        self._timeout = step_timeout
        self._closed = False
        self._local = _Slots(recipe) if num_workers == 0 else None
        self._workers = [_Worker(recipe, step_timeout) for _ in range(num_workers)]

    def run(self, requests: Sequence[Request]) -> list[Result]:
        """Answers all requests, in their order; those of one slot are taken in order too.

        An `InfrastructureError` is returned as a value: kind `timeout` for the request that took too long, `worker` for
        those that were lost with the worker, for steps of slots without a live episode (their worker died) and for any
        exception of the environment itself.
        """
        if self._closed:
            raise RuntimeError("the environment pool is closed")
        if self._local is not None:
            return [self._local.answer(request) for request in requests]
        shares: dict[int, list[int]] = collections.defaultdict(list)
        for index, request in enumerate(requests):
            shares[request.slot % len(self._workers)].append(index)
        results: dict[int, Result] = {}
        busy = [self._workers[number] for number in shares]
        try:
            for worker, share in zip(busy, shares.values(), strict=True):
                results.update(worker.begin({index: requests[index] for index in share}))
            self._gather(busy, results)
        except BaseException:  # an interrupt: answers on their way would be taken for those of the next call
            for worker in busy:
                worker.replace()
            raise
        return [results[index] for index in range(len(requests))]

    def _gather(self, busy: list["_Worker"], results: dict[int, Result]) -> None:
        """Waits until every worker has answered or has been given up."""
        while busy := [worker for worker in busy if worker.pending]:
            patience = min(worker.deadline for worker in busy) - time.monotonic()
            ready = multiprocessing.connection.wait([worker.connection for worker in busy], max(patience, 0.0))
            for worker in busy:
                if worker.connection in ready:
                    results.update(worker.receive())
                elif time.monotonic() >= worker.deadline:
                    results.update(worker.give_up("timeout", f"no answer within {self._timeout} s"))

    def close(self) -> None:
        """Stops all environments and processes; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._local is not None:
            self._local.close()
        for worker in self._workers:
            worker.dismiss()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for worker in self._workers:
            worker.end(max(deadline - time.monotonic(), 0.0))

    def __enter__(self) -> "EnvironmentPool":
        """The pool itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the pool."""
        self.close()


class _Worker:
    """The caller's side of one worker process; it starts at once and is waited for at its first request."""

    def __init__(self, recipe: Recipe, timeout: float) -> None:
        self._recipe = recipe
        self._timeout = timeout
        self._start()

    def begin(self, requests: Mapping[int, Request]) -> dict[int, Result]:
        """Sends requests by index; returns results only where they failed already."""
        self.pending = collections.deque(requests)
        try:
            if not self._ready:
                if not self.connection.poll(START_SECONDS):
                    return self.give_up("worker", f"not started within {START_SECONDS} s")
                self.connection.recv()
                self._ready = True
            self.connection.send(list(requests.values()))
        except (OSError, EOFError):
            return self._give_up_dead()
        self.deadline = time.monotonic() + self._timeout
        return {}

    def receive(self) -> dict[int, Result]:
        """Takes the next answer, by index."""
        try:
            result = self.connection.recv()
        except (OSError, EOFError):
            return self._give_up_dead()
        except Exception as error:  # an answer that this process cannot unpickle
            return self.give_up("worker", f"unreadable answer: {error!r}")
        self.deadline = time.monotonic() + self._timeout
        return {self.pending.popleft(): result}

    def give_up(self, kind: InfrastructureKind, message: str) -> dict[int, Result]:
        """Replaces the process; the pending requests, by index, are errors: the first of this kind, the others lost."""
        first, *others = self.pending
        lost = "lost with its worker process"
        self.replace()
        return {first: InfrastructureError(kind, message), **{i: InfrastructureError("worker", lost) for i in others}}

    def replace(self) -> None:
        """Kills the process and starts another, without the episodes."""
        self.end(0.0)
        self._start()

    def dismiss(self) -> None:
        """Asks the process to leave."""
        with contextlib.suppress(OSError):
            self.connection.send(None)

    def end(self, patience: float) -> None:
        """Waits `patience` seconds for the process to leave, then kills it; nothing of it is left."""
        self._process.join(patience)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._process.close()
        self.connection.close()

    def _give_up_dead(self) -> dict[int, Result]:
        self._process.join(_CLOSE_SECONDS)
        return self.give_up("worker", f"the worker process died, exit code {self._process.exitcode}")

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        # A daemon: the interpreter kills it at exit where `close` was never called.
        self._process = context.Process(target=_serve, args=(theirs, self._recipe), daemon=True)
        with _without_main_module():
            self._process.start()
        theirs.close()  # so that the death of the process is the end of the file
        self.pending: collections.deque[int] = collections.deque()
        self.deadline = 0.0
        self._ready = False


class _Slots:
    """The live environments of one process, one a slot."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._live: dict[int, Environment] = {}

    def answer(self, request: Request) -> Result:
        """The environment's answer; every exception of it is a value, and the end of the slot's episode."""
        slot = request.slot
        try:
            if isinstance(request, ResetRequest):
                if slot not in self._live:
                    self._live[slot] = step_rewards.make_environment(*self._recipe)
                return self._live[slot].reset(request.task, request.seed)
            if slot not in self._live:
                return InfrastructureError("worker", f"slot {slot} has no live episode")
            return self._live[slot].step(request.reply)
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

    def _drop(self, slot: int) -> None:
        with contextlib.suppress(Exception):  # it failed already, or the run is over
            environment = self._live.pop(slot, None)
            if environment is not None:
                environment.close()


def _serve(connection: multiprocessing.connection.Connection, recipe: Recipe) -> None:
    """The worker process: lists of requests in, one answer a request out, until None or the end of the caller."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal group; the caller decides
    slots = _Slots(recipe)
    with contextlib.suppress(EOFError, OSError):  # the caller is gone
        connection.send(_READY)
        while (requests := connection.recv()) is not None:
            for request in requests:
                _send(connection, slots.answer(request))
    slots.close()


def _send(connection: multiprocessing.connection.Connection, result: Result) -> None:
    try:
        connection.send(result)
    except OSError:
        raise
    except Exception as error:
        connection.send(InfrastructureError("worker", f"unsendable answer: {error!r:.500}"))


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
