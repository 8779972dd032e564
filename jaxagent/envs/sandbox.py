"""Runs programs that a model wrote, one process in one fresh sandbox a run, and says how each ended.

    with Sandbox(SandboxOptions()) as sandbox:
        for outcome in sandbox.run([Script("print(input())", stdin=b"1"), Calls("def f(x): ...", (Call("f", [1]),))]):
            outcome.kind, outcome.stdout, outcome.values

A program sees a bare Python, no network, no files but the standard library, and nothing that it could write to. It
gets the input of one test and never what is expected of it: comparing is the caller's, out of reach. What a program
returns is plain data, read as claims (`sandbox_guest`). How it ended comes from the kernel (exit status, clock, memory
counters), never from what it printed. When a run is over, no process of it is left.
"""

import atexit
import collections
import contextlib
import dataclasses
import functools
import json
import marshal
import math
import os
import pathlib
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from jaxagent.envs import sandbox_guest, sandbox_layers
from jaxagent.envs.base import InfrastructureError
from jaxagent.errors import UserError

Kind = Literal["ok", "exit", "signal", "time", "memory", "output", "syntax", "failed"]
_GUEST = pathlib.Path(sandbox_guest.__file__).read_text(encoding="utf-8")
_START_SECONDS = 30.0  # what a sandbox may take until its interpreter is up, on a busy machine
_STARTS = 3  # tries until the machinery counts as broken
_POLL_SECONDS = 0.01
_CHUNK = 1 << 16
_STDERR_BYTES = 1 << 16
_REPORT_BYTES = 1 << 20  # of returned values


@dataclasses.dataclass(frozen=True)
class SandboxOptions:
    """Limits of one program, and how many run at once.

    Attributes:
      seconds: wall clock from the start of the program to its end.
      memory_mb: address space of a process; where control groups are to be had, also all memory of the sandbox.
      processes: processes and threads of a sandbox.
      output_kb: of standard output. Standard error is cut at 64 KB instead; returned values may take 1 MB.
      file_kb: size of a file. A sandbox has no place to write one; without isolation a program has.
      parallel: programs that run at once.
      warm: sandboxes kept started for the next programs; 0 starts each when it is needed.
      allow_unsandboxed: run programs without isolation where bubblewrap does not work. For programs that you trust.
    """

    seconds: float = 6.0
    memory_mb: int = 512
    processes: int = 16
    output_kb: int = 4096
    file_kb: int = 0
    parallel: int = 2
    warm: int = 2
    allow_unsandboxed: bool = False

    def __post_init__(self) -> None:
        """Raises `UserError` on a bad value."""
        for name, least in (("seconds", 0.1), ("memory_mb", 64), ("processes", 1), ("output_kb", 1), ("file_kb", 0)):
            _require_number(name, getattr(self, name), least, whole=name != "seconds")
        _require_number("parallel", self.parallel, 1, whole=True)
        _require_number("warm", self.warm, 0, whole=True)
        if not isinstance(self.allow_unsandboxed, bool):
            raise UserError(f"sandbox.allow_unsandboxed must be True or False, got {self.allow_unsandboxed!r}")


@dataclasses.dataclass(frozen=True)
class Script:
    """A whole program that reads `stdin` and prints. `fingerprint`: also hash its syntax tree."""

    source: str
    stdin: bytes = b""
    fingerprint: bool = False


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a function (or of a method of the program's class `Solution`) with plain data."""

    name: str
    arguments: Sequence[Any]
    keywords: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Calls:
    """A program that defines functions, and calls of them, in order and in one process."""

    source: str
    calls: Sequence[Call]
    prelude: str = ""
    fingerprint: bool = False


@dataclasses.dataclass(frozen=True)
class Check:
    """A program that defines functions, and a test that calls them: code of a data set, with asserts.

    The test runs in a sandbox of its own, where `targets` are stand-ins that pass each call to the program's sandbox
    and its result back as plain data. So what the test expects is never where the program is, and the program's objects
    (with an `__eq__` of their own, say) are never where the test is. `context` is run before the test, also there.
    """

    source: str
    test: str
    targets: Sequence[str]
    context: str = ""
    prelude: str = ""
    fingerprint: bool = False


Job = Script | Calls | Check


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended.

    `kind`: `ok` (exit code 0; of a check: passed), `failed` (a check's assert did not hold), `exit` (another code, 1
    for an exception), `signal`, `time`, `memory`, `output` (too much of it), `syntax`. `values` are the results of
    calls so far, decoded. `detail`: an exit code, a signal, or what is wrong with the syntax and where.
    """

    kind: Kind
    stdout: str = ""
    stderr: str = ""
    values: tuple[Any, ...] = ()
    detail: str = ""
    fingerprint: str | None = None
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Layers:
    """Which walls stand. `bubblewrap` off is no isolation at all."""

    bubblewrap: bool = False
    seccomp: bool = False
    landlock: bool = False
    control_groups: bool = False


class Sandbox:
    """Starts and ends sandboxes. One thread at a time uses it; others wait. A context manager, or `close` it."""

    def __init__(self, options: SandboxOptions, layers: Layers | None = None) -> None:
        """`layers`: None takes all that work here.

        Raises `UserError` where no isolation is to be had and `options.allow_unsandboxed` is not set.
        """
        self.options = options
        self.layers = _usable_layers(options) if layers is None else layers
        self.interpreter = _interpreter()
        self._lock = threading.RLock()  # an iterator that its thread has left open must not block it
        self._groups: list[sandbox_layers.ControlGroup] = []
        self._warm: collections.deque[_Guest] = collections.deque()
        self._closed = False
        if self.layers.control_groups:
            sandbox_layers.remove_stale_groups()

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """The outcomes of `jobs`, in order. Leaving the iterator early ends what still runs.

        Raises `InfrastructureError("sandbox")` where sandboxes fail to start or are killed from outside.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the sandbox is closed")
            queue = collections.deque(enumerate(jobs))
            running: dict[int, _Run] = {}
            ended: dict[int, Outcome] = {}
            try:
                for index in range(len(jobs)):
                    while index not in ended:
                        while queue and len(running) < self.options.parallel:
                            number, job = queue.popleft()
                            running[number] = self._begin(job)
                        ended.update(self._drive(running))
                    yield ended.pop(index)
            finally:
                for run in running.values():
                    self._release(run)
                with contextlib.suppress(InfrastructureError):  # whoever needs the next one will be told
                    self._top_up(self.options.warm)

    def close(self) -> None:
        """Ends all sandboxes; safe to call twice."""
        with self._lock:
            self._closed = True
            while self._warm:
                self._discard(self._warm.popleft())
            while self._groups:
                self._groups.pop().remove()

    def __enter__(self) -> "Sandbox":
        """The sandbox itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the sandbox."""
        self.close()

    def _begin(self, job: Job) -> "_Run":
        program = self._next_guest()
        try:
            test = self._next_guest() if isinstance(job, Check) else None
        except BaseException:
            self._discard(program)
            raise
        return _Run(job, program, test, self.options.seconds)

    def _drive(self, running: dict[int, "_Run"]) -> dict[int, Outcome]:
        """Waits until something happens; returns the runs that ended by it and takes them out of `running`."""
        with selectors.DefaultSelector() as selector:
            for run in running.values():
                run.register(selector)
            patience = min(run.deadline for run in running.values()) - time.monotonic()
            if not hasattr(os, "pidfd_open"):
                patience = min(patience, _POLL_SECONDS)
            for key, _ in selector.select(max(patience, 0.0)):
                guest, name = key.data
                guest.handle(name)
        ended = {}
        for number, run in list(running.items()):
            if run.begun is None and not self._started(run):
                continue
            run.route()
            if run.ended or time.monotonic() >= run.deadline:
                del running[number]
                try:
                    ended[number] = run.outcome()
                finally:
                    self._release(run)
        return ended

    def _started(self, run: "_Run") -> bool:
        """Begins a run whose guests are up; replaces those that never will be, up to a number of times."""
        if run.begin():
            self._top_up(min(self.options.warm, self.options.parallel))
            return True
        for guest in run.failed_guests():
            complaint = guest.stderr_text() or "no word from it"
            if guest.group is not None:  # it may be what is broken: not to be used again
                guest.end()
                guest.group.remove()
                guest.group = None
            self._discard(guest)
            if run.failures >= _STARTS + self.options.warm:
                raise InfrastructureError("sandbox", f"does not start: {complaint}")
            run.replace(guest, self._next_guest())
        return False

    def _next_guest(self) -> "_Guest":
        """A warm guest or a new one; not one of another thread, with which it would die."""
        while self._warm:
            guest = self._warm.popleft()
            if guest.thread is threading.current_thread():
                return guest
            self._discard(guest)
        return self._start()

    def _top_up(self, wanted: int) -> None:
        while len(self._warm) < wanted and not self._closed:
            self._warm.append(self._start())

    def _start(self) -> "_Guest":
        try:
            return _Guest(self.options, self.layers, self.interpreter, self._free_group())
        except OSError as error:
            raise InfrastructureError("sandbox", f"does not start: {error}") from error

    def _free_group(self) -> sandbox_layers.ControlGroup | None:
        if not self.layers.control_groups:
            return None
        if not self._groups:
            processes = self.options.processes + 1  # bubblewrap's outer process is in it too
            memory = self.options.memory_mb << 20
            self._groups.append(sandbox_layers.ControlGroup(sandbox_layers.group_folder(), memory, processes))
        return self._groups.pop()

    def _release(self, run: "_Run") -> None:
        for guest in run.guests:
            self._discard(guest)

    def _discard(self, guest: "_Guest") -> None:
        guest.end()
        if guest.group is not None:
            self._groups.append(guest.group)
            guest.group = None


class _Guest:
    """The host's side of one sandbox: a process, what goes in and what came out."""

    def __init__(
        self,
        options: SandboxOptions,
        layers: Layers,
        interpreter: sandbox_layers.Interpreter,
        group: sandbox_layers.ControlGroup | None,
    ) -> None:
        self.group = group
        self.thread = threading.current_thread()
        self.lines: collections.deque[bytes] = collections.deque()
        self.stdout, self.stderr, self.reported = bytearray(), bytearray(), 0
        self.status: int | None = None
        self._oom_kills = group.out_of_memory_kills() if group else 0
        self._limit = options.output_kb << 10
        self._pending, self._partial = memoryview(b""), bytearray()
        self._closing = self._up = False
        self._isolated = layers.bubblewrap
        report_read, report_write = os.pipe()
        seccomp = sandbox_layers.open_seccomp_filter() if layers.seccomp else None
        command = _command(options, layers, interpreter, report_write, seccomp)
        if group is not None:
            command = sandbox_layers.grouped_command(command, group)
        kept = tuple(fd for fd in (report_write, seccomp) if fd is not None)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=kept,
                env={"PATH": os.environ.get("PATH", os.defpath)} if layers.bubblewrap else sandbox_layers.ENVIRONMENT,
                start_new_session=not layers.bubblewrap,
                cwd="/",
            )
        except BaseException:
            os.close(report_read)
            raise
        finally:
            for descriptor in kept:
                os.close(descriptor)
        self._open: dict[str, int] = {
            "stdout": self._process.stdout.fileno(),
            "stderr": self._process.stderr.fileno(),
            "report": report_read,
        }
        self._report = report_read
        # Readable when the process has ended; some builds of Python lack the call, then `_drive` looks again and again.
        self._exit = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else -1
        for descriptor in (*self._open.values(), self._process.stdin.fileno()):
            os.set_blocking(descriptor, False)

    def is_up(self) -> bool:
        """Whether the interpreter waits for its program."""
        if not self._up and self.lines:
            self._up = self.lines.popleft() == b"ready"
        return self._up and self._process.poll() is None

    def is_lost(self) -> bool:
        """Whether a guest that has no program yet has ended."""
        return self._process.poll() is not None and not (self.lines and self.is_up())

    def send(self, message: object, rest: bytes = b"", *, last: bool) -> None:
        """Queues a message, then plain bytes; `last` is the end of the input."""
        body = marshal.dumps(message, 2)
        queued = bytes(self._pending) + len(body).to_bytes(4, "little") + body + rest
        self._pending, self._closing = memoryview(queued), last
        self.handle("stdin")

    def close_input(self) -> None:
        """Ends the input after what is queued."""
        self._closing = True
        self.handle("stdin")

    def register(self, selector: selectors.BaseSelector) -> None:
        """Everything that this guest waits for."""
        for name, descriptor in self._open.items():
            selector.register(descriptor, selectors.EVENT_READ, (self, name))
        if self.status is None and self._exit >= 0:
            selector.register(self._exit, selectors.EVENT_READ, (self, "exit"))
        if self._pending and not self._process.stdin.closed:
            selector.register(self._process.stdin.fileno(), selectors.EVENT_WRITE, (self, "stdin"))

    def handle(self, name: str) -> None:
        """Moves what can be moved through one of the pipes."""
        if name == "stdin":
            self._write()
            return
        if name == "exit":
            self.status = self._process.poll()
            return
        try:
            data = os.read(self._open[name], _CHUNK)
        except BlockingIOError:
            return
        if not data:
            del self._open[name]
        elif name == "stdout":
            self.stdout += data
        elif name == "stderr":
            self.stderr += data[: max(_STDERR_BYTES - len(self.stderr), 0)]
        else:
            self.reported += len(data)
            *lines, rest = (self._partial + data).split(b"\n")
            self.lines.extend(bytes(line) for line in lines)
            self._partial = bytearray(rest)

    @property
    def too_much(self) -> bool:
        """More output than a program may have."""
        return len(self.stdout) > self._limit or self.reported > _REPORT_BYTES

    @property
    def ended(self) -> bool:
        """Whether its process has ended and all that it wrote was read; a child may still hold a pipe open."""
        if self.status is None:
            self.status = self._process.poll()
        return self.status is not None and not self._readable()

    def _readable(self) -> bool:
        if not self._open:
            return False
        with selectors.DefaultSelector() as selector:
            for descriptor in self._open.values():
                selector.register(descriptor, selectors.EVENT_READ)
            return bool(selector.select(0))

    def stderr_text(self) -> str:
        """Standard error, as text."""
        return self.stderr.decode(errors="replace").strip()

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed one of its processes for memory."""
        return self.group is not None and self.group.out_of_memory_kills() > self._oom_kills

    def end(self) -> None:
        """Kills what is left and waits for it; the kernel has then ended every process of the sandbox."""
        if self._process.returncode is None:
            self._kill()
        elif not self._isolated:
            self._kill_session()
        self.status = self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                stream.close()
        if self._report >= 0:
            os.close(self._report)
            if self._exit >= 0:
                os.close(self._exit)
            self._report = self._exit = -1
        self._open = {}

    def _kill(self) -> None:
        """Kills process 1 of the sandbox, which the outer process then buries; the outer one where there is none."""
        if not self._isolated:
            self._kill_session()
            return
        outer = self._process.pid
        children: list[str] = []
        with contextlib.suppress(OSError):
            children = pathlib.Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        for child in children:  # ours until the outer process, which we have not waited for, has buried it
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        try:
            self._process.wait(1.0 if children else 0.0)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _kill_session(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _write(self) -> None:
        stdin = self._process.stdin
        if stdin.closed:
            return
        try:
            while self._pending:
                self._pending = self._pending[os.write(stdin.fileno(), self._pending[: 16 * _CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # the program does not read its input, or is gone
            self._pending, self._closing = memoryview(b""), True
        if self._closing:
            stdin.close()


class _Run:
    """One job under way: the program's guest and, for a check, the test's."""

    def __init__(self, job: Job, program: _Guest, test: _Guest | None, seconds: float) -> None:
        """`seconds`: what the program gets from the moment when its guests are up."""
        self.job, self.program, self.test, self._seconds = job, program, test, seconds
        self.begun: float | None = None
        self.deadline = time.monotonic() + _START_SECONDS
        self.failures = 0
        self.compiled = self.fingerprint = self.syntax = self.verdict = None
        self.values: list[Any] = []
        self.answered = 0  # calls of the test that the program has answered
        self.broken = ""  # an answer that is no plain data

    @property
    def guests(self) -> list[_Guest]:
        """The program's guest and, for a check, the test's."""
        return [guest for guest in (self.program, self.test) if guest is not None]

    def begin(self) -> bool:
        """Hands the job out where all guests are up; the clock starts."""
        if not all(guest.is_up() for guest in self.guests):
            return False
        self.begun = time.monotonic()
        self.deadline = self.begun + self._seconds
        job, program = self.job, self.program
        prelude = "" if isinstance(job, Script) else job.prelude
        mode = "script" if isinstance(job, Script) else "calls"
        order = {"mode": mode, "source": job.source, "prelude": prelude, "fingerprint": job.fingerprint}
        program.send(order, job.stdin if isinstance(job, Script) else b"", last=isinstance(job, Script))
        if isinstance(job, Calls):
            for call in job.calls:
                program.send(_call_message(call), last=False)
            program.close_input()
        elif isinstance(job, Check):
            order = {"mode": "check", "source": job.test, "prelude": job.context, "fingerprint": False}
            self.test.send({**order, "targets": list(job.targets)}, last=False)
        return True

    def failed_guests(self) -> list[_Guest]:
        """The guests that ended before they were up, or all that are not once the time to start is over."""
        late = time.monotonic() >= self.deadline
        return [guest for guest in self.guests if guest.is_lost() or (late and not guest.is_up())]

    def replace(self, lost: _Guest, guest: _Guest) -> None:
        """Another guest in the place of a lost one."""
        self.failures += 1
        self.deadline = time.monotonic() + _START_SECONDS
        if lost is self.program:
            self.program = guest
        else:
            self.test = guest

    @property
    def ended(self) -> bool:
        """Whether the verdict is known."""
        if self.program.too_much or self.broken or (self.test is not None and self.verdict):
            return True
        return self.program.ended or (self.test is not None and self.test.ended)

    def register(self, selector: selectors.BaseSelector) -> None:
        """Everything that this run waits for."""
        for guest in self.guests:
            guest.register(selector)

    def route(self) -> None:
        """Takes the lines that have come, and passes calls and results on."""
        lines = self.program.lines
        if self.compiled is None and lines:
            self._first_word(lines.popleft().decode("ascii", "replace"))
        while lines and not isinstance(self.job, Script):
            self._result(lines.popleft())
        while self.test is not None and self.test.lines:
            word, _, rest = self.test.lines.popleft().partition(b" ")
            if word in (b"passed", b"failed"):
                self.verdict = f"{word.decode()} {rest.decode()}".strip()
            elif word == b"call":
                name, arguments, keywords = json.loads(rest)
                self.program.send([name, arguments, keywords], last=False)

    def outcome(self) -> Outcome:
        """What to say of it; ends the guests first, so that exit statuses and counters are final."""
        program = self.program
        late = not self.ended
        seconds = time.monotonic() - self.begun
        if not program.ended and self.test is not None and self.test.ended and not self.verdict:
            if not self.answered:
                raise InfrastructureError("verifier", f"a test without a verdict: {self.test.stderr_text()[-300:]}")
            self.broken = "returned what the test cannot take"
        for guest in self.guests:
            guest.end()
        kind, detail = self._ending(late=late)
        return Outcome(
            kind=kind,
            stdout=program.stdout.decode(errors="replace"),
            stderr=program.stderr_text(),
            values=tuple(self.values),
            detail=detail,
            fingerprint=self.fingerprint,
            seconds=seconds,
        )

    def _ending(self, *, late: bool) -> tuple[Kind, str]:
        program, status = self.program, self.program.status
        if self.syntax is not None:
            return "syntax", self.syntax
        if program.too_much:
            return "output", ""
        if program.ran_out_of_memory():
            return "memory", ""
        if late:
            return "time", ""
        if self.broken:
            return "exit", self.broken
        if self.verdict is not None:
            return ("ok", "") if self.verdict == "passed" else ("failed", self.verdict.removeprefix("failed").strip())
        if status < 0 and program._isolated:
            raise InfrastructureError("sandbox", f"killed from outside by signal {-status}")
        code = 128 - status if status < 0 else status
        if self.compiled is None:
            return "syntax", "the program cannot be compiled"
        if code == sandbox_guest.OUT_OF_MEMORY:
            return "memory", ""
        if code > 128:
            return "signal", _signal_name(code - 128)
        if code == 0 and not isinstance(self.job, Script) and not self._all_answered():
            return "exit", "ended before it returned"
        return ("ok", "") if code == 0 else ("exit", str(code))

    def _all_answered(self) -> bool:
        return isinstance(self.job, Calls) and len(self.values) == len(self.job.calls)

    def _first_word(self, line: str) -> None:
        """The one line that was written before anything of the program ran."""
        word, _, rest = line.partition(" ")
        self.compiled = word == "compiled"
        if self.compiled:
            self.fingerprint = rest if rest != "-" else None
        else:
            number, _, reason = rest.partition(" ")
            self.syntax = f"line {number}: {reason}" if number != "0" else reason

    def _result(self, line: bytes) -> None:
        """One line that claims to be a result."""
        try:
            word, _, text = line.partition(b" ")
            if word != b"value":
                raise ValueError("no value")
            tree = json.loads(text)
            if self.test is None:
                self.values.append(sandbox_guest.decode(tree))
            else:
                self.answered += 1
                self.test.send([tree], last=False)
        except (ValueError, TypeError, KeyError, RecursionError, AttributeError, OverflowError):
            self.broken = "returned what is no plain data"


@functools.cache
def shared_sandbox(options: SandboxOptions) -> Sandbox:
    """The sandbox of this process with these options; closed when the process ends.

    Raises as `Sandbox` does.
    """
    sandbox = Sandbox(options)
    atexit.register(sandbox.close)
    return sandbox


@functools.cache
def isolation() -> tuple[Layers | None, str]:
    """What works on this machine, tried once, and where nothing does (None) why."""
    if not sandbox_layers.has_bubblewrap():
        return None, "bubblewrap is not installed (Debian, Ubuntu: apt-get install bubblewrap)"
    layers = Layers(bubblewrap=True)
    complaint = _try_layers(layers)
    if complaint:
        return None, f"bubblewrap does not work here: {complaint}"
    for wall, present in (
        ("seccomp", sandbox_layers.seccomp_filter() is not None),
        ("landlock", sandbox_guest.landlock_version() > 0),
        ("control_groups", sandbox_layers.control_group_parent() is not None),
    ):
        one_more = dataclasses.replace(layers, **{wall: True})
        if present and not _try_layers(one_more):
            layers = one_more
    return layers, ""


def _try_layers(layers: Layers) -> str:
    """Runs one program behind `layers`; what went wrong, empty where nothing did."""
    try:
        with Sandbox(SandboxOptions(seconds=20.0, warm=0), layers) as sandbox:
            (outcome,) = sandbox.run([Script("print(input())", stdin=b"up")])
    except (InfrastructureError, OSError) as error:
        return " ".join(str(error).split())[:300]
    return "" if outcome.stdout == "up\n" else f"{outcome.kind} {outcome.stderr[-200:]}"


def _usable_layers(options: SandboxOptions) -> Layers:
    layers, complaint = isolation()
    if layers is not None:
        return layers
    if options.allow_unsandboxed and os.name == "posix":
        return Layers()
    raise UserError(
        f"no sandbox for programs that a model writes: {complaint}; install or allow it, or accept programs without "
        "isolation, with all rights of this process, by --config.env.options.sandbox.allow_unsandboxed=True"
    )


@functools.cache
def _interpreter() -> sandbox_layers.Interpreter:
    found = sandbox_layers.find_interpreter()
    if found is None:
        raise UserError("no Python 3.10 or later that a sandbox can reach: install one at /usr/bin/python3")
    return found


def _command(
    options: SandboxOptions,
    layers: Layers,
    interpreter: sandbox_layers.Interpreter,
    report: int,
    seccomp: int | None,
) -> list[str]:
    cpu_seconds = int(options.seconds * (os.cpu_count() or 1)) + 2  # a backstop where nobody is left to keep the clock
    processes = options.processes if layers.bubblewrap else 0  # outside a user namespace all of a user's would count
    limits = (options.memory_mb << 20, processes, cpu_seconds, options.file_kb << 10)
    landlock = (sandbox_guest.landlock_version() or -1) if layers.landlock else 0  # -1: the guest refuses to run
    arguments = [str(number) for number in (report, landlock, *limits)]
    if layers.bubblewrap:
        return sandbox_layers.bubblewrap_command(interpreter, _GUEST, arguments, seccomp)
    return sandbox_layers.python_command(interpreter, _GUEST, arguments)


def _call_message(call: Call) -> list[Any]:
    """A call as the guest decodes it."""
    encoded = [sandbox_guest.encode(part) for part in (list(call.arguments), dict(call.keywords))]
    return [call.name, *map(json.loads, encoded)]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _require_number(name: str, value: Any, least: float, *, whole: bool) -> None:
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < math.inf:
        raise UserError(
            f"sandbox.{name} must be {'a whole number' if whole else 'a number'} from {least} on, got {value!r}"
        )
