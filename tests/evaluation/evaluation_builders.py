"""Small makers of records for the tests of this folder."""

from jaxagent.episodes import Episode, Task, Turn


def make_turns(count):
    """`count` empty turns."""
    return tuple(
        Turn(
            index=index,
            observation_ids=None,
            sampled_ids=None,
            logprobs=None,
            weight_version=0,
            text="",
            action=None,
            valid=True,
            error=None,
            reward=0.0,
            anchor=None,
            remaining=1,
        )
        for index in range(1, count + 1)
    )


def make_episode(task_id, member, success_turn, *, told, enforced, full=None, group=0, void=False, num_turns=None):
    """One record; an episode without success uses all its turns unless `num_turns` says otherwise."""
    success = success_turn is not None and not void
    if num_turns is None:
        num_turns = success_turn if success else enforced
    return Episode(
        run_seed=0,
        step=0,
        task_id=task_id,
        env="toy",
        group=group,
        member=member,
        max_budget=full or enforced,
        told_budget=told,
        enforced_budget=enforced,
        turns=make_turns(num_turns),
        reward=float(success),
        success=success,
        success_turn=success_turn if success else None,
        end_reason="infrastructure" if void else "success" if success else "budget",
    )


def blind_episodes(success_turns, max_turns):
    """Full-length episodes that were told nothing, from {task: [success turn or None, ...]}."""
    return [
        make_episode(task_id, member, turn, told=None, enforced=max_turns)
        for task_id, turns in success_turns.items()
        for member, turn in enumerate(turns)
    ]


def told_episodes(success_turns, max_turns):
    """Episodes told and cut at their budget, from {(task, told): [success turn or None, ...]}."""
    return [
        make_episode(task_id, member, turn, told=told, enforced=told, full=max_turns, group=told)
        for (task_id, told), turns in success_turns.items()
        for member, turn in enumerate(turns)
    ]


def make_task(task_id, max_turns):
    """A task without content."""
    return Task(env="toy", id=task_id, data={}, max_turns=max_turns)
