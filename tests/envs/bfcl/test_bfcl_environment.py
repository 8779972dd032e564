"""The environment: protocol, verdicts against the benchmark's own checker, hostile replies, isolation, step signal."""

import itertools
import json
import random
import string

import numpy as np
import pytest
from bfcl_worlds import CONFIG, GOLD, needs_package, probe_task, started, state_of
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.envs import registry
from jaxagent.envs.base import Environment, InfrastructureError
from jaxagent.envs.bfcl import environment as bfcl
from jaxagent.envs.bfcl import functions, package, tasks
from jaxagent.envs.bfcl.calls import MAX_REPLY_CHARS, Call
from jaxagent.envs.bfcl.expert import perfect_reply, reply_of
from jaxagent.envs.bfcl.world import World
from jaxagent.envs.workers import EnvironmentPool, ResetRequest, StepRequest
from jaxagent.episodes import Task
from jaxagent.errors import UserError

pytestmark = needs_package
BINARY = {"docs": "names", "tool_format": "python"}


def play(environment, task, replies):
    """Results of the replies, until the episode ends."""
    environment.reset(task, 0)
    results = []
    for reply in replies:
        results.append(environment.step(reply))
        if results[-1].ended:
            break
    return results


def replay(environment, task, *, batched):
    environment.reset(task, 0)
    results = []
    while not results or not results[-1].ended:
        results.append(environment.step(perfect_reply(environment, batched=batched)))
        assert len(results) < 100
    return results


# Protocol


def test_it_is_an_environment():
    assert isinstance(started(), Environment)
    assert registry.get("bfcl").name == "bfcl" and "bfcl" in registry.names()


@pytest.mark.parametrize(("budget", "ended"), [(7, "success"), (6, None), (5, None)])
def test_two_user_turns_of_three_and_two_calls_take_seven_replies(budget, ended):
    environment = started()
    results = []
    for _ in range(budget):
        results.append(environment.step(perfect_reply(environment, batched=False)))
    assert results[-1].ended == ended
    assert sum(result.reward for result in results) == (ended == "success")
    assert environment._user_turn == 1
    task = probe_task()
    assert tasks.fewest_turns(task.data) == 4
    assert [bfcl.best_success(task, turns) for turns in (3, 4, 5)] == [0.0, 1.0, 1.0]


def test_results_come_from_real_state():
    environment = started()
    texts = [environment.step(f"[{call}]").observation.text for call in ("ls()", "mkdir(dir_name='q')", "ls()")]
    assert texts[0] == 'ls: {"current_directory_content": ["notes", "b.txt"]}'
    assert texts[2] == 'ls: {"current_directory_content": ["notes", "b.txt", "q"]}'


def test_an_endless_caller_never_ends_the_episode_itself():
    environment = started()
    assert [environment.step("[ls()]").ended for _ in range(200)] == [None] * 200


def test_user_messages_follow_the_closing_reply():
    environment = started()
    assert environment.reset(probe_task(), 0).text.endswith("User: request 0")
    assert environment.step("done").observation.text == "User: request 1"
    last = environment.step("done")
    assert (last.ended, last.reward, last.info["action"]) == ("failure", 0.0, "done")
    with pytest.raises(RuntimeError, match="reset first"):
        environment.step("done")


def test_withheld_functions_are_refused_until_revealed():
    task = probe_task([[], [["sort", {"file_name": "b.txt"}]]], withheld={"1": ["sort"]})
    environment = started(task)
    assert "sort(file_name)" not in environment.reset(task, 0).text
    refused = environment.step("[sort(file_name='b.txt')]")
    assert (refused.info["valid"], refused.info["error"]) == (False, "unknown_function")
    assert "sort(file_name)" in environment.step("cannot").observation.text
    assert environment.step("[sort(file_name='b.txt')]").observation.text == 'sort: {"sorted_content": "three"}'
    assert environment.step("done").ended == "success"


def test_both_formats_are_understood_and_results_look_as_asked_for():
    environment = started(tool_format="tool_call")
    text = environment.step("[pwd()]").observation.text
    assert text == '<tool_response>\n{"current_working_directory": "/home"}\n</tool_response>'
    two = environment.step('<tool_call>{"name": "pwd"}</tool_call><tool_call>{"name": "ls"}</tool_call>').observation
    assert two.text.count("<tool_response>") == 2
    assert "<tool_call>" in environment.reset(probe_task(), 0).text


def test_documents_are_json_schema():
    prompt = started(docs="full").reset(probe_task(), 0).text
    lines = [json.loads(line) for line in prompt.splitlines() if line.startswith('{"type"')]
    assert len(lines) == len(functions.owners()) == 129
    types = set()

    def collect(value):
        if isinstance(value, dict):
            types.update([value["type"]] if isinstance(value.get("type"), str) else [])
            for inner in value.values():
                collect(inner)

    collect([*map(collect, (line["function"]["parameters"] for line in lines))])
    assert types <= {"object", "string", "number", "integer", "boolean", "array"}


def test_long_results_are_shortened_in_the_text_alone():
    config_text = "x" * 5000
    gold = [[["echo", {"content": config_text, "file_name": "long.txt"}], ["cat", {"file_name": "long.txt"}]]]
    environment = started(probe_task(gold), max_result_chars=100)
    text = environment.step(reply_of([Call(*call) for call in gold[0]], "python")).observation.text
    assert len(text) < 250 and "characters left out" in text
    assert environment.step("done").ended == "success"


def test_the_results_of_a_reply_share_their_room():
    environment = started(max_result_chars=1000)
    environment.step("[echo(content='" + "y" * 20_000 + "', file_name='long.txt')]")
    text = environment.step("[" + ", ".join(["cat(file_name='long.txt')"] * 64) + "]").observation.text
    assert text.count("characters left out") == 64 and len(text) < 64 * 130


# Verdicts


@pytest.mark.parametrize("category", tasks.CATEGORIES)
def test_answers_replay_to_reward_one_and_every_step_is_good(category):
    environment = bfcl.make_environment(BINARY)
    for entry, data in tasks.entries(category).items():
        task = Task("bfcl", entry, data, 20)
        results = replay(environment, task, batched=True)
        assert (results[-1].ended, results[-1].reward) == ("success", 1.0), entry
        assert len(results) == tasks.fewest_turns(data) <= 20
        assert all(result.info["good"] and result.info["valid"] for result in results), entry
        assert results[-1].info["progress"] == 1.0 and all(result.info["progress"] < 1.0 for result in results[:-1])


@pytest.mark.parametrize("category", tasks.SCORED)
def test_a_silent_agent_gets_nothing(category):
    environment = bfcl.make_environment(BINARY)
    for entry, data in tasks.entries(category).items():
        outcome = play(environment, Task("bfcl", entry, data, 20), itertools.repeat("done"))[-1]
        assert (outcome.ended, outcome.reward) == ("failure", 0.0)


@pytest.mark.parametrize("category", ["base", *(pytest.param(c, marks=pytest.mark.slow) for c in tasks.SCORED[1:])])
def test_an_agent_with_one_wrong_argument_gets_nothing(category):
    environment, spoilt = bfcl.make_environment(BINARY), 0
    for entry, data in tasks.entries(category).items():
        turns = _one_wrong_argument(data)
        if turns is not None:
            replies = [reply for turn in turns for reply in (*([reply_of(turn, "python")] if turn else []), "done")]
            outcome = play(environment, Task("bfcl", entry, data, 20), replies)[-1]
            spoilt += 1
            assert (outcome.ended, outcome.reward) == ("failure", 0.0), entry
    assert spoilt > 190


def _one_wrong_argument(data):
    """The answer with one argument changed, the last whose change shows in a result that occurs but once; None where
    there is none."""
    flat = [(turn, Call(*call)) for turn, calls in enumerate(data["gold"]) for call in calls]
    results = _results_of(data, [call for _, call in flat])
    for place in reversed(range(len(flat))):
        turn, call = flat[place]
        for key, value in call.arguments.items():
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                continue
            wrong = Call(call.name, call.arguments | {key: f"{value}zz" if isinstance(value, str) else value + 7})
            changed = [*flat[:place], (turn, wrong), *flat[place + 1 :]]
            if results.count(results[place]) == 1 and results[place] not in _results_of(data, [c for _, c in changed]):
                return [[call for where, call in changed if where == number] for number in range(len(data["gold"]))]
    return None


def _results_of(data, calls):
    world = World(data["classes"], data["initial_config"], long_context=data["category"] in tasks.LONG)
    return [world.call(call.name, call.arguments) for call in calls]


def test_the_share_of_user_turns_before_the_first_failure():
    gold = [*GOLD, [["get_current_time", {}]]]
    environment = started(probe_task(gold), reward="share")
    replies = [reply_of([Call(*call) for call in gold[0]], "python"), "done", "done", "[get_current_time()]", "done"]
    results = play(environment, probe_task(gold), replies)
    assert (results[-1].ended, results[-1].reward) == ("failure", pytest.approx(1 / 3))
    assert [result.info["good"] for result in results] == [True, True, False, True, True]
    assert results[-1].info["progress"] == pytest.approx(4 / 9)


def _upstream_verdict(entry, answer, replies, name):
    from bfcl.eval_checker.multi_turn_eval import multi_turn_checker, multi_turn_utils
    from bfcl.eval_checker.multi_turn_eval.func_source_code.posting_api import TwitterAPI

    try:
        category = entry["id"].rsplit("_", 1)[0]
        return multi_turn_checker.multi_turn_checker(replies, answer, entry, category, name)["valid"]
    finally:
        for default in TwitterAPI.post_tweet.__defaults__:  # upstream's leak between tweets, undone
            default.clear()
        for leftover in [key for key in vars(multi_turn_utils) if key.startswith(name)]:
            delattr(multi_turn_utils, leftover)


def _perturbed(generator, gold, names):
    """The answer with one or two calls dropped, swapped, repeated, renamed, moved to another user turn or altered."""
    turns = [[list(call) for call in turn] for turn in gold]
    where = [index for index, turn in enumerate(turns) if turn]
    for _ in range(generator.choice((1, 1, 2))):
        turn = turns[generator.choice(where)]
        if not turn:
            continue
        place, kind = (
            generator.randrange(len(turn)),
            generator.choice(("drop", "swap", "again", "name", "move", "alter")),
        )
        if kind == "drop":
            del turn[place]
        elif kind == "swap":
            other = generator.randrange(len(turn))
            turn[place], turn[other] = turn[other], turn[place]
        elif kind == "again":
            turn.insert(generator.randrange(len(turn) + 1), turn[place])
        elif kind == "name":
            turn[place] = [generator.choice(names), turn[place][1]]
        elif kind == "move":
            turns[generator.choice(where)].append(turn.pop(place))
        else:
            turn[place] = [turn[place][0], _altered(generator, turn[place][1])]
    return turns


def _altered(generator, arguments):
    arguments = dict(arguments)
    if not arguments:
        return {"extra": 1}
    key = generator.choice(list(arguments))
    value = arguments[key]
    choices = [None, "..", 5, str(value)]
    if isinstance(value, str):
        choices = [value + "x", value.upper(), value.lower(), "..", 5, None]
    elif isinstance(value, bool):
        choices = [not value]
    elif isinstance(value, int | float):
        choices = [value + 1, -value, str(value), float(value)]
    elif isinstance(value, list):
        choices = [[], value[:1], value * 2, value[::-1]]
    arguments[key] = generator.choice(choices)
    return arguments if generator.random() < 0.8 else {name: arguments[name] for name in arguments if name != key}


def _agreement(category, variants):
    """(agreements by verdict, disagreements) between this environment and the benchmark's checker."""
    raw = {line["id"]: line for line in package.read_lines(f"BFCL_v3_multi_turn_{category}.json")}
    answers = package.read_lines(f"possible_answer/BFCL_v3_multi_turn_{category}.json")
    environment, counts, disagreements = bfcl.make_environment(BINARY), {True: 0, False: 0}, []
    for answer in ({line["id"]: line["ground_truth"] for line in answers}).items():
        entry, gold = answer
        data = tasks.entries(category)[entry]
        if sum(map(len, gold)) != sum(map(len, data["gold"])):
            continue  # an answer that is no call at all is not demanded here
        generator = random.Random(entry)
        for variant in range(variants):
            turns = _perturbed(generator, data["gold"], functions.offered(data["classes"], ()))
            mine, replies = _played(environment, Task("bfcl", entry, data, 99), turns, one_a_reply=variant % 2 == 0)
            theirs = _upstream_verdict(raw[entry], gold, replies, f"probe_{category}_{variant}")
            counts[theirs] += 1
            if mine != theirs:
                disagreements.append((entry, variant, turns))
    return counts, disagreements


def _played(environment, task, turns, *, one_a_reply):
    """(success here, the replies as the benchmark's checker takes them); withheld functions are offered to neither."""
    environment.reset(task, 0)
    replies = []
    for turn in turns:
        made = [Call(*call) for call in turn if call[0] in environment.offered]
        groups = [[call] for call in made] if one_a_reply else [made] if made else []
        for group in groups:
            environment.step(reply_of(group, "python"))
        replies.append([[call.as_text() for call in group] for group in groups])
        last = environment.step("done")
    return last.ended == "success", replies


@pytest.mark.parametrize("category", ("base", "miss_func", "composite"))
def test_verdicts_equal_the_benchmarks_checker(category):
    counts, disagreements = _agreement(category, variants=1)
    assert disagreements == [] and min(counts.values()) > 20


@pytest.mark.slow
def test_verdicts_equal_the_benchmarks_checker_on_thousands_of_answers():
    total = 0
    for category in tasks.CATEGORIES:
        counts, disagreements = _agreement(category, variants=6)
        assert disagreements == []
        total += sum(counts.values())
    assert total >= 5000


# Hostile replies


def _json_call(name, arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


CLOSES = "request 1"
HOSTILE = [  # reply, valid, error kind, part of the observation
    ("<tool_call>{bad json}</tool_call>", False, "bad_json", "not valid JSON"),
    ("<tool_call></tool_call>", False, "bad_json", "not valid JSON"),
    ("<tool_call>[]</tool_call>", False, "bad_json", "JSON object"),
    ("<tool_call>{}</tool_call>", False, "bad_json", "JSON object"),
    ('<tool_call>{"name": "ls", "arguments": "x"}</tool_call>', False, "bad_json", "JSON object"),
    ('<tool_call>{"name": null}</tool_call>', False, "bad_json", "JSON object"),
    ('<tool_call>{"name": "ls"}', False, "unclosed_call", "no </tool_call>"),
    ("<tool_call>" * 500, False, "unclosed_call", "no </tool_call>"),
    ('{"name": "ls", "arguments": {}}', False, "bad_format", "between"),
    ("[rm_rf()]", False, "unknown_function", "no function 'rm_rf'"),
    (_json_call("rm -rf /", {}), False, "unknown_function", "no function 'rm -rf /'"),
    (_json_call("__init__", {}), False, "unknown_function", "no function"),
    (_json_call("_load_scenario", {"scenario": {}}), False, "unknown_function", "no function"),
    ("[_load_scenario(scenario={})]", False, "unknown_function", "no function"),
    ("[__class__()]", False, "unknown_function", "no function"),
    ("[__import__(name='os')]", False, "unknown_function", "no function"),
    ("[eval(source='1')]", False, "unknown_function", "no function"),
    ("[exec(code='1')]", False, "unknown_function", "no function"),
    ("[exit()]", False, "unknown_function", "no function"),
    ("[long_context()]", False, "unknown_function", "no function"),
    ("[root()]", False, "unknown_function", "no function"),
    ("[_random()]", False, "unknown_function", "no function"),
    ("[_set_card_balance(card_id='1', balance=9)]", False, "unknown_function", "no function"),
    ("[_navigate_to_directory(path='/')]", False, "unknown_function", "no function"),
    ("[sort(file_name='b.txt')]", False, "unknown_function", "no function 'sort'"),
    ("[l\u0455()]", False, "unknown_function", "no function"),
    ("[GorillaFileSystem.ls()]", False, "bad_python", "plain name"),
    ("[os.system(command='x')]", False, "bad_python", "plain name"),
    ("[ls().__class__()]", False, "bad_python", "plain name"),
    ("[ls()()]", False, "bad_python", "plain name"),
    ("[cat(file_name=ls())]", False, "nested_call", "cannot be an argument"),
    ("[cat(file_name=__import__('os').getcwd())]", False, "nested_call", "cannot be an argument"),
    ("[cat(file_name=open('/etc/hostname').read())]", False, "nested_call", "cannot be an argument"),
    ("[cat(file_name=[x for x in (1,)])]", False, "not_a_literal", "plain values"),
    ("[cat(file_name=f'{1}')]", False, "not_a_literal", "plain values"),
    ("[cat(file_name=b'b.txt')]", False, "not_a_literal", "plain values"),
    ("[add(a=9**9**9, b=1)]", False, "not_a_literal", "plain values"),
    ("[add(a='9'*9999999, b=1)]", False, "not_a_literal", "plain values"),
    ("[(lambda: ls())()]", True, None, CLOSES),
    ("ls(", False, "bad_python", "not valid python"),
    ("[ls()", False, "bad_python", "not valid python"),
    ("[ls()]]", False, "bad_python", "not valid python"),
    ("[ls(), 5]", False, "bad_python", "must be a call"),
    ("[ls(*[1])]", False, "bad_python", "stars"),
    ("[ls(**{'a': True})]", False, "bad_python", "stars"),
    ("[ls(a=True, a=False)]", False, "bad_python", "given twice"),
    ("[ls(True)]", False, "positional_arguments", "by its name"),
    ("[cat('b.txt')]", False, "positional_arguments", "by its name"),
    ("[" + ",".join(["ls()"] * 100) + "]", False, "too_many_calls", "more than 64"),
    ("f(" * 5000, False, "bad_python", "not valid python"),
    ("[cat(file_name=" + "[" * 5000, False, "bad_python", "not valid python"),
    ("[add(a=" + "-" * 5000 + "1, b=1)]", False, "bad_python", "not valid python"),
    ("[display_log(messages=" + "[" * 15 + "]" * 15 + ")]", False, "too_deep", "too deeply"),
    (_json_call("display_log", {"messages": [[[[[[[[[[[["x"]]]]]]]]]]]]}), False, "too_deep", "too deeply"),
    ('<tool_call>{"name": "add", "arguments": {"a": NaN, "b": 1}}</tool_call>', False, "not_finite", "finite"),
    ('<tool_call>{"name": "add", "arguments": {"a": 1e999, "b": 1}}</tool_call>', False, "not_finite", "finite"),
    ("[add(a=1e999, b=1)]", False, "not_finite", "finite"),
    ("[add(a=" + "9" * 4000 + ", b=1)]", False, "too_large", "too large"),
    ("[add(a=" + "9" * 9000 + ", b=1)]", False, "bad_python", "not valid python"),
    ("[power(base=10, exponent=1000000000)]", False, "too_large", "within 10000"),
    ("[square_root(number=2, precision=100000000)]", False, "too_large", "within 1000"),
    ("[logarithm(value=8, base=2, precision=50000000)]", False, "too_large", "within 1000"),
    ("[logarithm(value='1e999999999', base=2, precision=5)]", False, "too_large", "within"),
    ("[round_number(number=1, decimal_places=-1000000000)]", False, "too_large", "within 1000"),
    ("[cd(folder=5)]", True, None, "Error during execution"),
    ("[rm(file_name={})]", True, None, "Error during execution"),
    ("[lockDoors(unlock=True, door=['trunk'])]", True, None, "Error during execution"),
    ("[cat(file_name=None)]", True, None, "Error during execution"),
    ("[cat(path='b.txt')]", True, None, "unexpected keyword"),
    ("[cat()]", True, None, "missing 1 required"),
    ("[cat(file_name='b.txt', self=1)]", True, None, "multiple values"),
    ("[cat(file_name='/etc/passwd')]", True, None, "Invalid character"),
    ("[cd(folder='../../../etc')]", True, None, "No such directory"),
    ("[cp(source='notes', destination='notes')]", True, None, "cyclic"),
    ("[cat(file_name='</tool_response><|im_end|>')]", True, None, "Invalid character"),
    ("[echo(content='\x00a\ud800b')]", True, None, '"ab"'),
    (_json_call("echo", {"content": "\x00\ud800z"}), True, None, '"z"'),
    ("[echo(content='" + "y" * 30_000 + "')]", True, None, "characters left out"),
    ("[echo(content='" + "y" * 40_000 + "')]", False, "too_long", f"more than {MAX_REPLY_CHARS}"),
    ("w" * 10_000_000, False, "too_long", f"more than {MAX_REPLY_CHARS}"),
    ("<think>" * 1_000_000 + "[ls()]", True, None, CLOSES),
    ("<think>[rm(file_name='b.txt')]</think>", True, None, CLOSES),
    ("", True, None, CLOSES),
    ("\x00\ud800", True, None, CLOSES),
    ("I shall call rm(file_name='b.txt') for you.", True, None, CLOSES),
    ("</tool_call></tool_call>", True, None, CLOSES),
    ("[]", True, None, CLOSES),
    ("\u202e\U0001f980 \u0000", True, None, CLOSES),
    ("[ls(), rm_rf()]", True, None, "no function 'rm_rf'"),
]  # fmt: skip


def test_the_table_is_long_enough():
    assert len(HOSTILE) >= 60


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_hostile_reply_gets_its_observation(number):
    reply, valid, error, part = HOSTILE[number]
    environment = started(probe_task(withheld={"1": ["sort"]}))
    before, untouched = state_of(environment), state_of(started())
    result = environment.step(reply)
    assert (result.info["valid"], result.info["error"]) == (valid, error)
    assert part in result.observation.text and len(result.observation.text) < 2600
    assert result.ended is None and result.reward == 0.0
    result.observation.text.encode("utf-8")
    assert "\x00" not in result.observation.text
    if not valid:
        assert state_of(environment) == before
        assert (result.info["good"], result.info["progress"]) == (False, 0.0)
    if part == CLOSES:
        assert state_of(environment) == before and result.info["action"] == "done"
    assert environment.step("[pwd()]").info["valid"]
    assert state_of(started()) == untouched  # other episodes start where they always did


ARGUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(sorted(functions.owners())) if package.is_installed() else st.just("ls")
KNOWN = st.sampled_from(["notes", "b.txt", "..", "home", "new", "GOOG", "1", "on", "START", "USD"])


@st.composite
def replies(draw):
    """Calls with right names and arbitrary arguments in either format, damaged or not, and plain noise."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.text(alphabet=string.printable + "\x00\ud800é{}[]()<>", max_size=80))
    made = []
    for _ in range(draw(st.integers(1, 3))):
        name = draw(NAMES)
        keys = list(functions.documents(functions.owners()[name])[name]["parameters"]["properties"])
        made.append(Call(name, {key: draw(KNOWN | ARGUMENTS) for key in keys if draw(st.integers(0, 9))}))
    try:
        text = reply_of(made, draw(st.sampled_from(("python", "tool_call"))))
    except ValueError:  # integers beyond what Python prints
        return "[ls()]"
    if draw(st.integers(0, 3)) == 0:
        place = draw(st.integers(0, len(text)))
        text = text[:place] + draw(st.text(max_size=4)) + text[place + draw(st.integers(0, 4)) :]
    return text


def _survives(environment, reply):
    result = environment.step(reply)
    assert result.reward in (0.0, 1.0) and isinstance(result.info["valid"], bool)
    assert isinstance(result.info["good"], bool) and 0.0 <= result.info["progress"] <= 1.0
    assert len(result.observation.text) < 20_000 and result.observation.anchor
    result.observation.text.encode("utf-8")
    if result.ended:
        environment.reset(probe_task([GOLD[0]] * 3), 0)


@settings(max_examples=100, deadline=None)
@given(st.lists(replies(), min_size=10, max_size=10))
def test_fuzzed_replies_get_an_observation(made):
    environment = started(probe_task([GOLD[0]] * 3))
    for reply in made:
        _survives(environment, reply)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(st.lists(replies(), min_size=10, max_size=10))
def test_ten_thousand_fuzzed_replies_get_an_observation(made):
    environment = started(probe_task([GOLD[0]] * 3))
    for reply in made:
        _survives(environment, reply)


# Isolation


def _random_replies(task, number):
    """A stream of replies that change a lot, a function of (task, number) alone."""
    generator = np.random.default_rng(number)
    gold = [Call(*call) for turn in task.data["gold"] for call in turn]
    offered = functions.offered(task.data["classes"], ())
    for _ in range(12):
        chance = generator.random()
        if chance < 0.6 and gold:
            yield reply_of([gold[int(generator.integers(len(gold)))]], "python")
        elif chance < 0.9:
            yield f"[{offered[int(generator.integers(len(offered)))]}()]"
        else:
            yield "done"


def test_episodes_that_run_at_once_equal_episodes_that_run_alone():
    chosen = [
        list(tasks.entries(category).items())[7 * i % 200]
        for i, category in zip(range(64), tasks.CATEGORIES * 13, strict=False)
    ]
    episodes = [Task("bfcl", entry, data, 20) for entry, data in chosen]
    before = json.dumps([task.data for task in episodes])
    alone = []
    for number, task in enumerate(episodes):
        results = play(bfcl.make_environment(BINARY), task, _random_replies(task, number))
        alone.append([(result.observation, result.reward, result.ended, result.info) for result in results])
    environments = [bfcl.make_environment(BINARY) for _ in episodes]
    streams = [_random_replies(task, number) for number, task in enumerate(episodes)]
    together = [[] for _ in episodes]
    for environment, task in zip(environments, episodes, strict=True):
        environment.reset(task, 0)
    for _ in range(12):
        for number, environment in enumerate(environments):
            reply = next(streams[number], None)
            if reply is not None and not (together[number] and together[number][-1][2]):
                result = environment.step(reply)
                together[number].append((result.observation, result.reward, result.ended, result.info))
    assert together == alone
    assert json.dumps([task.data for task in episodes]) == before


def test_one_success_among_eight_is_one_success():
    environments = [started() for _ in range(8)]
    ended = [None] * 8
    while None in ended:
        for number, environment in enumerate(environments):
            if ended[number] is None:
                reply = perfect_reply(environment, batched=True) if number == 3 else "done"
                ended[number] = environment.step(reply).ended
    assert ended == ["success" if number == 3 else "failure" for number in range(8)]


def test_worker_processes_give_the_same_results():
    chosen = [Task("bfcl", entry, data, 20) for entry, data in list(tasks.entries("base").items())[:6]]
    with EnvironmentPool("bfcl", BINARY, num_workers=2, step_timeout=60.0) as pool:
        apart = [pool.run([ResetRequest(slot, task, 0) for slot, task in enumerate(chosen)])]
        for reply in ("[pwd()]", "done", "[ls(]"):
            apart.append(pool.run([StepRequest(slot, reply) for slot in range(len(chosen))]))
    for slot, task in enumerate(chosen):
        environment = bfcl.make_environment(BINARY)
        here = [environment.reset(task, 0), *(environment.step(reply) for reply in ("[pwd()]", "done", "[ls(]"))]
        assert here == [results[slot] for results in apart]


def test_what_the_agent_did_not_break_voids_the_episode():
    broken = probe_task()
    broken.data["initial_config"] = {"GorillaFileSystem": {"root": {"home": "not a directory"}}}
    with pytest.raises(InfrastructureError) as caught:
        started(broken)
    assert caught.value.kind == "verifier"

    class Incomparable:
        def __ne__(self, other):
            raise ValueError("no")

    environment = started()
    environment._world._instances["TradingBot"].watch_list = Incomparable()
    with pytest.raises(InfrastructureError) as caught:
        environment.step("[get_current_time()]")
    assert caught.value.kind == "verifier"


# Step signal and anchor


def test_useless_and_invalid_replies_are_not_good():
    environment = started()
    useful = environment.step("[mkdir(dir_name='new')]")
    assert useful.info["good"] and 0.0 < useful.info["progress"] < 1.0
    useless = environment.step("[pwd()]")
    assert useless.info["valid"] and not useless.info["good"]
    invalid = environment.step("[pwd(")
    assert (invalid.info["good"], invalid.info["progress"]) == (False, useless.info["progress"])
    harm = environment.step("[setHeadlights(mode='on')]")
    assert not harm.info["good"] and harm.info["progress"] < useless.info["progress"]
    undone = environment.step("[setHeadlights(mode='off')]")
    assert undone.info["good"] and undone.info["progress"] == useless.info["progress"]


def test_anchors_tell_states_apart_and_only_states():
    environment = started()
    begun = environment.reset(probe_task(), 0).anchor
    assert begun == started().reset(probe_task(), 1).anchor
    first = environment.step("[pwd()]").observation.anchor
    assert environment.step("[pwd()]").observation.anchor == first != begun
    environment.step("[cd(folder='notes')]")
    environment.step("[cd(folder='..')]")
    assert environment.step("[pwd()]").observation.anchor == first
    environment.step("[pressBrakePedal(pedalPosition=0.5)]")
    assert environment.step("[pwd()]").observation.anchor != first
    environment.step("done")
    assert environment.step("[pwd()]").observation.anchor != first


def test_two_orders_meet_in_one_anchor():
    orders = ("[touch(file_name='x')]", "[touch(file_name='y')]")
    anchors = set()
    for replies_in_order in (orders, orders[::-1]):
        environment = started()
        for reply in replies_in_order:
            environment.step(reply)
        anchors.add(environment.step("[pwd()]").observation.anchor)
    assert len(anchors) == 1  # as in the benchmark's own comparison of states


# Options


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"docs": "none"}, "docs"),
        ({"tool_format": "xml"}, "tool_format"),
        ({"reward": "graded"}, "reward"),
        ({"split_by": "turn"}, "split_by"),
        ({"classes": ["Nothing"]}, "classes"),
        ({"classes": "MathAPI"}, "classes"),
        ({"classes": 5}, "classes"),
        ({"classes": [["MathAPI"]]}, "classes"),
        ({"categories": []}, "categories"),
        ({"max_turns": 0}, "max_turns"),
        ({"max_turns": True}, "max_turns"),
        ({"max_turns_per_user_turn": 0}, "max_turns_per_user_turn"),
        ({"max_result_chars": 5}, "max_result_chars"),
        ({"colour": 1}, "colour"),
    ],
)
def test_bad_options_are_named(options, named):
    with pytest.raises(UserError, match=named):
        bfcl.make_environment(options)


def test_the_initial_configuration_is_never_changed():
    before = json.dumps(CONFIG)
    environment = started()
    for reply in ("[rm(file_name='notes')]", "[post_tweet(content='x')]", "[follow_user(username_to_follow='q')]"):
        environment.step(reply)
    assert json.dumps(CONFIG) == before
