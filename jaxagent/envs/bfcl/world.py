"""The simulated systems of one episode: own instances, guarded calls, comparison and a canonical key.

The systems are plain Python objects of the benchmark's package that know nothing of episodes: some share module-level
lists and dictionaries, default arguments and number contexts, some build cyclic trees when asked. Everything here is
for keeping that inside one episode.
"""

import array
import contextlib
import copy
import decimal
import functools
import hashlib
import inspect
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxagent.envs.base import InfrastructureError
from jaxagent.envs.bfcl import calls, functions, package

STATELESS = frozenset({"MathAPI"})
MAX_EXPONENT = 10_000
MAX_DIGITS = 1_000  # of a precision or of decimal places
MAX_TREE_NODES = 5_000  # of a file tree, a node that is reached on two paths counted twice
MAX_TREE_DEPTH = 40
MAX_PATH_CHARS = 500_000  # of all paths together: what `find` may print
_LIMITS = {
    ("power", "exponent"): MAX_EXPONENT,
    ("logarithm", "precision"): MAX_DIGITS,
    ("square_root", "precision"): MAX_DIGITS,
    ("round_number", "decimal_places"): MAX_DIGITS,
}
_GROWS_TREE = frozenset({"cp", "mv", "mkdir", "touch", "echo"})
_NOT_STATE = frozenset({"_last_modified", "_api_description"})  # the clock, and a constant
_LONG_TEXT = 64


class World:
    """The systems of one task, each a fresh instance. Nothing of it is shared with another world."""

    def __init__(self, class_names: Sequence[str], initial_config: Mapping[str, Any], *, long_context: bool) -> None:
        """`initial_config`: class name -> the scenario that its instance loads; it is not changed.

        Raises `InfrastructureError` where one cannot be loaded.
        """
        self._instances = {name: _load(name, initial_config.get(name, {}), long_context) for name in class_names}

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Executes one documented function with checked arguments; the text of its result, or of its error.

        Whatever the function raises is its result, as in the benchmark: `Error during execution: ...`.
        """
        class_name = functions.owners()[name]
        if class_name == "GorillaFileSystem" and name in _GROWS_TREE:
            return self._call_in_tree(class_name, name, arguments)
        return self._call(class_name, name, arguments)

    def differences(self, other: "World", class_names: Sequence[str] | None = None) -> set[tuple[str, str]]:
        """The (class, attribute) pairs, public attributes alone, in which `other`, of the same task, differs."""
        found = set()
        for class_name in self._instances if class_names is None else class_names:
            mine, theirs = vars(self._instances[class_name]), vars(other._instances[class_name])
            for attribute in theirs:
                if not attribute.startswith("_") and _differ(mine.get(attribute, _MISSING), theirs[attribute]):
                    found.add((class_name, attribute))
        return found

    def key(self, class_name: str) -> str:
        """A hash of an instance's whole state, public and private, the same in every process."""
        try:
            canonical = json.dumps(_canonical(vars(self._instances[class_name])), sort_keys=True, default=repr)
        except (RecursionError, ValueError):
            canonical = "beyond description"
        return hashlib.blake2b(canonical.encode(), digest_size=8).hexdigest()

    def _call(self, class_name: str, name: str, arguments: Mapping[str, Any]) -> str:
        method = getattr(self._instances[class_name], name)
        given = copy.deepcopy(_mutable_defaults(class_name, name)) | copy.deepcopy(dict(arguments))
        with _own_number_contexts(class_name):
            try:
                return _as_text(method(**given))
            except Exception as error:
                return f"Error during execution: {error}"

    def _call_in_tree(self, class_name: str, name: str, arguments: Mapping[str, Any]) -> str:
        """As `_call`, but a call that would make the tree cyclic, huge or too deep changes nothing and says so.

        Directories are copied by reference, so copies of copies can make a tree of a few nodes with 2**n paths.
        """
        before = copy.deepcopy(self._instances[class_name])
        result = self._call(class_name, name, arguments)
        if _tree_fits(self._instances[class_name].root):
            return result
        self._instances[class_name] = before
        return json.dumps({"error": f"{name}: the directory tree would become cyclic, too deep or too large"})


def check_magnitudes(call: calls.Call) -> None:
    """Raises `RefusedCallError` where a number, or a text read as one, would keep the mathematics busy for long."""
    if functions.owners().get(call.name) != "MathAPI":
        return
    for key in functions.numbers_of(call.name) & call.arguments.keys():
        number = _as_number(call.arguments[key])
        if number is None:
            raise calls.RefusedCallError("not_a_number", f"{call.name}: argument {key!r} must be a number.")
        limit = _LIMITS.get((call.name, key), calls.MAX_INTEGER)
        if not abs(number) <= limit:
            raise calls.RefusedCallError("too_large", f"{call.name}: {key!r} must lie within {limit} of zero.")


def _as_number(value: Any) -> int | float | None:
    if isinstance(value, str):
        try:
            return float(value) if len(value) <= _LONG_TEXT else None
        except ValueError:
            return None
    return value if isinstance(value, int | float) else None


_MISSING = object()


def _load(class_name: str, scenario: Mapping[str, Any], long_context: bool) -> Any:
    instance = package.system_class(class_name)()
    if class_name not in STATELESS:
        try:
            instance._load_scenario(copy.deepcopy(dict(scenario)), long_context=long_context)
        except Exception as error:  # a damaged entry, not the agent's doing
            raise InfrastructureError("verifier", f"{class_name} cannot load its scenario: {error!r}") from error
    # The long scenarios put module-level records into the state; the copy makes them this instance's own. Its random
    # generator is its own already, and slow to copy.
    generators = {id(value): value for value in vars(instance).values() if isinstance(value, random.Random)}
    return copy.deepcopy(instance, generators)


@functools.cache
def _mutable_defaults(class_name: str, name: str) -> dict[str, Any]:
    """Default arguments that a call could change for all later ones."""
    parameters = inspect.signature(getattr(package.system_class(class_name), name)).parameters
    return {key: value.default for key, value in parameters.items() if isinstance(value.default, list | dict | set)}


@contextlib.contextmanager
def _own_number_contexts(class_name: str) -> Iterator[None]:
    """The mathematics sets the precision of the whole process; this sets it back."""
    if class_name != "MathAPI":
        yield
        return
    import mpmath

    digits = mpmath.mp.dps
    try:
        with decimal.localcontext():
            yield
    finally:
        mpmath.mp.dps = digits


def _as_text(value: Any) -> str:
    """A result as the benchmark writes it: texts as they are, dictionaries as JSON where possible."""
    if isinstance(value, dict):
        try:
            return json.dumps(value)
        except (TypeError, ValueError):
            return str(value)
    return value if isinstance(value, str) else str(value)


def _differ(mine: Any, theirs: Any) -> bool:
    try:
        return bool(mine != theirs)
    except RecursionError:  # a cyclic or very deep tree is not the answer's
        return True
    except Exception as error:
        raise InfrastructureError("verifier", f"states cannot be compared: {error!r}") from error


def _tree_fits(root: Any) -> bool:
    """Whether a walk over all paths of a tree stays within the limits; a cyclic tree does not."""
    pending, nodes, characters = [(root, 1, 0)], 0, 0
    while pending:
        node, depth, length = pending.pop()
        nodes, characters = nodes + 1, characters + length
        if depth > MAX_TREE_DEPTH or nodes > MAX_TREE_NODES or characters > MAX_PATH_CHARS:
            return False
        children = getattr(node, "contents", {})
        pending.extend((child, depth + 1, length + len(str(name)) + 1) for name, child in children.items())
    return True


def _canonical(value: Any) -> Any:
    """A JSON-able stand-in for a state: equal states have equal ones. Long texts are hashed, clocks left out."""
    if isinstance(value, str):
        return value if len(value) <= _LONG_TEXT else ["text", _text_key(value)]
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if isinstance(value, set | frozenset):
        return ["set", *sorted(json.dumps(_canonical(item), sort_keys=True, default=repr) for item in value)]
    if isinstance(value, dict):
        return {_typed(key): _canonical(item) for key, item in value.items() if key not in _NOT_STATE}
    if isinstance(value, random.Random):
        version, words, gauss = value.getstate()
        return ["random", version, hashlib.blake2b(array.array("Q", words), digest_size=8).hexdigest(), gauss]
    if hasattr(value, "parent") and hasattr(value, "contents"):
        return ["directory", _path(value), {_typed(name): _canonical(item) for name, item in value.contents.items()}]
    return [type(value).__name__, _canonical(vars(value))]


def _typed(key: Any) -> str:
    """A dictionary's key as a text: the systems take any hashable name, and a tuple cannot be sorted among texts."""
    return f"{type(key).__name__}:{key}"


def _path(directory: Any) -> str:
    names = []
    while directory is not None:
        names.append(str(directory.name))
        directory = directory.parent
    return "/".join(reversed(names))


@functools.lru_cache(maxsize=4096)
def _text_key(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
