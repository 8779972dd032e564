"""`jaxagent COMMAND ...`: takes the command word off and hands the rest to absl flags.

Whatever the user got wrong ends in one line on stderr and exit status 2; a bug shows its traceback and exits with 1.
jax is imported only by a command that runs, after its flags were found valid.
"""

import dataclasses
import difflib
import errno
import os
import pathlib
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence

from absl import flags, logging
from ml_collections import ConfigDict

import jaxagent
from jaxagent.config import default_config
from jaxagent.config_files import apply_overrides, config_fields, config_names, define_override_flags, load_config
from jaxagent.errors import UserError
from jaxagent.reporting.run_log import RunLog
from jaxagent.reporting.tables import summary_table

EXIT_BUG, EXIT_USER_ERROR, EXIT_INTERRUPTED = 1, 2, 130
# What the user's machine does to us, as opposed to what we did wrong ourselves.
_ENVIRONMENT_ERRNOS = frozenset(
    [
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT),
        *(errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO, errno.EMFILE),
    ]
)


@dataclasses.dataclass(frozen=True)
class Command:
    """One command: what it does, its flags, whether it takes `--config` and overrides, what to call with the result."""

    summary: str
    usage: str
    define_flags: Callable[[flags.FlagValues], None]
    takes_config: bool
    run: Callable[["Arguments"], None]


@dataclasses.dataclass(frozen=True)
class Arguments:
    """What was typed after the command word: flags, the configuration (None where not taken), positional words."""

    flag_values: flags.FlagValues
    config: ConfigDict | None
    words: tuple[str, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line (without the program's name; default: `sys.argv[1:]`) and returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    logging.set_verbosity(logging.ERROR)  # what libraries warn about is not for the user
    try:
        return _run(arguments)
    except UserError as error:
        return _fail(str(error))
    except SystemExit as leaving:  # training that was interrupted has saved its state and said so
        return leaving.code if isinstance(leaving.code, int) else EXIT_BUG
    except KeyboardInterrupt:
        print("jaxagent: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone (`| head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BUG
    except OSError as error:
        if error.errno not in _ENVIRONMENT_ERRNOS:
            traceback.print_exc()
            return EXIT_BUG
        return _fail(_describe_os_error(error, arguments))
    except Exception:
        traceback.print_exc()
        return EXIT_BUG


def _run(arguments: list[str]) -> int:
    if not arguments:
        print(_overview(), file=sys.stderr)
        return EXIT_USER_ERROR
    word, *rest = arguments
    if word in ("--help", "-h", "-help", "help"):
        print(_overview())
        return 0
    if word in ("--version", "-version"):
        print(f"jaxagent {jaxagent.__version__}")
        return 0
    if word not in COMMANDS:
        close = difflib.get_close_matches(word, COMMANDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"commands: {', '.join(COMMANDS)}"
        raise UserError(f"no command is called {word!r}; {hint}")
    command = COMMANDS[word]
    if any(argument in ("--help", "-h", "-help", "--helpfull") for argument in rest):
        print(_command_help(word, command))
        return 0
    command.run(_parse(word, command, rest))
    return 0


def _parse(word: str, command: Command, rest: list[str]) -> Arguments:
    """Parses what follows the command word; every fault is a `UserError`."""
    flag_values = flags.FlagValues()
    flag_values.set_gnu_getopt(True)  # words and flags may mix
    command.define_flags(flag_values)
    config = None
    try:
        if command.takes_config:
            spec, rest = _take_config_flag(rest)
            config = define_override_flags(flag_values, load_config(spec), rest)
        words = flag_values([f"jaxagent {word}", *rest])[1:]
    except flags.Error as error:
        raise UserError(f"{word}: {error} (see `jaxagent {word} --help`)") from None
    return Arguments(flag_values, config, tuple(words))


def _take_config_flag(rest: list[str]) -> tuple[str, list[str]]:
    """The value of `--config`, which decides what overrides there can be, and everything else in its order."""
    first_pass = flags.FlagValues()
    first_pass.set_gnu_getopt(True)
    flags.DEFINE_string("config", None, "", flag_values=first_pass)
    remaining = first_pass(["jaxagent", *rest], known_only=True)[1:]
    if not first_pass.config:
        known = ", ".join(config_names()) or "none"
        raise UserError(f"--config=NAME_OR_PATH[:VARIANT] is needed; known experiments: {known}")
    return first_pass.config, remaining


def _fail(message: str) -> int:
    print(f"jaxagent: error: {' '.join(message.split())}", file=sys.stderr)
    return EXIT_USER_ERROR


def _describe_os_error(error: OSError, arguments: Sequence[str]) -> str:
    """Path and reason; a full disk met while writing an open file has no path, so the command's folder stands in."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        return f"{error.filename}: {reason}"
    folders = [argument.split("=", 1)[1] for argument in arguments if argument.startswith(("--workdir=", "--output="))]
    return f"{reason}, while working in {folders[0]}" if folders else reason


# Flags


def _define_workdir(flag_values: flags.FlagValues, what: str) -> None:
    flags.DEFINE_string("workdir", None, what, flag_values=flag_values)


def _define_training(flag_values: flags.FlagValues) -> None:
    _define_workdir(flag_values, "the run's folder: made where missing; metrics, checkpoints and records go there")
    flags.DEFINE_bool("resume", False, "continue from the folder's last checkpoint", flag_values=flag_values)


def _define_evaluate(flag_values: flags.FlagValues) -> None:
    _define_workdir(flag_values, "the folder of the run whose policy is evaluated; results go to its eval/NAME/")
    flags.DEFINE_string("name", "panel", "the name of this evaluation", flag_values=flag_values)


def _define_report(flag_values: flags.FlagValues) -> None:
    what = "folder for the figures and the table: made where missing"
    flags.DEFINE_string("output", "report", what, flag_values=flag_values)


def _define_data(flag_values: flags.FlagValues) -> None:
    what = "folder that holds the source files, for data that no package ships"
    flags.DEFINE_string("source", None, what, flag_values=flag_values)


def _define_import(flag_values: flags.FlagValues) -> None:
    what = "the name that model.pretrained takes; by default that of what is imported"
    flags.DEFINE_string("name", None, what, flag_values=flag_values)


def _define_export(flag_values: flags.FlagValues) -> None:
    _define_workdir(flag_values, "the folder of the run whose policy is exported: its best checkpoint, else its newest")
    what = "hf: a Hugging Face checkpoint, LoRA merged; peft: the LoRA adapters alone"
    flags.DEFINE_string("to", "hf", what, flag_values=flag_values)
    what = "of the exported weights: float32, bfloat16 or float16"
    flags.DEFINE_string("dtype", "float32", what, flag_values=flag_values)


def _define_envs(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_integer("tasks", 100, "held-out tasks that phi is taken over", lower_bound=1, flag_values=flag_values)
    what = "OPTION=VALUE for the environment that is named"
    flags.DEFINE_multi_string("set", [], what, flag_values=flag_values)


def _define_reproduce(flag_values: flags.FlagValues) -> None:
    flags.DEFINE_list("worlds", ["lookup_tiny"], "experiments, separated by commas", flag_values=flag_values)
    arms = ["base", "grpo_full", "budgetmix"]
    flags.DEFINE_list("arms", arms, "variants of each experiment, separated by commas", flag_values=flag_values)
    flags.DEFINE_list("seeds", ["0"], "seeds, separated by commas", flag_values=flag_values)
    _define_workdir(flag_values, "folder for all runs, the summary and the figure: made where missing")
    what = "FIELD=VALUE for every configuration"
    flags.DEFINE_multi_string("set", [], what, flag_values=flag_values)


# Commands


def _sft(arguments: Arguments) -> None:
    workdir = _writable_folder(arguments)
    _no_words(arguments)
    resume = arguments.flag_values.resume
    with RunLog(workdir, arguments.config, resume=resume, label="sft") as log:
        from jaxagent.training import sft

        sft.run(arguments.config, workdir, resume=resume, log=log)


def _train(arguments: Arguments) -> None:
    workdir = _writable_folder(arguments)
    _no_words(arguments)
    resume = arguments.flag_values.resume
    with RunLog(workdir, arguments.config, resume=resume, label="train") as log:
        from jaxagent.training import loop

        loop.run(arguments.config, workdir, resume=resume, log=log)


def _evaluate(arguments: Arguments) -> None:
    workdir = arguments.flag_values.workdir
    if workdir and not pathlib.Path(workdir).is_dir():
        raise UserError(f"--workdir={workdir}: no such folder; it must hold the run to evaluate")
    workdir = _writable_folder(arguments)
    _no_words(arguments)
    name = arguments.flag_values.name
    if not name or pathlib.PurePath(name).name != name:
        raise UserError(f"--name={name}: must be a plain name, it becomes a folder inside the run's eval/")
    from jaxagent.evaluation import evaluate

    try:
        result = evaluate.run(arguments.config, workdir, run_folder=workdir, name=name)
    except KeyboardInterrupt:
        print("jaxagent: interrupted; the same command goes on from the rollouts that were finished", file=sys.stderr)
        raise SystemExit(EXIT_INTERRUPTED) from None
    policy = pathlib.Path(workdir).resolve().name
    print(summary_table({**result, "policies": {policy: result["budgets"]}}))
    print(f"\npanel {result['panel_hash']} of {result['num_tasks']} tasks")
    print(f"written to {pathlib.Path(workdir, 'eval', name)}")


def _report(arguments: Arguments) -> None:
    if not arguments.words:
        raise UserError("report: name at least one run folder: jaxagent report RUN [RUN ...] --output=DIR")
    output = _writable_folder(arguments, flag="output")
    from jaxagent.reporting import report

    report.run(list(arguments.words), output)


def _data(arguments: Arguments) -> None:
    from jaxagent.envs import datasets

    if len(arguments.words) != 1:
        raise UserError(f"data: name one data set: {', '.join(datasets.names())}")
    print(datasets.fetch(arguments.words[0], source=arguments.flag_values.source))


def _import(arguments: Arguments) -> None:
    from jaxagent import exchange

    folder = exchange.import_model(arguments.words, arguments.flag_values.name)
    print(f"{folder}\nuse it with --config.model.pretrained={folder.name}")


def _export(arguments: Arguments) -> None:
    from jaxagent import exchange

    parsed = arguments.flag_values
    if not parsed.workdir or len(arguments.words) != 1:
        raise UserError("export: name a run and a new folder: jaxagent export --workdir=RUN --to=hf FOLDER")
    exchange.export_run(parsed.workdir, arguments.words[0], kind=parsed.to, dtype=parsed.dtype)
    print(arguments.words[0])


def _envs(arguments: Arguments) -> None:
    from jaxagent.envs import describe, registry

    parsed = arguments.flag_values
    if parsed.set and len(arguments.words) != 1:
        raise UserError("envs: --set goes with the name of one environment")
    options = apply_overrides(default_config(), [f"env.options.{setting}" for setting in parsed.set]).env.options
    for name in arguments.words:
        print(describe.describe(name, options.to_dict(), parsed.tasks), end="\n\n")
    for name in () if arguments.words else registry.names():
        try:
            text = describe.describe(name, {}, parsed.tasks)
        except UserError as error:  # an installed package that is broken: the others are still of interest
            text = f"{name}\n  {error}"
        print(text, end="\n\n")


def _reproduce(arguments: Arguments) -> None:
    _no_words(arguments)
    parsed = arguments.flag_values
    seeds = []
    for seed in parsed.seeds:
        if not seed.isdecimal():
            raise UserError(f"--seeds: expected whole numbers separated by commas, got {seed!r}")
        seeds.append(int(seed))
    for flag in ("worlds", "arms", "seeds"):
        values = parsed[flag].value
        if not values or "" in values or len(set(values)) < len(values):
            raise UserError(f"--{flag}: expected different names separated by commas, got {','.join(values)!r}")
    apply_overrides(default_config(), parsed.set)  # a typo shows now, not after the first training run
    workdir = _writable_folder(arguments)
    from jaxagent import reproduce

    reproduce.run(parsed.worlds, parsed.arms, seeds, workdir, overrides=parsed.set)


def _writable_folder(arguments: Arguments, flag: str = "workdir") -> str:
    """The folder that `--workdir` (or another flag) names: made, and proven writable before any work is done."""
    folder = arguments.flag_values[flag].value
    if not folder:
        raise UserError(f"--{flag}=FOLDER is needed")
    try:
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"--{flag}={folder}: cannot be written: {error.strerror or error}") from None
    return folder


def _no_words(arguments: Arguments) -> None:
    if arguments.words:
        raise UserError(f"unexpected argument {arguments.words[0]!r}; flags are written --name=value")


COMMANDS = {
    "sft": Command(
        summary="clone scripted demonstrations into a base policy",
        usage="--config=NAME_OR_PATH[:VARIANT] --workdir=FOLDER [--resume] [--config.FIELD=VALUE ...]",
        define_flags=_define_training,
        takes_config=True,
        run=_sft,
    ),
    "train": Command(
        summary="reinforcement learning under interaction budgets",
        usage="--config=NAME_OR_PATH[:VARIANT] --workdir=FOLDER [--resume] [--config.FIELD=VALUE ...]",
        define_flags=_define_training,
        takes_config=True,
        run=_train,
    ),
    "evaluate": Command(
        summary="measure Pass@(K,T) of a run's policy on the panel",
        usage="--config=NAME_OR_PATH[:VARIANT] --workdir=RUN [--name=NAME] [--config.FIELD=VALUE ...]",
        define_flags=_define_evaluate,
        takes_config=True,
        run=_evaluate,
    ),
    "data": Command(
        summary="fetch or convert the data of a benchmark, once a machine",
        usage="NAME [--source=FOLDER]",
        define_flags=_define_data,
        takes_config=False,
        run=_data,
    ),
    "import": Command(
        summary="bring a language model in: SmolLM2, a Hugging Face checkpoint, a GGUF file",
        usage="smollm2 | hf PATH_OR_NAME | gguf FILE [--name=NAME]",
        define_flags=_define_import,
        takes_config=False,
        run=_import,
    ),
    "export": Command(
        summary="write a run's policy as a Hugging Face checkpoint or as LoRA adapters",
        usage="--workdir=RUN [--to=hf|peft] [--dtype=DTYPE] FOLDER",
        define_flags=_define_export,
        takes_config=False,
        run=_export,
    ),
    "envs": Command(
        summary="the environments, their options, and what could be solved within each budget",
        usage="[NAME ...] [--set OPTION=VALUE ...] [--tasks=N]",
        define_flags=_define_envs,
        takes_config=False,
        run=_envs,
    ),
    "report": Command(
        summary="figures and a table of finished runs",
        usage="RUN [RUN ...] [--output=FOLDER]",
        define_flags=_define_report,
        takes_config=False,
        run=_report,
    ),
    "reproduce": Command(
        summary="a whole comparison: base policy, training arms, evaluation, figure and table",
        usage="--worlds=A,B --arms=X,Y --seeds=0,1 --workdir=FOLDER [--set FIELD=VALUE ...]",
        define_flags=_define_reproduce,
        takes_config=False,
        run=_reproduce,
    ),
}


# Help


def _overview() -> str:
    lines = ["usage: jaxagent COMMAND ...", "", "commands:"]
    lines += [f"  {word:<10} {command.summary}" for word, command in COMMANDS.items()]
    lines += ["", "`jaxagent COMMAND --help` shows a command's flags; `jaxagent --version` the version."]
    return "\n".join(lines)


def _command_help(word: str, command: Command) -> str:
    flag_values = flags.FlagValues()
    command.define_flags(flag_values)
    lines = [f"usage: jaxagent {word} {command.usage}", "", command.summary, "", "flags:"]
    for name in sorted(flag_values):
        flag = flag_values[name]
        default = "" if flag.default in (None, [], False) else f" (default: {flag.default_as_str.strip(chr(39))})"
        lines.append(f"  --{name:<10} {flag.help}{default}")
    if not command.takes_config:
        return "\n".join(lines)
    lines += ["", f"experiments: {', '.join(config_names()) or 'none found'}", "", "config sections (field = default):"]
    config = default_config()
    for section in config:
        fields = config_fields(ConfigDict({section: config[section]}))
        lines += [f"  --config.{name} = {value!r}" for name, value in fields]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
