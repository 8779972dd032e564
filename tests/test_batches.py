"""Arrays and packed rows against plain loops; replayed budgets against episodes that were physically cut."""

import dataclasses

import numpy as np
import pytest
from episode_builder import make_episode, make_turn, random_episode
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent import batches
from jaxagent.errors import UserError


def random_episodes(seed, groups=3, size=4, **fields):
    rng = np.random.default_rng(seed)
    return [random_episode(rng, group=g, member=m, **fields) for g in range(groups) for m in range(size)]


def arrays_of(episodes, **options):
    return batches.episode_arrays(episodes, num_episodes=len(episodes) + 2, max_turns=8, **options)


def packed(episodes, arrays, row_tokens=64, num_rows=16):
    return batches.pack_episodes(episodes, arrays, row_tokens=row_tokens, num_rows=num_rows)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(56, 150))
def test_packed_rows_hold_every_episode_exactly(seed, row_tokens):
    """F1: prompt ids + turn-1 ids + observation ids + turn-2 ids, in order, nothing else; masks count the sampled
    ids."""
    episodes = random_episodes(seed)
    arrays = arrays_of(episodes)
    batch = packed(episodes, arrays, row_tokens=row_tokens)
    for index, episode in enumerate(episodes):
        rows, columns = np.nonzero(batch.episode_index == index)
        assert len(set(rows)) == 1
        assert np.all(np.diff(columns) == 1), "an episode is contiguous"
        assert batch.tokens[rows, columns].tolist() == episode.token_ids()
        assert batch.positions[rows, columns].tolist() == list(range(len(columns)))
        assert len(set(batch.segment_ids[rows, columns])) == 1
        turn_lengths = [len(t.observation_ids) + len(t.sampled_ids) for t in episode.turns]
        assert batch.turn_index[rows, columns].tolist() == np.repeat(range(len(turn_lengths)), turn_lengths).tolist()
        sampled = [token for turn in episode.turns for token in turn.sampled_ids]
        logprobs = [value for turn in episode.turns for value in turn.logprobs]
        is_policy = batch.policy_mask[rows, columns]
        assert batch.tokens[rows, columns][is_policy].tolist() == sampled
        np.testing.assert_allclose(batch.behaviour_logprobs[rows, columns][is_policy], logprobs, rtol=1e-6)
        assert not batch.behaviour_logprobs[rows, columns][~is_policy].any()
    assert batch.policy_mask.sum() == sum(len(t.sampled_ids) for e in episodes for t in e.turns)
    assert not batch.policy_mask[batch.segment_ids == 0].any()
    for row in batch.segment_ids:
        live = row[row > 0]
        assert (np.diff(live) >= 0).all() and not row[len(live) :].any(), "padding stands at the end of a row"


def test_masks_come_from_lengths_not_from_values():
    """F6: pad = eos = 0; a sampled 0 inside the reply is trained, padding is not."""
    turn = make_turn(1, observed=(5,), sampled=(0, 7, 0), budget=8)
    episode = make_episode(turns=[turn])
    batch = packed([episode], arrays_of([episode]), row_tokens=6, num_rows=1)
    assert batch.tokens[0].tolist() == [5, 0, 7, 0, 0, 0]
    assert batch.policy_mask[0].tolist() == [False, True, True, True, False, False]


def test_void_and_empty_episodes_hold_no_tokens():
    void = make_episode(2, end_reason="infrastructure", detail="worker")
    empty = make_episode(turns=[], end_reason="context")
    kept = make_episode(2, group=1)
    arrays = arrays_of([void, empty, kept])
    batch = packed([void, empty, kept], arrays)
    assert set(np.unique(batch.episode_index)) == {-1, 2}
    assert arrays.valid.tolist() == [False, True, True, False, False]
    assert arrays.turn_mask[1].sum() == 0 and arrays.step_rewards[1].sum() == 0


def test_outcome_is_added_on_the_last_turn():
    turns = [make_turn(1, reward=0.25), make_turn(2, reward=0.5), make_turn(3)]
    episode = make_episode(success=True, turns=turns)
    arrays = arrays_of([episode])
    assert arrays.step_rewards[0].tolist() == [0.25, 0.5, 1.0, 0, 0, 0, 0, 0]
    assert arrays.rewards[0] == 1.0


def test_group_ids_know_task_budget_and_announcement():
    shared = {"group": 0, "task_id": "t"}
    episodes = [
        make_episode(1, budget=8, told=8, **shared),
        make_episode(1, budget=8, told=8, member=1, **shared),
        make_episode(1, budget=8, told=None, member=2, **shared),
        make_episode(1, budget=4, told=4, member=3, **shared),
        make_episode(1, budget=8, told=8, group=1, task_id="t"),
    ]
    ids = arrays_of(episodes).group_ids.tolist()
    assert ids[0] == ids[1]
    assert len({ids[0], ids[2], ids[3], ids[4]}) == 4


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_step_groups_equal_anchors_within_a_group(seed, with_remaining):
    episodes = random_episodes(seed)
    ids = batches.step_group_ids(episodes, max_turns=8, with_remaining=with_remaining)
    seen = {}
    for row, episode in enumerate(episodes):
        for column, turn in enumerate(episode.turns):
            key = (episode.group, turn.anchor) + ((turn.remaining,) if with_remaining else ())
            seen.setdefault(key, set()).add(int(ids[row, column]))
        assert (ids[row, len(episode.turns) :] == -1).all()
    assert all(len(found) == 1 for found in seen.values())
    assert len(set().union(*seen.values())) == len(seen), "different states have different ids"


def test_similar_anchors_join_the_first_alike():
    long = "the quick brown fox jumps over the lazy dog and runs"
    anchors = [long, long + "!", "something else", None, None]
    turns = [make_turn(i + 1, anchor=anchor) for i, anchor in enumerate(anchors)]
    ids = batches.step_group_ids([make_episode(turns=turns)], max_turns=5, match="similar")[0].tolist()
    assert ids[0] == ids[1] and len(set(ids)) == 4, "turns without an anchor stay alone"
    with pytest.raises(UserError, match="anchor match"):
        batches.step_group_ids([], max_turns=1, match="vague")


def cut(episode, budget):
    """The episode as it would have been with that budget, written from the rules, not from the code."""
    if len(episode.turns) <= budget:
        return dataclasses.replace(episode, enforced_budget=budget)
    return dataclasses.replace(
        episode,
        enforced_budget=budget,
        turns=episode.turns[:budget],
        reward=0.0,
        success=False,
        success_turn=None,
        end_reason="budget",
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_replayed_arrays_equal_those_of_cut_episodes(seed):
    episodes = random_episodes(seed)
    per_group = np.random.default_rng(seed).integers(1, 9, 3)
    replay = [int(per_group[episode.group]) for episode in episodes]
    replayed = arrays_of(episodes, replay_budgets=replay)
    physical = arrays_of([cut(e, b) for e, b in zip(episodes, replay, strict=True)])
    for field in dataclasses.fields(replayed):
        left, right = getattr(replayed, field.name), getattr(physical, field.name)
        if field.name == "anchor_ids":  # ids of masked turns do not matter, equality of the others does
            mask = physical.turn_mask
            same = lambda ids, m=mask: ids[m][:, None] == ids[m][None, :]  # noqa: E731
            np.testing.assert_array_equal(same(left), same(right))
        else:
            np.testing.assert_array_equal(left, right, err_msg=field.name)
    batch = packed(episodes, replayed)
    expected = sum(len(t.sampled_ids) for e, b in zip(episodes, replay, strict=True) for t in e.turns[:b])
    assert (batch.policy_mask & batch.budget_mask & batch.valid).sum() == expected


def test_replay_refuses_told_policies_and_larger_budgets():
    with pytest.raises(UserError, match="told"):
        arrays_of([make_episode(told=8)], replay_budgets=[4])
    with pytest.raises(UserError, match="outside"):
        arrays_of([make_episode(budget=4)], replay_budgets=[5])


def test_what_does_not_fit_says_so():
    long = make_episode(turns=[make_turn(1, observed=range(70))])
    with pytest.raises(UserError, match="row_tokens"):
        packed([long], arrays_of([long]))
    with pytest.raises(UserError, match="max_turns"):
        batches.episode_arrays([make_episode(budget=9)], num_episodes=1, max_turns=8)
    with pytest.raises(UserError, match="row_tokens"):
        batches.num_packed_rows(8, 100, 99, 4)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(10, 60), st.integers(1, 4), st.integers(1, 6), st.randoms())
def test_declared_rows_always_suffice(num_episodes, max_context, rows_per, micro_rows, random):
    row_tokens = max_context * rows_per + random.randrange(max_context)
    num_rows = batches.num_packed_rows(num_episodes, max_context, row_tokens, micro_rows)
    assert num_rows % micro_rows == 0
    lengths = [random.randrange(1, max_context + 1) for _ in range(num_episodes)]
    episodes = [make_episode(turns=[make_turn(1, observed=range(n - 1), sampled=(1,))]) for n in lengths]
    arrays = batches.episode_arrays(episodes, num_episodes=num_episodes, max_turns=8)
    batch = batches.pack_episodes(episodes, arrays, row_tokens=row_tokens, num_rows=num_rows)
    assert (batch.segment_ids > 0).sum() == sum(lengths)
