"""The guarded systems: nothing leaks between worlds or into the process, nothing runs away."""

import copy
import decimal
import importlib
import json
import os
import subprocess
import sys
import time

import pytest
from bfcl_worlds import CONFIG, needs_package

from jaxagent.envs.bfcl import package, tasks
from jaxagent.envs.bfcl.calls import Call, RefusedCallError
from jaxagent.envs.bfcl.world import World, check_magnitudes

pytestmark = needs_package
ALL = tuple(package.MODULES)


def world(classes=ALL, *, long_context=False, config=CONFIG):
    return World(classes, config, long_context=long_context)


def test_results_are_written_as_the_benchmark_does():
    probe = world()
    assert probe.call("cat", {"file_name": "b.txt"}) == '{"file_content": "three"}'
    assert probe.call("mkdir", {"dir_name": "x"}) == "None"
    assert probe.call("list_all_following", {}) == "['alice', 'bob']"
    assert probe.call("square_root", {"number": 2, "precision": 5}) == "{'result': Decimal('1.4142')}"
    assert probe.call("cd", {"folder": 5}).startswith("Error during execution: ")
    assert probe.call("cd", {"directory": "x"}).startswith("Error during execution: ")


def test_default_arguments_do_not_carry_over():
    # Upstream's default list of mentions is one object for all tweets of the process.
    first, second = world(), world()
    assert json.loads(first.call("post_tweet", {"content": "a"}))["mentions"] == []
    first.call("mention", {"tweet_id": 0, "mentioned_usernames": ["@x"]})
    assert json.loads(first.call("get_tweet", {"tweet_id": 0}))["mentions"] == ["@x"]
    assert json.loads(first.call("post_tweet", {"content": "b"}))["mentions"] == []
    assert json.loads(second.call("post_tweet", {"content": "a"}))["mentions"] == []


def test_long_records_do_not_carry_over():
    long = importlib.import_module("bfcl.eval_checker.multi_turn_eval.func_source_code.long_context")
    before = copy.deepcopy(long.CREDIT_CARD_EXTENSION), copy.deepcopy(long.BOOKING_RECORD_EXTENSION)
    probe, other = world(["TravelAPI"], long_context=True), world(["TravelAPI"], long_context=True)
    token = json.loads(
        probe.call(
            "authenticate_travel",
            dict.fromkeys(
                ("client_id", "client_secret", "refresh_token", "grant_type", "user_first_name", "user_last_name"), "x"
            ),
        )
    )["access_token"]
    card = next(name for name, value in before[0].items() if value.get("balance", 0) > 10)
    flight = {"travel_date": "2024-01-01", "travel_from": "SFO", "travel_to": "LAX", "travel_class": "economy"}
    booked = probe.call("book_flight", {"access_token": token, "card_id": card, "travel_cost": 10.0, **flight})
    assert '"booking_status": true' in booked
    assert {"credit_card_list", "booking_record"} <= {attribute for _, attribute in probe.differences(other)}
    assert before == (long.CREDIT_CARD_EXTENSION, long.BOOKING_RECORD_EXTENSION)
    assert not world(["TravelAPI"], long_context=True).differences(other)


def test_arguments_and_scenarios_are_copied():
    config, tags = copy.deepcopy(CONFIG), ["#a"]
    probe = world(config=config)
    probe.call("post_tweet", {"content": "a", "tags": tags, "mentions": tags})
    probe.call("mention", {"tweet_id": 0, "mentioned_usernames": ["@x"]})
    probe.call("follow_user", {"username_to_follow": "zed"})
    probe.call("rm", {"file_name": "notes"})
    assert tags == ["#a"] and config == CONFIG


def test_precision_of_the_process_stays():
    import mpmath

    digits, precision = mpmath.mp.dps, decimal.getcontext().prec
    probe = world(["MathAPI"])
    assert probe.call("logarithm", {"value": 8, "base": 2, "precision": 700}).startswith("{'result': mpf('3.0")
    probe.call("square_root", {"number": 2, "precision": 900})
    probe.call("square_root", {"number": 2, "precision": -4})
    assert (mpmath.mp.dps, decimal.getcontext().prec) == (digits, precision)


@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [
        ("power", {"base": 10, "exponent": 1e9}, "too_large"),
        ("power", {"base": 10, "exponent": 10**9}, "too_large"),
        ("square_root", {"number": 2, "precision": 10**8}, "too_large"),
        ("logarithm", {"value": 8, "base": 2, "precision": 5 * 10**7}, "too_large"),
        ("logarithm", {"value": "1e1000000000", "base": 2, "precision": 5}, "too_large"),
        ("logarithm", {"value": 8, "base": 2, "precision": "50000000"}, "too_large"),
        ("round_number", {"number": 5, "decimal_places": -(10**9)}, "too_large"),
        ("add", {"a": "nan", "b": 1}, "too_large"),
        ("add", {"a": [1], "b": 1}, "not_a_number"),
        ("add", {"a": "x" * 1000, "b": 1}, "not_a_number"),
    ],
)
def test_expensive_mathematics_is_refused(name, arguments, kind):
    with pytest.raises(RefusedCallError) as caught:
        check_magnitudes(Call(name, arguments))
    assert caught.value.kind == kind


def test_the_largest_numbers_that_pass_are_quick():
    probe, begun = world(["MathAPI"]), time.perf_counter()
    for call in (
        Call("power", {"base": 10**20, "exponent": 10_000}),
        Call("power", {"base": -1.5, "exponent": 9_999.5}),
        Call("square_root", {"number": 10**20, "precision": 1000}),
        Call("logarithm", {"value": "1e19", "base": 3, "precision": 1000}),
        Call("round_number", {"number": 10**20, "decimal_places": -1000}),
    ):
        check_magnitudes(call)
        probe.call(call.name, call.arguments)
    assert time.perf_counter() - begun < 5


def test_a_directory_copied_into_itself_changes_nothing():
    probe, before = world(), world().key("GorillaFileSystem")
    for name in ("cp", "mv"):
        result = probe.call(name, {"source": "notes", "destination": "notes"})
        assert "cyclic" in result or "moved" in result
        if name == "cp":
            assert probe.key("GorillaFileSystem") == before
        probe.call("find", {})
        assert probe.call("du", {}).startswith('{"disk_usage"')


def test_copies_of_copies_stay_small():
    # By reference each level doubles the paths: 2**60 of them would keep find busy for ever.
    probe, begun = world(), time.perf_counter()
    refused = 0
    for level in range(30):
        probe.call("mkdir", {"dir_name": f"d{level}"})
        probe.call("cp", {"source": "notes", "destination": f"d{level}"})
        refused += "too large" in probe.call("cp", {"source": "notes", "destination": f"c{level}"})
        probe.call("mv", {"source": f"c{level}", "destination": f"d{level}"})
        refused += "too large" in probe.call("cp", {"source": f"d{level}", "destination": "notes"})
    probe.call("find", {})
    assert refused > 0 and time.perf_counter() - begun < 20
    assert probe.differences(world()) and len(probe.key("GorillaFileSystem")) == 16


def test_deep_directories_stay_walkable():
    probe = world()
    results = []
    for _ in range(150):
        results.append(probe.call("mkdir", {"dir_name": "d"}))
        probe.call("cd", {"folder": "d"})
    assert "too deep" in results[-1]
    assert probe.differences(world()) == {("GorillaFileSystem", "root")}


def test_long_names_in_deep_directories_stay_printable():
    probe = world()
    for _ in range(30):
        probe.call("mkdir", {"dir_name": "n" * 30_000})
        probe.call("cd", {"folder": "n" * 30_000})
    probe.call("cd", {"folder": "/"})
    assert len(probe.call("find", {})) < 1_000_000


def test_differences_are_public_and_keys_are_not():
    probe, other = world(), world()
    assert probe.key("GorillaFileSystem") == other.key("GorillaFileSystem")
    probe.call("cd", {"folder": "notes"})
    assert not probe.differences(other)
    assert probe.key("GorillaFileSystem") != other.key("GorillaFileSystem")
    probe.call("get_current_speed", {})  # draws from the private generator
    assert probe.key("VehicleControlAPI") != other.key("VehicleControlAPI")
    probe.call("setHeadlights", {"mode": "on"})
    assert probe.differences(other) == {("VehicleControlAPI", "headLightStatus")}
    assert probe.differences(other, ["MathAPI"]) == set()


def test_names_that_are_no_texts_have_keys_too():
    # Python lists carry tuples, and upstream takes any name that can be a dictionary's key.
    probe, seen = world(), set()
    for name in ("('a', 'b')", ("a", "b"), (1, ("b",)), "1"):
        assert probe.call("touch", {"file_name": name}) == "None"
        seen.add(probe.key("GorillaFileSystem"))
    assert len(seen) == 4


def test_keys_are_the_same_in_every_process():
    code = (
        "from jaxagent.envs.bfcl.world import World; from jaxagent.envs.bfcl import package, tasks\n"
        "data = tasks.entries('long_context')['multi_turn_long_context_60']\n"
        "w = World(data['classes'], data['initial_config'], long_context=True)\n"
        "m = World(['MessageAPI'], {}, long_context=False)\n"
        "m.call('message_login', {'user_id': 'USR001'})\n"
        "[m.call('send_message', {'receiver_id': 'USR002', 'message': 'x'}) for _ in range(5)]\n"
        "print([w.key(name) for name in data['classes']], m.key('MessageAPI'))"
    )
    seen = set()
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        seen.add(done.stdout)
    assert len(seen) == 1 and "'" in seen.pop()


def test_loading_every_scenario_leaves_it_as_it_was():
    for category in ("base", "composite"):
        for data in tasks.entries(category).values():
            before = json.dumps(data["initial_config"], sort_keys=True)
            World(data["classes"], data["initial_config"], long_context=category == "composite")
            assert json.dumps(data["initial_config"], sort_keys=True) == before
