"""The walls of a sandbox: the bubblewrap command line, a seccomp filter and control groups, each where it is to be had.

Bubblewrap is the wall that isolation rests on: own user, process, network, IPC, host-name and mount namespaces, a root
that holds a bare interpreter and nothing to write to. The filter (package `pyseccomp`) also forbids new processes,
sockets and shared memory; control groups also bound what all processes of a sandbox hold together. Landlock is the
guest's own last wall (`sandbox_guest`), since a process under it could not set up the others.
"""

import contextlib
import dataclasses
import errno
import functools
import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

NOBODY = 65534  # the user that sandboxes run as where the caller is root: limits of processes do not bind root
SYSTEM_PYTHON = "/usr/bin/python3"
ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
}  # all that a guest sees; sets have one order
_FLAGS = ("-s", "-S", "-W", "ignore", "-c")
_PROBE = """import sys, sysconfig
print(*sys.version_info[:2], sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), sep="\\n")
"""
_DEVICES = ("null", "zero", "full", "random", "urandom")
# What no program that a judge runs needs, and what would get around a limit or reach another process.
_FORBIDDEN = (
    *("socket", "shmget", "shmat", "semget", "msgget", "mq_open", "memfd_create", "memfd_secret", "fork", "vfork"),
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "setns", "unshare", "mount", "umount2"),
    *("move_mount", "open_tree", "fsopen", "fsmount", "pivot_root", "chroot", "open_by_handle_at", "name_to_handle_at"),
    *("keyctl", "add_key", "request_key", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter"),
    *("init_module", "finit_module", "kexec_load", "fanotify_init", "sched_setscheduler", "sched_setattr", "syslog"),
)
_CLONE_THREAD = 0x10000
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """The Python inside: its binary, the folders of its standard library and the shared libraries that it loads."""

    binary: str
    folders: tuple[str, ...]
    libraries: tuple[str, ...]
    version: tuple[int, int]


def find_interpreter() -> Interpreter | None:
    """The interpreter that runs this, where a sandbox can reach it, else the system's; None without any from 3.10 on.

    Under root a sandbox runs as nobody, who cannot look into a private home.
    """
    own = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    for binary in (own, os.path.realpath(SYSTEM_PYTHON)):
        if not os.access(binary, os.X_OK) or not _reachable(binary):
            continue
        probed = subprocess.run([binary, "-I", "-S", "-c", _PROBE], capture_output=True, text=True, check=False)
        if probed.returncode == 0:
            major, minor, *folders = probed.stdout.split("\n")[:4]
            if (int(major), int(minor)) >= (3, 10):
                unique = tuple(dict.fromkeys(filter(os.path.isdir, folders)))
                return Interpreter(binary, unique, _libraries(binary, unique), (int(major), int(minor)))
    return None


def _reachable(path: str) -> bool:
    """Whether the user that sandboxes run as can walk to `path`."""
    if os.geteuid() != 0:
        return True
    parents = pathlib.Path(path).parents
    return all(parent.stat().st_mode & 0o001 for parent in parents) and bool(os.stat(path).st_mode & 0o001)


def _libraries(binary: str, folders: Sequence[str]) -> tuple[str, ...]:
    """Every shared library that the interpreter or an extension of its standard library needs, by `ldd`."""
    extensions = [str(path) for folder in folders for path in pathlib.Path(folder, "lib-dynload").glob("*.so")]
    if shutil.which("ldd") is None:
        return ()
    listed = subprocess.run(["ldd", binary, *extensions], capture_output=True, text=True, check=False).stdout
    found = {word for word in listed.split() if word.startswith("/") and not word.endswith(":")}
    found.update(path for path in (os.path.realpath("/etc/ld.so.cache"),) if os.path.exists(path))
    # Each bind costs time, and a multiarch folder holds nothing but libraries.
    places = {os.path.dirname(path) if "-linux-" in os.path.basename(os.path.dirname(path)) else path for path in found}
    return tuple(sorted(filter(os.path.exists, places)))


@functools.cache
def packages_of(folders: tuple[str, ...]) -> tuple[str, ...]:
    """The folders of installed packages: a data set with its answers may be among them, so a sandbox sees none."""
    found: list[str] = []
    for folder in folders:
        paths = [os.path.join(folder, name) for name in ("site-packages", "dist-packages")]
        found += filter(os.path.isdir, paths)
    return tuple(found)


def bubblewrap_command(
    interpreter: Interpreter, guest: str, arguments: Sequence[str], seccomp: int | None
) -> list[str]:
    """The command that starts `guest` (source text) in a fresh sandbox; `seccomp` is a descriptor with a filter.

    The guest is process 1 of its namespace: when it ends, the kernel kills all that it started before anyone can wait
    for it, so nothing outlives it.
    """
    command: list[str] = []
    if os.geteuid() == 0:
        command += ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--"]
    command += ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]
    command += ["--as-pid-1", "--cap-drop", "ALL", "--hostname", "sandbox", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        command += ["--setenv", name, value]
    for path in (interpreter.binary, *interpreter.folders, *interpreter.libraries):
        command += ["--ro-bind", path, path]
    for folder in packages_of(interpreter.folders):
        command += ["--tmpfs", folder, "--remount-ro", folder]
    for device in _DEVICES:
        command += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    if seccomp is not None:
        command += ["--seccomp", str(seccomp)]
    command += ["--remount-ro", "/", "--chdir", "/"]
    return [*command, "--", *python_command(interpreter, guest, arguments)]


def python_command(interpreter: Interpreter, guest: str, arguments: Sequence[str]) -> list[str]:
    """The bare interpreter on `guest`."""
    return [interpreter.binary, *_FLAGS, guest, *arguments]


def grouped_command(command: Sequence[str], group: "ControlGroup") -> list[str]:
    """`command`, started inside a control group: entering one waits on the kernel, so the child does it, not we."""
    return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', group.entrance, *command]


def has_bubblewrap() -> bool:
    """Whether the commands that a sandbox needs are installed."""
    return shutil.which("bwrap") is not None and (os.geteuid() != 0 or shutil.which("setpriv") is not None)


@functools.cache
def seccomp_filter() -> int | None:
    """A descriptor of the compiled filter, None where the optional package `pyseccomp` or its library is missing."""
    try:
        import pyseccomp
    except (ImportError, OSError, RuntimeError):
        return None
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in _FORBIDDEN:
        _add(rules, pyseccomp.ERRNO(errno.EPERM), name)
    # A thread is a clone with CLONE_THREAD; clone3 hides its flags in memory, so it is absent and callers fall back.
    _add(rules, pyseccomp.ERRNO(errno.EPERM), "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _CLONE_THREAD, 0))
    _add(rules, pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    _add(rules, pyseccomp.ERRNO(errno.EPERM), "prctl", pyseccomp.Arg(0, pyseccomp.EQ, _PR_SET_PDEATHSIG))
    with tempfile.TemporaryFile() as stream:
        rules.export_bpf(stream)
        return os.dup(stream.fileno())


def _add(rules, action: int, name: str, *arguments) -> None:
    try:
        rules.add_rule(action, name, *arguments)
    except (OSError, ValueError):  # a call that this kernel's architecture or an older library does not know
        return


def open_seccomp_filter() -> int | None:
    """A fresh descriptor of the filter for one sandbox: reading moves its position."""
    shared = seccomp_filter()
    return None if shared is None else os.open(f"/proc/self/fd/{shared}", os.O_RDONLY | os.O_CLOEXEC)


class ControlGroup:
    """One reusable control group: bounds the memory of a sandbox, and its processes in version 2."""

    def __init__(self, folder: str, memory_bytes: int, processes: int) -> None:
        """Makes the folder and writes the limits; raises OSError where that is not allowed."""
        self._folder = pathlib.Path(folder)
        self._folder.mkdir(exist_ok=True)
        limits = {
            **dict.fromkeys(("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max"), memory_bytes),
            "memory.swap.max": 0,
            "pids.max": processes,
        }
        for name, value in limits.items():
            if (self._folder / name).exists():
                (self._folder / name).write_text(str(value))

    @property
    def entrance(self) -> str:
        """The file that takes the number of a process to put in; its later children follow."""
        return str(self._folder / "cgroup.procs")

    def out_of_memory_kills(self) -> int:
        """How many processes the kernel killed here for memory, so far."""
        for name in ("memory.oom_control", "memory.events"):
            if (self._folder / name).exists():
                words = (self._folder / name).read_text().split()
                return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0
        return 0

    def remove(self) -> None:
        """Removes the folder; what is still in use stays."""
        with contextlib.suppress(OSError):
            self._folder.rmdir()


@functools.cache
def control_group_parent() -> str | None:
    """The folder under which groups that limit memory can be made, None where that is not ours to do.

    Version 2 limits processes too. Version 1 would need a second group for that, and entering one takes some 10 ms of
    waiting for the kernel, under a lock: there the limit of processes of the user namespace (`RLIMIT_NPROC`) does.
    """
    try:
        lines = pathlib.Path("/proc/self/cgroup").read_text().splitlines()
        mounts = [line.split() for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return None
    paths = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        paths.update({controller: path for controller in controllers.split(",")})
    for _, mount, kind, options, *_ in mounts:
        if kind == "cgroup" and "memory" in options.split(",") and "memory" in paths:
            folder = _inside(mount, paths["memory"])
            return folder if os.access(folder, os.W_OK) else None
    unified = [mount for _, mount, kind, *_ in mounts if kind == "cgroup2"]
    return _unified_parent(_inside(unified[0], paths.get("", "/"))) if unified else None


def _unified_parent(own: str) -> str | None:
    """Our own group or the one above it, whichever hands both controllers down and lets us make groups."""
    for folder in (own, os.path.dirname(own)):
        try:
            handed_down = pathlib.Path(folder, "cgroup.subtree_control").read_text().split()
        except OSError:
            continue
        if {"memory", "pids"} <= set(handed_down) and os.access(folder, os.W_OK):
            return folder
    return None


def _inside(mount: str, path: str) -> str:
    """The folder of a group; in a container the path may be that of the host, then the mount itself is the group."""
    folder = os.path.join(mount, path.lstrip("/"))
    return folder if os.path.isdir(folder) else mount


_group_numbers = itertools.count()


def group_folder() -> str:
    """The folder of a new control group of this process."""
    return os.path.join(control_group_parent() or "", f"jaxagent-{os.getpid()}-{next(_group_numbers)}")


def remove_stale_groups() -> None:
    """Removes the groups of processes that are gone."""
    for folder in pathlib.Path(control_group_parent() or "/nowhere").glob("jaxagent-*-*"):
        if not os.path.exists(f"/proc/{folder.name.split('-')[1]}"):
            with contextlib.suppress(OSError):
                folder.rmdir()
