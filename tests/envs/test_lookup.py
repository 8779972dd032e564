import collections
import functools
import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.envs import lookup
from jaxagent.episodes import Task
from jaxagent.errors import UserError


def task_of(needed=(1, 3), values="abcabc", num_values=3, reveal_probability=1.0, retry=False, max_turns=12):
    data = {
        "needed": list(needed),
        "values": values,
        "num_values": num_values,
        "reveal_probability": reveal_probability,
        "retry": retry,
    }
    return Task("lookup", "t", data, max_turns)


def started(task=None, seed=0, rendering="compact"):
    environment = lookup.make_environment({"rendering": rendering})
    return environment, environment.reset(task or task_of(), seed)


def texts(environment, *replies):
    return [environment.step(reply).observation.text for reply in replies]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": 4}, "env.options.fields is no option of 'lookup'; the options are num_fields, min_needed"),
        ({"num_fields": 9}, r"env.options.num_fields must be a whole number, 1\.\.8, got 9"),
        ({"max_needed": 7}, r"env.options.max_needed must be a whole number, 1\.\.6"),
        ({"min_needed": 5, "max_needed": 4}, "env.options.min_needed"),
        ({"num_values": 1}, r"env.options.num_values must be a whole number, 2\.\.4"),
        ({"reveal_probability": 0}, "env.options.reveal_probability"),
        ({"retry": 1}, "env.options.retry"),
        ({"max_turns": 0}, "env.options.max_turns must be a whole number, at least 1"),
        ({"max_turns": True}, "env.options.max_turns"),
        ({"rendering": "loud"}, "env.options.rendering"),
    ],
)
def test_bad_options_are_named(options, message):
    for make in (lambda: lookup.make_environment(options), lambda: lookup.make_tasks(options, "train", 1, 0)):
        with pytest.raises(UserError, match=message):
            make()


def test_tasks_are_uniform():
    source = lookup.make_tasks({}, "train", 2**20, 0)
    tasks = [source.task(index) for index in range(3000)]
    counts = collections.Counter(len(task.data["needed"]) for task in tasks)
    assert set(counts) == {2, 3, 4, 5, 6}
    assert all(count / 3000 == pytest.approx(0.2, abs=0.03) for count in counts.values())
    letters = collections.Counter("".join(task.data["values"] for task in tasks))
    assert all(letters[letter] / 18000 == pytest.approx(1 / 3, abs=0.02) for letter in "abc")
    fields = collections.Counter(field for task in tasks for field in task.data["needed"])
    assert all(fields[field] / 3000 == pytest.approx(4 / 6, abs=0.03) for field in range(1, 7))
    assert all(task.max_turns == 12 and task.data["needed"] == sorted(set(task.data["needed"])) for task in tasks)


def test_ids_do_not_depend_on_the_budget():
    for split in ("train", "panel"):
        sources = [lookup.make_tasks({"max_turns": turns}, split, 9, 0) for turns in (5, 12)]
        assert len({source.content_hash() for source in sources}) == 1
        assert [sources[0].task(i).id for i in range(9)] == [sources[1].task(i).id for i in range(9)]
        assert [source.task(0).max_turns for source in sources] == [5, 12]


def test_query_and_answer():
    environment, first = started()
    assert first.text == " need_1 free_2 need_3 free_4 free_5 free_6 start"
    assert texts(environment, "query_3", "query_2", "Query 3", "noop") == [
        " found_3 is_c",
        " found_2 is_b",
        " found_3 is_c",
        " noop",
    ]
    last = environment.step("answer_a")  # field 1, not seen, is a
    assert (last.observation.text, last.reward, last.ended) == (" right", 1.0, "success")
    assert last.info == {"valid": True, "action": "answer_a", "error": None}
    with pytest.raises(RuntimeError, match="no live episode"):
        environment.step("query_1")


def test_an_answer_fills_only_what_is_needed_and_unseen():
    for seen in itertools.chain.from_iterable(itertools.combinations((1, 2, 3), size) for size in range(4)):
        for letter in "abc":
            environment, _ = started(task_of((1, 2, 3), "abbccc"))
            texts(environment, *(f"query_{field}" for field in seen))
            unseen = {"abbccc"[field - 1] for field in (1, 2, 3) if field not in seen}
            result = environment.step(f"answer_{letter}")
            assert (result.ended == "success") == (unseen <= {letter})
            assert result.reward == float(unseen <= {letter})
            assert result.ended in ("success", "failure")


def test_retry():
    environment, _ = started(task_of((1, 3), "abcabc", retry=True))
    wrong = environment.step("answer_b")
    assert (wrong.observation.text, wrong.reward, wrong.ended, wrong.info["valid"]) == (" wrong", 0.0, None, True)
    assert wrong.observation.anchor != "need:1,3;known:"
    texts(environment, "query_1")
    assert environment.step("answer_c").ended == "success"


def test_misses_come_from_the_seed():
    def trace(seed):
        return tuple(texts(started(task_of(reveal_probability=0.5), seed)[0], *["query_1", "query_2", "query_4"] * 2))

    assert [trace(seed) for seed in range(9)] == [trace(seed) for seed in range(9)]
    assert len({trace(seed) for seed in range(9)}) > 3
    misses = sum(
        texts(started(task_of(reveal_probability=0.75), seed)[0], "query_1") == [" miss"] for seed in range(2000)
    )
    assert misses / 2000 == pytest.approx(0.25, abs=0.03)
    environment, _ = started(task_of(reveal_probability=0.5), seed=3)
    while environment.step("query_1").observation.text == " miss":
        pass
    assert set(texts(environment, *["query_1"] * 20)) == {" found_1 is_a"}  # a known field never misses


def best_by_belief(unseen, turns, num_values, reveal, retry):
    """The best success probability, by recursion over the set of value assignments that are still possible."""

    @functools.cache
    def best(possible, seen, left):
        if left == 0:
            return Fraction(0)
        options = []
        for letter in range(num_values):
            right = {case for case in possible if all(case[f] == letter for f in range(unseen) if f not in seen)}
            share = Fraction(len(right), len(possible))
            rest = frozenset(possible - right)
            retried = (1 - share) * best(rest, seen, left - 1) if retry and rest else 0
            options.append(share + retried)
        for field in set(range(unseen)) - seen:
            value = (1 - reveal) * best(possible, seen, left - 1)
            for letter in range(num_values):
                shown = frozenset(case for case in possible if case[field] == letter)
                if shown:
                    share = reveal * Fraction(len(shown), len(possible))
                    value += share * best(shown, seen | {field}, left - 1)
            options.append(value)
        return max(options)

    return best(frozenset(itertools.product(range(num_values), repeat=unseen)), frozenset(), turns)


@pytest.mark.parametrize("retry", [False, True])
@pytest.mark.parametrize(("unseen", "num_values"), [(1, 2), (1, 3), (2, 2), (2, 3), (3, 2)])
def test_best_success_agrees_with_exact_belief_recursion(unseen, num_values, retry):
    reveal = Fraction(3, 4)
    task = task_of(range(1, unseen + 1), "aaaaaa", num_values, 0.75, retry)
    for turns in range(6):
        expected = float(best_by_belief(unseen, turns, num_values, reveal, retry))
        assert lookup.best_success(task, turns) == pytest.approx(expected, abs=1e-12)


def test_best_success_is_near_the_published_values():
    """.196 .638 .933 .994 at 3, 6, 9, 12 turns on one sample of tasks; here exactly, over the distribution of m."""
    means = [np.mean([lookup.best_success(task_of(range(1, m + 1), "aaaaaa", 3, 0.75), t) for m in range(2, 7)])
             for t in (3, 6, 9, 12)]  # fmt: skip
    assert means == pytest.approx([0.196, 0.638, 0.933, 0.994], abs=0.03)


def test_best_success_does_not_depend_on_the_values():
    values = {lookup.best_success(task_of((1, 2, 3), values), 4) for values in ("aaaaaa", "abcabc", "cbacba")}
    assert len(values) == 1


@pytest.mark.parametrize("retry", [False, True])
def test_the_oracle_earns_the_value(retry):
    """Monte Carlo of the best policy in the environment itself, over random values."""
    generator = np.random.default_rng(0)
    wins = 0
    for seed in range(1500):
        values = "".join(generator.choice(list("abc"), 6))
        environment, _ = started(task_of((1, 4, 5), values, 3, 0.75, retry), seed)
        for left in range(4, 0, -1):
            result = environment.step(environment.oracle(left).optimal_actions[0])
            if result.ended:
                break
        wins += result.ended == "success"
    expected = lookup.best_success(task_of((1, 4, 5), "aaaaaa", 3, 0.75, retry), 4)
    assert wins / 1500 == pytest.approx(expected, abs=3.5 * (expected * (1 - expected) / 1500) ** 0.5)


def test_oracle():
    environment, _ = started(task_of((2, 5), "abcabc", 3, 0.75))
    assert environment.oracle().optimal_actions == ("query_2", "query_5")
    assert environment.oracle().distance == 3
    assert environment.oracle(1).optimal_actions == ("answer_a", "answer_b", "answer_c")
    assert environment.oracle(6).optimal_actions == ("query_2", "query_5")
    while environment.unseen:
        environment.step(f"query_{environment.unseen[0]}")
    assert environment.oracle().optimal_actions == ("answer_a", "answer_b", "answer_c")
    assert environment.oracle().distance == 1
    environment.step("answer_a")
    assert environment.oracle().optimal_actions == ()
    environment, _ = started(task_of((1, 3), "abcabc", retry=True))
    environment.step("answer_b")
    assert environment.oracle(1).optimal_actions == ("answer_a", "answer_c")


def test_anchors_are_the_knowledge():
    one, first = started(task_of((1, 2, 3), max_turns=3))
    other, again = started(task_of((1, 2, 3), max_turns=9), seed=5)
    assert first.anchor == again.anchor == "need:1,2,3;known:"
    a = [one.step(reply).observation.anchor for reply in ("query_1", "query_2", "noop")]
    b = [other.step(reply).observation.anchor for reply in ("query_2", "query_1", "query_1")]
    assert a == ["need:1,2,3;known:1", "need:1,2,3;known:1,2", "need:1,2,3;known:1,2"]
    assert b == ["need:1,2,3;known:2", "need:1,2,3;known:1,2", "need:1,2,3;known:1,2"]


def test_chatty_text_is_true_and_knows_no_budget():
    environment, first = started(task_of(reveal_probability=0.75), rendering="chatty")
    assert "You need fields 1 and 3." in first.text
    assert "probability 0.75" in first.text
    assert "the attempt has failed" in first.text
    assert not any(word in first.text.lower() for word in ("budget", "turn", "remaining"))
    _, retried = started(task_of(retry=True), rendering="chatty")
    assert "you may go on" in retried.text
    assert "probability" not in retried.text
    while "failed" in environment.step("query_3").observation.text:
        pass
    text = environment.step("query_9").observation.text
    assert '"query_9" is not an action' in text
    assert text.endswith("Known: field 3 is c. Needed and not seen: field 1.")
    texts_by_budget = [started(task_of(max_turns=turns), rendering="chatty")[1] for turns in (2, 50)]
    assert texts_by_budget[0] == texts_by_budget[1]


@settings(max_examples=150, deadline=None)
@given(
    reply=st.one_of(
        st.text(max_size=300),
        st.from_regex(r"(query|answer)[_ -]?[0-9a-z\u0660-\u0669]{0,3}", fullmatch=True),
    ),
    rendering=st.sampled_from(["chatty", "compact"]),
)
def test_any_reply_at_all(reply, rendering):
    environment, first = started(task_of(retry=True), rendering=rendering)
    result = environment.step(reply)
    assert 0 < len(result.observation.text) <= 2000
    assert "\0" not in result.observation.text
    result.observation.text.encode()
    if result.info["valid"]:
        assert result.info["action"] in lookup.compact_replies()
    else:
        assert result.observation.anchor == first.anchor
        assert (result.reward, result.ended, result.info["action"]) == (0.0, None, None)
        assert result.info["error"] in ("no_action", "unknown_action")


@pytest.mark.parametrize("reply", ["query_0", "query_7", "answer_d", "query_1 query_2", "answer", "query_1a", "1", "a"])
def test_what_is_no_action(reply):
    environment, _ = started()
    result = environment.step(reply)
    assert result.observation.text == " noop"
    assert result.info == {"valid": False, "action": None, "error": "unknown_action"}


@pytest.mark.parametrize(
    "options", [{}, {"num_fields": 8, "max_needed": 8, "num_values": 2}, {"num_values": 4, "retry": True}]
)
def test_compact_observations_consist_of_compact_words(options):
    words = lookup.compact_words()
    assert len(set(words)) == len(words)
    known = {word[1:] for word in words}
    assert all(word.startswith(" ") and " " not in word[1:] for word in words)
    generator = np.random.default_rng(0)
    environment = lookup.make_environment({**options, "rendering": "compact"})
    source = lookup.make_tasks(options, "train", 60, 0)
    for index in range(60):
        observations = [environment.reset(source.task(index), index).text]
        for _ in range(10):
            replies = lookup.compact_replies()
            result = environment.step(replies[generator.integers(len(replies))])
            observations.append(result.observation.text)
            if result.ended:
                break
        assert all(text.startswith(" ") and set(text[1:].split(" ")) <= known for text in observations)
        assert all(len(text[1:].split(" ")) <= 2 for text in observations[1:])


def test_eight_at_once_and_one_succeeds():
    task = task_of((1, 2, 3, 4), "abcabc")
    environments = [started(task)[0] for _ in range(8)]
    for environment in environments:
        environment.step("query_1")
    for field in (2, 3, 4):
        environments[6].step(f"query_{field}")
    assert [e.step("answer_a").ended for e in environments] == ["failure"] * 6 + ["success"] + ["failure"]
    assert task == task_of((1, 2, 3, 4), "abcabc")


def test_demonstrators_are_of_mixed_quality():
    """As cloned in the source of the mixture: 3, 11, 18, 24 % within 3, 6, 9, 12 turns for its clone."""
    source = lookup.make_tasks({}, "train", 2**20, 0)
    environment = lookup.make_environment({"rendering": "compact"})
    successes, answer_turns, replies = [], collections.Counter(), collections.Counter()
    for index in range(2000):
        environment.reset(source.task(index), index)
        player = lookup.make_demonstrator(environment, np.random.default_rng(index))
        success = 99
        for turn in range(1, 13):
            reply = player()
            replies[reply] += 1
            if reply.startswith("answer"):
                answer_turns[turn] += 1
            ended = environment.step(reply).ended
            if ended:
                success = turn if ended == "success" else 99
                break
        successes.append(success)
    shares = [np.mean(np.array(successes) <= turns) for turns in (3, 6, 9, 12)]
    assert shares == pytest.approx([0.04, 0.13, 0.2, 0.25], abs=0.03)
    assert replies["noop"] / replies.total() == pytest.approx(0.07, abs=0.01)
    letters = [replies[f"answer_{letter}"] for letter in "abc"]
    assert np.array(letters) / sum(letters) == pytest.approx(np.full(3, 1 / 3), abs=0.04)
    # Early players answer at once for U * (m + 3) < 2, unless their first reply is invalid.
    at_once = 0.93 * 0.8 * np.mean([2 / (m + 3) for m in range(2, 7)])
    assert answer_turns[1] / 2000 == pytest.approx(at_once, abs=0.03)
