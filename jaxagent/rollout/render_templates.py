"""A program of its own: renders a chat template on conversations, within bounds of time and memory.

    python -m jaxagent.rollout.render_templates <request.json >answer.json

A template is code from whoever made the checkpoint. transformers runs it in jinja2's immutable sandbox, which keeps it
from Python's internals but not from endless loops or huge strings; those are what the limits of this process are for.
"""

import json
import os
import resource
import sys

MEMORY_BYTES = 1 << 30  # beyond what the process holds before the template runs
MAX_CHARACTERS = 1 << 20  # of everything that is rendered


def main() -> None:
    """Reads {template, conversations, variables, cpu_seconds}, writes {rendered} or {error}; a signal ends what takes
    too long."""
    request = json.load(sys.stdin)
    os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
    from transformers.utils.chat_template_utils import render_jinja_template

    limit_resources(request["cpu_seconds"])
    try:
        rendered, _ = render_jinja_template(
            conversations=request["conversations"],
            chat_template=request["template"],
            add_generation_prompt=True,
            **request["variables"],
        )
        size = sum(map(len, rendered))
        if size > MAX_CHARACTERS:
            raise ValueError(f"it writes {size} characters for a short conversation")
        answer = {"rendered": rendered}
    except MemoryError:
        answer = {"error": f"it needs more than {MEMORY_BYTES >> 20} MiB"}
    except Exception as error:  # anything that a template can raise
        first = next(iter(str(error).splitlines()), "")
        answer = {"error": f"{type(error).__name__}: {first[:200]}"}
    json.dump(answer, sys.stdout)


def limit_resources(cpu_seconds: int) -> None:
    """Bounds what this process may still use, from here on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with open("/proc/self/statm", encoding="ascii") as file:
            held = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY_BYTES, held + MEMORY_BYTES))


if __name__ == "__main__":
    main()
