"""Nothing that a program does escapes, outlives its limit or earns a reward: behind all walls, and bubblewrap alone."""

import pathlib
import random
import socket
import subprocess

import pytest
import sandbox_attacks

from jaxagent.envs import sandbox
from jaxagent.envs.deepcoder.judge import job_of, judge, short_repr
from jaxagent.envs.sandbox import Layers, Sandbox, SandboxOptions

LAYERS, COMPLAINT = sandbox.isolation()
pytestmark = pytest.mark.skipif(LAYERS is None, reason=f"no isolation here: {COMPLAINT}")
SECONDS = 1.0
TOKEN = f"EXPECTED-{random.SystemRandom().randrange(10**12)}"  # in every expected output, so it must never be inside


WALLS = {"all": LAYERS, "bubblewrap": Layers(bubblewrap=True)}


def processes_with(marker: str) -> list[str]:
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def doubling_test(form):
    if form == "script":
        return {"kind": "stdin", "input": "21\n", "output": "42\n"}
    if form == "calls":
        return {"kind": "functional", "name": "double", "arguments": [21], "output": 42}
    test = f"assert double(21) == 42, '{TOKEN}'"
    return {"kind": "check", "test": test, "targets": ["double"], "context": "", "shown": None}


def test_there_are_eighty_and_names_tell_them_apart():
    keys = [(attack.form, attack.name) for attack in sandbox_attacks.attacks({})]
    assert len(set(keys)) == len(keys) >= 80


@pytest.mark.parametrize("walls", ["all", pytest.param("bubblewrap", marks=pytest.mark.slow)])
def test_no_attack_succeeds(walls, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text(TOKEN)
    tmp_path.chmod(0o755)
    memory_mb = 200 + random.SystemRandom().randrange(100)
    options = SandboxOptions(seconds=SECONDS, memory_mb=memory_mb, output_kb=4096, warm=0, processes=12, parallel=4)
    victim = subprocess.Popen(["sleep", "600"])
    server = socket.create_server(("127.0.0.1", 0))
    server.setblocking(False)
    faults = []
    try:
        places = {"PORT": str(server.getsockname()[1]), "SECRET_FILE": str(secret), "VICTIM": str(victim.pid)}
        attacks = sandbox_attacks.attacks(places)
        jobs = [job_of(doubling_test(attack.form), attack.source, "", fingerprint=True) for attack in attacks]
        with Sandbox(options, WALLS[walls]) as box:
            for attack, outcome in zip(attacks, box.run(jobs), strict=True):
                faults += faults_of(attack, outcome)
            assert not processes_with(str(memory_mb << 20)), "something outlived its run"
        assert victim.poll() is None
        with pytest.raises(BlockingIOError):
            server.accept()
        assert secret.read_text() == TOKEN
    finally:
        victim.kill()
        victim.wait()
        server.close()
    assert not faults, "\n".join(faults)


def faults_of(attack, outcome):
    said = f"{outcome.kind} {outcome.detail} {outcome.stdout[:80]!r} {outcome.stderr[-200:]!r}"
    name = f"{attack.form}/{attack.name}: {said}"
    faults = []
    if judge(doubling_test(attack.form), outcome, SECONDS).passed:
        faults.append(f"passed {name}")
    if attack.kinds and outcome.kind not in (*attack.kinds, "time"):  # a busy machine is slow at everything
        faults.append(f"expected {attack.kinds} {name}")
    if outcome.seconds > SECONDS + 20.0:  # a busy machine takes seconds to start and to end a process
        faults.append(f"took {outcome.seconds:.1f} s {name}")
    if TOKEN in outcome.stdout + outcome.stderr + short_repr(outcome.values):
        faults.append(f"saw what it must not {name}")
    if "wrote" in outcome.stdout or "forked" in outcome.stdout:
        faults.append(f"wrote {name}")
    return faults
