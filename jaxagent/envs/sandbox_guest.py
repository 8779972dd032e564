"""What runs inside a sandbox: takes one program from the host, runs it, and says how far it got.

The host passes this file's text to a bare interpreter, so it imports nothing of the package and as little as possible
of the standard library: every import is paid once a program. Messages to the guest come through file descriptor 0, each
as four bytes of length and a `marshal` body, before whatever the program itself reads from there. The guest answers in
lines on a descriptor of its own. Lines written before the program starts can be trusted; a program may forge all later
ones, so they are claims about its own results and nothing else.
"""

import marshal
import os
import sys
import types

MAX_DEPTH = 100  # of nested containers in a value; a deeper one is opaque
OUT_OF_MEMORY = 101  # exit code of a program that ended in MemoryError
MAX_HASHED = 20_000  # members of a set or dictionary
MAX_EQUAL_HASHES = 100  # among them: of members chosen to collide each costs as many steps as there are before it
# Numbers of system calls on x86-64, ARM, RISC-V and most others.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_VERSION, _LANDLOCK_PATH_BENEATH = 1, 1
_PR_SET_NO_NEW_PRIVS = 38
# Bits of access to files that Landlock takes away, by the version that brought them: all but reading (2 and 3).
_FILE_BITS = {1: (0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 12), 2: (13,), 3: (14,), 5: (15,)}
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_TCP, _TCP_VERSION = 0b11, 4  # bind, connect
_SCOPES, _SCOPES_VERSION = 0b11, 6  # abstract sockets, signals
_PLAIN_INT = 2**53  # larger integers travel in hexadecimal: linear time, no limit of digits
_ONLY_AST = 0x400
_CHUNK = 1 << 20


_TYPES = {kind.__name__: kind for kind in (int, float, str, bool, complex, bytes, list, tuple, dict, set, frozenset)}
_kept: list[object] = []  # a program's own objects, which a test of it holds by number
_keeps = False  # only in the process of a program


class Opaque:
    """Stands for a value that is not plain data: equal to itself alone, and passed back as what it was."""

    def __init__(self, name: str, number: int = -1) -> None:
        """`name` of the value's type, and its number in the program's process."""
        self.name = name
        self.number = number

    def __repr__(self) -> str:
        """As the value would look in a message."""
        return f"<{self.name}>"


def encode(value: object, depth: int = 0) -> str:
    """Plain data as JSON text: containers other than lists, and numbers that JSON lacks, are objects with one tag."""
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        number = int(value)
        return str(number) if -_PLAIN_INT < number < _PLAIN_INT else f'{{"i":"{number:x}"}}'
    if isinstance(value, float):
        number = float(value)
        return repr(number) if number - number == 0.0 else f'{{"f":"{number!r}"}}'
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, complex):
        return f'{{"c":[{encode(value.real)},{encode(value.imag)}]}}'
    if isinstance(value, bytes | bytearray):
        return f'{{"b":"{value.hex()}"}}'
    if isinstance(value, type) and _TYPES.get(value.__name__) is value:
        return f'{{"y":"{value.__name__}"}}'
    return _encode_container(value, depth) if depth < MAX_DEPTH else _encode_opaque(value)


def _encode_opaque(value: object) -> str:
    if isinstance(value, Opaque):
        return f'{{"o":[{_text(value.name)},{value.number}]}}'
    if _keeps:
        _kept.append(value)
    return f'{{"o":[{_text(type(value).__name__)},{len(_kept) - 1}]}}'


def _encode_container(value: object, depth: int) -> str:
    def items(values) -> str:
        return "[" + ",".join([encode(item, depth + 1) for item in values]) + "]"

    if isinstance(value, list):
        return items(value)
    if isinstance(value, tuple):
        return f'{{"t":{items(value)}}}'
    if isinstance(value, dict):
        return f'{{"d":{items(list(pair) for pair in value.items())}}}'
    if isinstance(value, set):
        return f'{{"s":{items(value)}}}'
    if isinstance(value, frozenset):
        return f'{{"fs":{items(value)}}}'
    if hasattr(value, "__next__") or isinstance(value, range | type({}.keys()) | type({}.values()) | type({}.items())):
        return f'{{"it":{items(value)}}}'
    return _encode_opaque(value)


def _text(value: str) -> str:
    from _json import encode_basestring_ascii

    return encode_basestring_ascii(str.__str__(value))


def decode(tree: object) -> object:
    """The inverse of `encode` on parsed JSON; iterables come back as iterators.

    Raises ValueError, TypeError or KeyError on a tree that `encode` does not write (an unhashable member of a set).
    """
    if isinstance(tree, list):
        return [decode(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) != 1:
        raise ValueError("a tagged value has one tag")
    ((tag, inner),) = tree.items()
    if tag == "i":
        return int(inner, 16)
    if tag == "f":
        return float(inner)
    if tag == "b":
        return bytes.fromhex(inner)
    if tag == "o":
        name, number = inner
        return _kept[number] if 0 <= number < len(_kept) else Opaque(str(name), int(number))
    if tag == "y":
        return _TYPES[inner]
    if tag == "c":
        return complex(*decode(inner))
    makers = {"t": tuple, "it": iter, "d": dict, "s": set, "fs": frozenset}
    if tag not in makers or not isinstance(inner, list):
        raise ValueError(f"no container has the tag {tag!r}")
    members = decode(inner)
    if tag in ("d", "s", "fs"):
        _check_hashes([key for key, _ in members] if tag == "d" else members)
    return makers[tag](members)


def _check_hashes(members: list) -> None:
    """Raises ValueError on members that would make a set or dictionary slow, TypeError on unhashable ones."""
    if len(members) > MAX_HASHED:
        raise ValueError("too many members")
    hashes = sorted(map(hash, members))
    if any(one == other for one, other in zip(hashes, hashes[MAX_EQUAL_HASHES:], strict=False)):
        raise ValueError("too many members of one hash")


def _read(descriptor: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(descriptor, min(count, _CHUNK))
        if not part:
            return b""
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _receive(descriptor: int) -> object:
    """The next message, None at the end."""
    size = _read(descriptor, 4)
    return marshal.loads(_read(descriptor, int.from_bytes(size, "little"))) if size else None


def _say(descriptor: int, line: str) -> None:
    data = line.encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def _limit(memory: int, processes: int, cpu_seconds: int, file_bytes: int) -> None:
    """Hard limits of this process and of its children; 0 sets none."""
    import resource

    for kind, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_CPU, cpu_seconds),
    ):
        if value:
            resource.setrlimit(kind, (value, value))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def landlock_version() -> int:
    """The version of Landlock that this kernel offers, 0 for none."""
    if sys.platform != "linux":
        return 0
    try:
        return _system_call(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION)
    except (OSError, ImportError, AttributeError):
        return 0


def _confine(version: int) -> None:
    """Landlock for this process and its children, for good: no file is written (but /dev/null), made, removed or
    executed, no TCP, no signal or abstract socket to anything outside. Raises OSError where the kernel refuses."""
    import ctypes

    bits = sum(1 << bit for since, added in _FILE_BITS.items() if since <= version for bit in added)
    fields = [bits]
    if version >= _TCP_VERSION:
        fields.append(_TCP)
    if version >= _SCOPES_VERSION:
        fields.append(_SCOPES)
    attributes = b"".join(field.to_bytes(8, sys.byteorder) for field in fields)
    ruleset = _system_call(_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    empty = os.open("/dev/null", os.O_PATH | os.O_CLOEXEC)
    allowed = (bits & (_WRITE_FILE | _TRUNCATE)).to_bytes(8, sys.byteorder) + empty.to_bytes(4, sys.byteorder)
    _system_call(_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_PATH_BENEATH, allowed, 0)
    if ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, *[ctypes.c_ulong(value) for value in (1, 0, 0, 0)]):
        raise OSError("prctl")
    _system_call(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
    os.close(empty)
    os.close(ruleset)


def _system_call(number: int, *arguments: object) -> int:
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    wide = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    library.syscall.restype = ctypes.c_long
    result = library.syscall(ctypes.c_long(number), *wide)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _tree_text(node: object) -> str:
    """A syntax tree without positions, so that layout and comments do not matter."""
    if isinstance(node, list):
        return "[" + ",".join(_tree_text(item) for item in node) + "]"
    if hasattr(node, "_fields"):
        inner = ",".join(_tree_text(getattr(node, name, None)) for name in node._fields)
        return f"{type(node).__name__}({inner})"
    return f"{type(node).__name__}:{node!a}"


def _fingerprint(source: str) -> str:
    """A hash of the program's syntax tree, `-` where it is too deep to walk."""
    import hashlib

    try:
        text = _tree_text(compile(source, "program.py", "exec", _ONLY_AST))
    except (RecursionError, ValueError):
        return "-"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _compiled(job: dict, report: int) -> types.CodeType:
    """The program's code; what is no program ends the process, with the reason said."""
    try:
        print_of_tree = _fingerprint(job["source"]) if job["fingerprint"] else "-"
        code = compile(job["source"], "program.py", "exec", dont_inherit=True)
    except SyntaxError as error:
        reason = " ".join(str(error.msg).split())[:200]
        _say(report, f"syntax {error.lineno or 0} {type(error).__name__}: {reason}".encode("ascii", "replace").decode())
        os._exit(1)
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        _say(report, f"syntax 0 {type(error).__name__}: the program cannot be compiled")
        os._exit(1)
    _say(report, f"compiled {print_of_tree}")
    return code


def _as_module(name: str) -> dict:
    module = types.ModuleType(name)
    sys.modules[name] = module
    return module.__dict__


def _private_input() -> int:
    """Takes descriptor 0 away from the program, which reads an empty input instead; returns where it is now."""
    private = os.dup(0)
    empty = os.open("/dev/null", os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return private


def _run_script(job: dict, report: int) -> None:
    code = _compiled(job, report)
    os.close(report)  # nothing that the program writes can be taken for a word of ours
    namespace = _as_module("__main__")
    exec(code, namespace)


def _run_calls(job: dict, report: int) -> None:
    """Defines the program's functions, then answers each call of the host with a line of its result."""
    global _keeps
    _keeps = True
    calls = _private_input()
    code = _compiled(job, report)
    namespace = _as_module("program")
    if job["prelude"]:
        exec(job["prelude"], namespace)
    exec(code, namespace)
    while (message := _receive(calls)) is not None:
        name, arguments, keywords = message
        function = namespace.get(name)
        if not callable(function) and "Solution" in namespace:
            function = getattr(namespace["Solution"](), name)
        if function is None:
            raise NameError(f"the program defines no {name}")
        _say(report, "value " + encode(function(*decode(arguments), **decode(keywords))))


def _run_check(job: dict, report: int) -> None:
    """Runs a test of a data set; the functions under test are the host's to answer. Never runs a model's program."""
    answers = _private_input()
    code = _compiled(job, report)
    namespace = _as_module("check")

    def proxy(name: str):
        def call(*arguments, **keywords):
            _say(report, "call " + encode([name, list(arguments), keywords]))
            message = _receive(answers)
            if message is None:
                os._exit(1)
            return decode(message[0])

        call.__name__ = name
        return call

    exec(job["prelude"], namespace)
    namespace.update({name: proxy(name) for name in job["targets"]})
    import random

    random.seed(0)
    try:
        exec(code, namespace)
    except BaseException as error:
        _say(report, f"failed {type(error).__name__}")
        os._exit(0)
    _say(report, "passed")
    os._exit(0)


def main(report: int, landlock: int, *limits: int) -> None:
    """One program, then the end of the process: exit code 0, the program's own, 1 for an exception, 101 for memory.

    `landlock`: the version to confine the process with, 0 for none.
    """
    if landlock:
        _confine(landlock)
    _limit(*limits)
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)
    _say(report, "ready")
    job = _receive(0)
    if job is None:
        os._exit(0)
    run = {"script": _run_script, "calls": _run_calls, "check": _run_check}[job["mode"]]
    try:
        run(job, report)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except SystemExit:
        raise
    except BaseException as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != "program.py":
            frames = frames.tb_next
        sys.__excepthook__(type(error), error.with_traceback(frames), frames)
        sys.exit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
