import concurrent.futures
import gc
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.envs import sandbox, sandbox_guest, sandbox_layers
from jaxagent.envs.base import InfrastructureError
from jaxagent.envs.sandbox import Call, Calls, Check, Layers, Sandbox, SandboxOptions, Script
from jaxagent.errors import UserError

LAYERS, COMPLAINT = sandbox.isolation()
isolated = pytest.mark.skipif(LAYERS is None, reason=f"no isolation here: {COMPLAINT}")
ROOT = pathlib.Path(__file__).parents[2]
SYSTEM_PYTHON = sandbox_layers.SYSTEM_PYTHON


@pytest.fixture(scope="module")
def box():
    with Sandbox(SandboxOptions(seconds=5.0)) as made:
        yield made


def one(box, job):
    (outcome,) = box.run([job])
    return outcome


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": 0}, r"sandbox.seconds must be a number from 0.1 on"),
        ({"memory_mb": 63}, r"sandbox.memory_mb must be a whole number from 64 on, got 63"),
        ({"processes": True}, "sandbox.processes"),
        ({"warm": -1}, "sandbox.warm"),
        ({"allow_unsandboxed": "yes"}, "sandbox.allow_unsandboxed must be True or False"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(UserError, match=message):
        SandboxOptions(**options)


@isolated
@pytest.mark.parametrize(
    ("source", "stdin", "expected"),
    [
        ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", b"1 2\n3\n", "6\n"),
        ("import sys\nfor line in sys.stdin: print(line.strip()[::-1])", b"ab\ncd", "ba\ndc\n"),
        ("while True:\n    try: print(int(input()) + 1)\n    except EOFError: break", b"1\n2", "2\n3\n"),
        ("import sys\nsys.stdout.buffer.write(b'x' * 3 + sys.stdin.buffer.read())", b"\xe2\x82\xac", "xxx€"),
        ("import os\nos.write(1, os.read(0, 100))", b"raw", "raw"),
        ("print(open(0).read(), end='')", b"open", "open"),
        ("print(2 ** 20000 % 10 ** 5, len(str(3 ** 20000)))", b"", "09376 9543\n".lstrip("0")),
        ("import threading, sys\nthreading.stack_size(1 << 27)\nsys.setrecursionlimit(10**6)\n"
         "def f(n): return n and 1 + f(n - 1)\nt = threading.Thread(target=lambda: print(f(20000)))\nt.start()",
         b"", "20000\n"),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
         "if __name__ == '__main__': print(P(3).x)", b"", "3\n"),
        ("print(__doc__, sorted({'b', 'a', 'c'}), [].__len__())", b"", "None ['a', 'b', 'c'] 0\n"),
        ("import sys\nsys.exit()", b"", ""),
    ],
)  # fmt: skip
def test_honest_programs_run_as_anywhere(box, source, stdin, expected):
    outcome = one(box, Script(source, stdin))
    assert (outcome.kind, outcome.stdout) == ("ok", expected), outcome.stderr
    plain = subprocess.run([SYSTEM_PYTHON, "-c", source], input=stdin, capture_output=True, check=False)
    if "3 ** 20000" not in source:  # a plain Python refuses to print so many digits
        assert plain.stdout.decode() == expected


@isolated
def test_endings_come_from_the_kernel(box):
    cases = {
        "raise SystemExit(7)": ("exit", "7"),
        "1 / 0": ("exit", "1"),
        "import os\nos._exit(3)": ("exit", "3"),
        "import ctypes\nctypes.string_at(0)": ("signal", "SIGSEGV"),
        "x = bytearray(10**11)": ("memory", ""),
        "def f(:": ("syntax", "line 1: SyntaxError: invalid syntax"),
        "x = 1\nreturn x": ("syntax", "line 2: SyntaxError: 'return' outside function"),
        "import sys\nprint('time limit', file=sys.stderr)\nsys.exit('memory limit')": ("exit", "1"),
    }
    outcomes = list(box.run([Script(source) for source in cases]))
    assert [(outcome.kind, outcome.detail) for outcome in outcomes] == list(cases.values())
    assert 'File "program.py", line 1' in outcomes[1].stderr and "<string>" not in outcomes[1].stderr


@isolated
def test_limits(box):
    with Sandbox(SandboxOptions(seconds=0.5, output_kb=10, warm=0)) as tight:
        begun = time.monotonic()
        late, loud, fits = tight.run(
            [Script("while True: pass"), Script("print('x' * 20_000)"), Script("print('x' * 9_000)")]
        )
        assert time.monotonic() - begun < 20.0
    assert (late.kind, loud.kind, fits.kind, len(fits.stdout)) == ("time", "output", "ok", 9001)
    assert 0.4 < late.seconds < 20.0  # a busy machine


@isolated
def test_big_inputs_and_inputs_that_nobody_reads(box):
    big = b"7\n" * 2_000_000
    assert one(box, Script("import sys\nprint(len(sys.stdin.read()))", big)).stdout == "4000000\n"
    assert one(box, Script("print(1)", big)).kind == "ok"


@isolated
def test_calls_and_their_values(box):
    source = "n = 0\ndef count(*a, **k):\n    global n\n    n += 1\n    return n, a, k\n"
    source += "class Solution:\n    def twice(self, x): return 2 * x"
    outcome = one(
        box, Calls(source, [Call("count", [1, {2: (3,)}]), Call("count", [], {"key": None}), Call("twice", [4])])
    )
    assert outcome.values == ((1, (1, {2: (3,)}), {}), (2, (), {"key": None}), 8)
    missing = one(box, Calls(source, [Call("twice", [1]), Call("thrice", [1])]))
    assert (missing.kind, missing.values) == ("exit", (2,)) and "thrice" in missing.stderr


PLAIN = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.integers(-(10**400), 10**400), st.floats(allow_nan=False),
        st.text(), st.binary(max_size=20), st.complex_numbers(allow_nan=False),
        st.text(st.characters(categories=["Cs"]), max_size=1),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.integers(), st.text()), inner, max_size=4),
        st.sets(st.integers(), max_size=4), st.frozensets(st.text(), max_size=4),
    ),
    max_leaves=12,
)  # fmt: skip


def round_trip(value):
    return sandbox_guest.decode(json.loads(sandbox_guest.encode(value)))


def alike(one, other):
    if type(one) is not type(other):
        return False  # 1, 1.0 and True are equal, but not the same
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return alike(list(one), list(other)) and alike(list(one.values()), list(other.values()))
    if isinstance(one, float | complex):
        return repr(one) == repr(other)
    return one == other


@settings(max_examples=150, deadline=None)
@given(PLAIN)
def test_plain_data_survives(value):
    assert alike(round_trip(value), value)


def test_what_is_not_plain_is_told_apart():
    class Liar(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    assert type(round_trip(Liar(3))) is int
    thing = round_trip(object())
    assert isinstance(thing, sandbox_guest.Opaque) and thing != round_trip(object())
    assert list(round_trip(iter([1, 2]))) == [1, 2] and round_trip(iter([1, 2])) != [1, 2]
    assert round_trip(int) is int and isinstance(round_trip(Liar), sandbox_guest.Opaque)
    assert str(round_trip(float("nan"))) == "nan"
    for tree in ({"x": 1}, {"i": 5}, {"s": [[1]]}, {"d": [[[1], 2]]}, {"y": "exec"}, {"t": 5}, {"a": 1, "b": 2}):
        with pytest.raises((ValueError, TypeError, KeyError)):
            sandbox_guest.decode(tree)
    with pytest.raises(ValueError, match="too many"):
        sandbox_guest.decode({"s": list(range(sandbox_guest.MAX_HASHED + 1))})


@pytest.mark.parametrize("form", ['{"s":%s}', '{"fs":%s}', '{"s":{"t":%s}}', '{"d":{"it":%s}}', '{"t":[{"s":%s}]}'])
def test_members_chosen_to_collide_are_refused_at_once(form):
    """A set of n of them takes some n * n / 2 steps, whatever tag a program writes around the list."""
    numbers = json.dumps([{"i": f"{k * (2**61 - 1):x}"} for k in range(1, 20_000)])
    begun = time.process_time()
    with pytest.raises(ValueError, match=r"one hash|no container"):
        sandbox_guest.decode(json.loads(form % numbers))
    assert time.process_time() - begun < 1.0
    honest = set(range(19_000)) | {-1, -2}
    assert round_trip(honest) == honest and round_trip(dict.fromkeys(honest)) == dict.fromkeys(honest)


@isolated
def test_checks_run_apart_from_the_program(box):
    context = "def helper(x): return x + 1\n"
    cases = {
        "def f(x): return x + 1": ("ok", ""),
        "def f(x): return x": ("failed", "AssertionError"),
        "def helper(x): return 0\ndef f(x): return 0": ("failed", "AssertionError"),  # the test has its own
        "def f(x): raise KeyError(x)": ("exit", "1"),
        "f = None": ("exit", "1"),
    }
    jobs = [
        Check(source, "assert [f(i) for i in range(3)] == [helper(i) for i in range(3)]", ["f"], context)
        for source in cases
    ]
    assert [(outcome.kind, outcome.detail) for outcome in box.run(jobs)] == list(cases.values())
    pair = "class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\n"
    pair += "def total(pairs): return sum(p.a * p.b for p in pairs)"
    assert one(box, Check(pair, "assert total([Pair(1, 2), Pair(3, 4)]) == 14", ["Pair", "total"])).kind == "ok"


@isolated
def test_a_broken_test_is_no_fault_of_the_program(box):
    with pytest.raises(InfrastructureError, match=r"verifier.*Node"):
        one(box, Check("def f(): return 1", "assert f() == 1", ["f"], context="Node(1)"))
    assert one(box, Script("print(1)")).stdout == "1\n"


@isolated
def test_a_sandbox_that_is_killed_from_outside_is_infrastructure(box):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = pool.submit(one, box, Script("import time\ntime.sleep(4)"))
        time.sleep(0.5)
        ours = pathlib.Path(f"/proc/{os.getpid()}/task").glob("*/children")
        outer = {int(pid) for path in ours for pid in path.read_text().split()}
        assert outer
        for pid in outer:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(InfrastructureError, match=r"sandbox: killed from outside"):
            running.result()
    assert one(box, Script("print(1)")).stdout == "1\n"  # the warm ones died too and were replaced


@isolated
@pytest.mark.skipif(sandbox_layers.control_group_parent() is None, reason="no memory control groups here")
def test_the_memory_of_all_processes_together_is_limited():
    """Four processes of 40 MB each, none of which exceeds the limit of 100 MB by itself."""
    source = "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        x = b'x' * (40 << 20)\n"
    source += "        time.sleep(9)\n"
    kinds = []
    for groups in (False, True):
        layers = Layers(bubblewrap=True, control_groups=groups)
        with Sandbox(SandboxOptions(seconds=2.0, memory_mb=100), layers) as made:
            kinds.append(one(made, Script(source + "for _ in range(4): os.wait()")).kind)
    assert kinds == ["time", "memory"]


ATTEMPTS = """import errno, os, socket
def attempt(action):
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
open("/dev/null", "w").write("x")
os.chdir({folder!r})
print(*[attempt(action) for action in ({actions},)], open("kept").read())
"""
FILE_ACTIONS = (
    *("lambda: open('new', 'w')", "lambda: open('kept', 'a')", "lambda: os.truncate('kept', 4)"),
    *("lambda: os.mkdir('made')", "lambda: os.symlink('/', 'link')", "lambda: os.remove('other')"),
)
OTHER_ACTIONS = (
    "lambda: socket.socket().bind(('127.0.0.1', 0))",
    "lambda: socket.create_connection(('127.0.0.1', {port}))",
    "lambda: os.kill({victim}, 0)",
    "lambda: os.execv('/bin/true', ['true'])",
)


@pytest.mark.skipif(sandbox_guest.landlock_version() < 6, reason="no Landlock 6 in this kernel")
@pytest.mark.parametrize("landlock", [False, True])
def test_landlock_alone_refuses_what_the_other_walls_would(landlock, tmp_path):
    """Without any other wall, so that what bubblewrap would hide is there."""
    for name in ("kept", "other"):
        (tmp_path / name).write_text(name)
    with socket.create_server(("127.0.0.1", 0)) as server, Sandbox(SandboxOptions(warm=0), Layers()) as free:
        actions = ", ".join(FILE_ACTIONS + (OTHER_ACTIONS if landlock else OTHER_ACTIONS[:3]))
        actions = actions.format(port=server.getsockname()[1], victim=os.getpid())
        source = ATTEMPTS.format(folder=str(tmp_path), actions=actions)
        with Sandbox(SandboxOptions(warm=0), Layers(landlock=True)) as confined:
            outcome = one(confined if landlock else free, Script(source))
    refused = ["EACCES"] * 8 + ["EPERM", "EACCES"]
    assert outcome.stdout.split() == [*(refused if landlock else ["done"] * 9), "kept"], outcome.stderr


@isolated
@pytest.mark.skipif(sandbox_guest.landlock_version() == 0, reason="no Landlock in this kernel")
def test_landlock_is_used_where_it_loads_and_programs_run_behind_it():
    assert LAYERS.landlock
    binary = sandbox_layers.find_interpreter().binary
    source = f"import os, threading\nprint(1, flush=True)\nos.execv({binary!r}, ['python', '-c', 'print(2)'])"
    kinds = []
    for landlock in (False, True):
        with Sandbox(SandboxOptions(warm=0), Layers(bubblewrap=True, landlock=landlock)) as made:
            outcome = one(made, Script(source))
            kinds.append((outcome.kind, outcome.stdout, "PermissionError" in outcome.stderr))
    assert kinds == [("ok", "1\n2\n", False), ("exit", "1\n", True)]


@pytest.mark.parametrize("version", [-1, 0])
def test_a_guest_that_cannot_be_confined_runs_no_program(version, monkeypatch):
    monkeypatch.setattr(sandbox_guest, "landlock_version", lambda: version)
    with Sandbox(SandboxOptions(warm=0), Layers(landlock=True)) as made, pytest.raises(InfrastructureError):
        one(made, Script("print(1)"))


def test_parents_of_control_groups_in_version_2(tmp_path):
    """The layout of a delegated subtree: our group may not hold groups of its own, the one above it may."""
    own = tmp_path / "user" / "session"
    own.mkdir(parents=True)
    (own / "cgroup.subtree_control").write_text("\n")
    assert sandbox_layers._unified_parent(str(own)) is None
    (own.parent / "cgroup.subtree_control").write_text("cpu memory pids\n")
    assert sandbox_layers._unified_parent(str(own)) == str(own.parent)
    group = tmp_path / "group"
    group.mkdir()
    for name in ("memory.max", "memory.swap.max", "pids.max", "cgroup.procs"):
        (group / name).write_text("max")
    (group / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    made = sandbox_layers.ControlGroup(str(group), 1 << 20, 7)
    assert [(group / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max")] == [
        "1048576",
        "0",
        "7",
    ]
    assert (made.out_of_memory_kills(), made.entrance) == (2, str(group / "cgroup.procs"))


@isolated
def test_without_process_descriptors_it_polls(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    with Sandbox(SandboxOptions(seconds=1.0)) as made:
        outcomes = list(made.run([Script("print(1)"), Script("import os\nos.closerange(0, 64)\nwhile True: pass")]))
    assert [outcome.kind for outcome in outcomes] == ["ok", "time"]


@isolated
def test_an_iterator_left_open_blocks_nobody(box):
    left = box.run([Script("print(1)"), Script("print(2)")])
    assert next(left).stdout == "1\n"
    assert one(box, Script("print(3)")).stdout == "3\n"
    assert next(left).stdout == "2\n"


@isolated
def test_leaving_early_ends_what_runs(box):
    outcomes = box.run([Script("print(1)"), Script("while True: pass"), Script("while True: pass")])
    begun = time.monotonic()
    assert next(outcomes).stdout == "1\n"
    outcomes.close()
    assert time.monotonic() - begun < 3.0
    assert one(box, Script("print(2)")).stdout == "2\n"


@isolated
def test_order_is_kept_and_runs_share_nothing(box):
    sources = [f"import time\ntime.sleep({0.05 * (5 - i % 5)})\nprint({i})" for i in range(10)]
    assert [outcome.stdout for outcome in box.run([Script(source) for source in sources])] == [
        f"{i}\n" for i in range(10)
    ]
    talk = "import ctypes, time\nlibc = ctypes.CDLL(None)\nprint(libc.shmget(4711, 4096, 0o1666))\ntime.sleep(0.5)"
    listen = "import ctypes, time\nlibc = ctypes.CDLL(None)\ntime.sleep(0.2)\nprint(libc.shmget(4711, 4096, 0o666))"
    _, heard = box.run([Script(talk), Script(listen)])
    assert heard.stdout == "-1\n"


@isolated
def test_fingerprints_see_the_syntax_alone(box):
    sources = ["x = 1\nprint(x)", "# said\nx=1;print( x )", "x = 2\nprint(x)", "y = 1\nprint(y)"]
    prints = [outcome.fingerprint for outcome in box.run([Script(source, fingerprint=True) for source in sources])]
    assert prints[0] == prints[1] and len(set(prints)) == 3 and None not in prints


@isolated
def test_nothing_is_left_behind():
    def cost():
        parent = pathlib.Path(sandbox_layers.control_group_parent() or "/nowhere")
        return descriptors(), len(list(parent.glob(f"jaxagent-{os.getpid()}-*")))

    sandbox.isolation()
    before = cost()
    for warm in (0, 2):
        with Sandbox(SandboxOptions(seconds=0.4, warm=warm)) as made:
            list(made.run([Script("print(1)"), Script("while True: pass"), Calls("def f(): 1 / 0", [Call("f", [])])]))
            list(made.run([Check("def f(): return 1", "assert f() == 1", ["f"])]))
        made.close()
        with pytest.raises(RuntimeError, match="closed"):
            one(made, Script(""))
    assert cost()[0] == before[0]
    assert cost()[1] <= before[1]


@isolated
def test_only_three_streams_and_the_report_are_open(box):
    outcome = one(
        box,
        Script("import os\nfor fd in range(1000):\n    try: os.fstat(fd)\n    except OSError: continue\n    print(fd)"),
    )
    assert outcome.stdout.split() == ["0", "1", "2"]  # the report is closed before a script starts


@isolated
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
@pytest.mark.parametrize("user", ["65534", "12345"])
def test_it_works_for_ordinary_users(user, tmp_path):
    """A copy of what it needs, under a Python that everyone may run."""
    package = tmp_path / "jaxagent"
    for name in (
        "__init__",
        "errors",
        "episodes",
        "envs/__init__",
        "envs/base",
        "envs/sandbox",
        "envs/sandbox_guest",
        "envs/sandbox_layers",
    ):
        target = package / f"{name}.py"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((ROOT / "jaxagent" / f"{name}.py").read_text())
    shared = pathlib.Path(tempfile.gettempdir())
    for folder in (tmp_path, *(parent for parent in tmp_path.parents if shared in parent.parents)):
        folder.chmod(folder.stat().st_mode | 0o055)
    script = (
        "from jaxagent.envs.sandbox import *\nimport os\n"
        "with Sandbox(SandboxOptions(seconds=1.0)) as s:\n"
        "    sources = 'import os\\nprint(os.getuid())', 'while 1: pass', 'open(\"/x\", \"w\")'\n"
        "    o = list(s.run([Script(source) for source in sources]))\n"
        "print(s.layers.bubblewrap, [p.kind for p in o], o[0].stdout.strip() == str(os.getuid()))"
    )
    done = subprocess.run(
        ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", SYSTEM_PYTHON, "-c", script],
        cwd=tmp_path, env={"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "True ['ok', 'time', 'exit'] True", done.stderr


def test_without_isolation_it_refuses_unless_told(monkeypatch):
    monkeypatch.setattr(sandbox, "isolation", lambda: (None, "bubblewrap is not installed"))
    with pytest.raises(UserError, match=r"no sandbox.*bubblewrap is not installed.*allow_unsandboxed"):
        Sandbox(SandboxOptions())
    with Sandbox(SandboxOptions(seconds=1.0, allow_unsandboxed=True)) as made:
        assert made.layers == Layers()
        fine, late, daemon = made.run(
            [
                Script("print(input())", b"up"),
                Script("while True: pass"),
                Script("import os, time\npid = os.fork()\nif pid == 0: time.sleep(600)\nprint(pid)"),
            ]
        )
    assert (fine.kind, fine.stdout, late.kind) == ("ok", "up\n", "time")
    assert daemon.stdout.strip().isdigit()
    stat = read_or_nothing(pathlib.Path(f"/proc/{daemon.stdout.strip()}/stat"))
    assert not stat or b") Z " in stat  # gone, or dead and not yet buried by whoever inherits it


def test_a_machine_without_bubblewrap_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    sandbox.isolation.cache_clear()
    try:
        with pytest.raises(UserError, match="apt-get install bubblewrap"):
            Sandbox(SandboxOptions())
    finally:
        sandbox.isolation.cache_clear()


@isolated
def test_sandboxes_die_with_the_process_that_made_them(tmp_path):
    script = (
        "from jaxagent.envs.sandbox import *\nimport os, signal, threading\n"
        "s = Sandbox(SandboxOptions(seconds=60.0, memory_mb=333, warm=2))\n"
        "threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()\n"
        "list(s.run([Script('while True: pass')]))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    deadline = time.monotonic() + 5.0
    marker = str(333 << 20).encode()
    while time.monotonic() < deadline:
        left = [
            path
            for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")
            if marker in read_or_nothing(path).split(b"\0")
        ]
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError(left)


def read_or_nothing(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""
