"""Outcome rules, group filters, minibatches and redraws: against what each rule says of made-up episodes."""

import dataclasses

import numpy as np
import pytest
from algorithm_cases import cut, groups_of_episodes
from episode_builder import make_episode, make_turn
from tiny_runs import SilentLog, tiny_config

from jaxagent.budgets import candidate_budgets, draw_tenths
from jaxagent.episodes import read_episodes
from jaxagent.errors import UserError
from jaxagent.rollout.setup import make_setup
from jaxagent.training import loop, redraws, rows, sft

SHAPE = ("rollout.max_context=64", "optimizer.row_tokens=64", "rollout.max_turns=8")


def config_of(*overrides):
    return tiny_config(*SHAPE, *overrides)


def batch_of(config, episodes, **more):
    return rows.make_batch(config, episodes, num_episodes=16, **more)


def mixed(group=0):
    """Two successes of 2 and 6 turns, an overrun that had earned 0.25 a turn, a failure; full budget 8."""
    over = [make_turn(i + 1, reward=0.25) for i in range(8)]
    return [
        make_episode(2, success=True, group=group, member=0),
        make_episode(6, success=True, group=group, member=1),
        make_episode(turns=over, group=group, member=2),
        make_episode(3, group=group, member=3),
    ]


def test_turn_cost_prices_successes_alone():
    config = config_of("budget.turn_cost=0.4", "algorithm.std_floor=0.25")
    arrays, _ = batch_of(config, mixed())
    np.testing.assert_allclose(arrays.rewards[:4], [1 - 0.4 * 2 / 8, 1 - 0.4 * 6 / 8, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(arrays.step_rewards[:4].sum(axis=1), [0.9, 0.7, 2.0, 0.0], rtol=1e-6)
    assert arrays.step_rewards[0, 1] == np.float32(0.9), "the outcome stands on the last turn"


@pytest.mark.parametrize(
    ("rule", "outcome", "in_statistics", "in_loss"),
    [("zero", 0.0, True, True), ("mask", 0.0, True, False), ("drop", 0.0, False, False), ("penalty", -0.5, True, True)],
)
def test_overruns(rule, outcome, in_statistics, in_loss):
    more = ("algorithm.overrun_penalty=0.5",) if rule == "penalty" else ()
    config = config_of(f"algorithm.overruns={rule}", *more)
    arrays, batch = batch_of(config, mixed())
    assert arrays.rewards[2] == outcome and arrays.valid[2] == in_statistics
    assert arrays.step_rewards[2].sum() == 2.0 + outcome, "step rewards already earned stay"
    assert batch.valid[batch.episode_index == 2].all() == in_loss
    assert batch.valid[(batch.episode_index >= 0) & (batch.episode_index != 2)].all()
    replayed, _ = batch_of(config, mixed(), replay=[4] * 4)
    physical, _ = batch_of(config, [cut(e, 4) for e in mixed()])
    for name in ("rewards", "step_rewards", "valid", "turn_mask", "budgets"):
        np.testing.assert_array_equal(getattr(replayed, name), getattr(physical, name), err_msg=name)


def test_flat_groups_look_at_what_the_algorithm_uses():
    """Equal outcomes with unequal step rewards: flat for GRPO, not for GiGPO. Tolerance, voids and singletons."""
    steps = [make_episode(turns=[make_turn(1, reward=0.5 * m)], member=m) for m in range(2)]
    near = [make_episode(1, group=1, member=m, reward=0.3 + 1e-8 * m) for m in range(3)]
    alone = [make_episode(1, group=2, success=True)]
    void = dataclasses.replace(make_episode(1, group=3, success=True), success=False, success_turn=None)
    pair = [make_episode(1, group=3, member=1), dataclasses.replace(void, end_reason="infrastructure", reward=1.0)]
    episodes = [*steps, *near, *alone, *pair]
    for name, expected in (("grpo", [True] * 8), ("gigpo", [False] * 2 + [True] * 6)):
        config = config_of(f"algorithm.name={name}")
        arrays = rows.make_arrays(config, episodes, num_episodes=8)
        assert rows.flat_rows(config, arrays).tolist() == expected


def test_minibatches_split_whole_episodes_the_same_way_each_time():
    config = config_of("algorithm.minibatches=4")
    episodes = groups_of_episodes()
    arrays, batch = batch_of(config, episodes)
    parts = np.split(batch.episode_index, 4)
    members = [sorted(set(np.unique(part)) - {-1}) for part in parts]
    assert sorted(row for part in members for row in part) == list(range(16)) and {len(m) for m in members} == {4}
    assert members != [list(range(4 * i, 4 * i + 4)) for i in range(4)]
    again = batch_of(config, episodes)[1]
    np.testing.assert_array_equal(batch.tokens, again.tokens)
    for row, episode in enumerate(episodes):
        own = batch.episode_index == row
        assert batch.tokens[own].tolist() == episode.token_ids()
        assert set(batch.group_ids[own]) == {arrays.group_ids[row]}
        assert set(batch.budget_tenths[own]) == {9}
    other = [dataclasses.replace(e, step=1) for e in episodes]
    assert (batch_of(config, other)[1].episode_index != batch.episode_index).any()


def test_gigpo_without_anchors_is_named():
    turns = [make_turn(1, anchor=None)]
    with pytest.raises(UserError, match="gigpo needs anchors"):
        batch_of(config_of("algorithm.name=gigpo"), [make_episode(turns=turns)])
    batch_of(config_of(), [make_episode(turns=turns)])


def test_anchors_of_masked_turns_are_nobodys_first():
    """`similar` is greedy: a turn beyond the replayed budget must not become the state that others join."""
    long = "abcdefghijklmnopqrstuvwxyz0123456789"  # neighbours in this chain are alike, its ends are not
    names = [long, long[:-1] + "X", "Y" + long[1:-1] + "X", "YZ" + long[2:-2] + "WX"]
    first = make_episode(turns=[make_turn(1, anchor="other"), *(make_turn(i + 2, anchor=names[1]) for i in range(2))])
    second = make_episode(turns=[make_turn(1, anchor=names[0]), make_turn(2, anchor=names[2])], member=1)
    config = config_of("algorithm.name=gigpo", "algorithm.gigpo.anchor_match=similar")
    masked, _ = batch_of(config, [first, second], replay=[1, 2])
    physical, _ = batch_of(config, [cut(first, 1), cut(second, 2)])
    pattern = lambda a: (a.anchor_ids[a.turn_mask][:, None] == a.anchor_ids[a.turn_mask][None]).tolist()  # noqa: E731
    assert pattern(masked) == pattern(physical)


def test_collect_redraws_flat_slots_a_bounded_number_of_times():
    calls = []

    def run(number, slots):
        calls.append((number, list(slots)))
        return [
            make_episode(1, success=m == 0 and s + number > 2, group=redraws.group_number(s, number, 4), member=m)
            for s in slots
            for m in range(2)
        ]

    def flat_slots(finished):
        wins = {redraws.slot_of(e, 4) for e in finished if e.success}
        return sorted({redraws.slot_of(e, 4) for e in finished} - wins)

    found = redraws.collect(run, flat_slots, groups=4, max_redraws=2)
    assert calls == [(0, [0, 1, 2, 3]), (1, [0, 1, 2]), (2, [0, 1])]
    assert sorted({e.group for e in found.episodes}) == [3, 6, 8, 9]
    assert (found.redrawn_groups, found.discarded_episodes) == (5, 10)
    assert redraws.collect(run, flat_slots, groups=4, max_redraws=0).metrics()["groups/redrawn"] == 0


def test_a_run_with_redraws_keeps_each_slots_tenth(tmp_path):
    cloned = ("sft.steps=60", "sft.demonstrations=32", "sft.learning_rate=1e-2")
    sft.run(tiny_config(*cloned, variant="base,runlocal"), tmp_path / "base", resume=False, log=SilentLog())
    log = SilentLog()
    more = (
        f"model.init_from={tmp_path / 'base'}",  # an untrained policy has no group to keep
        "algorithm.zero_variance=redraw",
        "algorithm.max_redraws=3",
        "algorithm.steps=3",
        "eval.every=0",
        "checkpoint.every=9",
    )
    config = tiny_config(*more, "logging.trajectories=all", "algorithm.groups=4")
    workdir = tmp_path / "run"
    loop.run(config, workdir, resume=False, log=log)
    kept = [line["groups/kept"] for line in log.lines.values()]
    assert sum(line["groups/redrawn"] for line in log.lines.values()) > 0 < sum(kept)
    assert [line["train/grad_norm"] > 0 for line in log.lines.values()] == [count > 0 for count in kept]
    redrawn = 0
    tasks = make_setup(config).tasks("train", config.env.train_tasks)
    for step in range(3):
        finished = list(read_episodes(workdir / "trajectories" / f"step_{step}.jsonl.gz"))
        first = [tasks.task(int(i)) for i in redraws.first_indices(config.seed, step, num_tasks=64, groups=4)]
        for episode in finished:
            slot = redraws.slot_of(episode, 4)
            tenth = draw_tenths(config.seed, step, first[slot].id)
            assert episode.enforced_budget == candidate_budgets(episode.max_budget)[tenth - 1]
            redrawn += episode.group >= 4 and episode.task_id != first[slot].id
        line = log.lines[step + 1]
        assert sum(line[f"budget/groups_tenth_{t}"] for t in range(1, 11)) == 4
        assert sum(line[f"budget/kept_groups_tenth_{t}"] for t in range(1, 11)) == line["groups/kept"] <= 4
        assert line["cost/compilations"] == 0
    assert redrawn > 0
