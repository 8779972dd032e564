"""Made-up episodes for tests: any lengths, ids and log-probs, consistent with the records' rules."""

import numpy as np

from jaxagent.episodes import Episode, Turn


def make_turn(index, *, observed=(5, 6), sampled=(7,), logprobs=None, budget=8, **fields):
    defaults = {
        "weight_version": 0,
        "text": "x",
        "action": "x",
        "valid": True,
        "error": None,
        "reward": 0.0,
        "anchor": f"state{index}",
    }
    logprobs = tuple(-0.5 for _ in sampled) if logprobs is None else logprobs
    return Turn(
        index=index,
        observation_ids=tuple(observed),
        sampled_ids=tuple(sampled),
        logprobs=tuple(logprobs),
        remaining=budget - index + 1,
        **(defaults | fields),
    )


def make_episode(num_turns=3, *, success=False, budget=8, told=None, group=0, member=0, turns=None, **fields):
    turns = tuple(make_turn(i + 1, budget=budget) for i in range(num_turns)) if turns is None else tuple(turns)
    ended = "success" if success else "budget" if len(turns) == budget else "failure"
    defaults = {
        "run_seed": 0,
        "step": 0,
        "task_id": f"task{group}",
        "env": "test",
        "max_budget": budget,
        "enforced_budget": budget,
        "reward": float(success),
        "end_reason": ended,
    }
    return Episode(
        group=group,
        member=member,
        told_budget=told,
        turns=turns,
        success=success,
        success_turn=len(turns) if success else None,
        **(defaults | fields),
    )


def random_episode(rng: np.random.Generator, *, vocab=50, budget=8, group=0, member=0, told=None, **fields):
    """An episode with random lengths, ids and log-probs; a success in its last turn with probability a half."""
    num_turns = int(rng.integers(1, budget + 1))
    turns = []
    for i in range(num_turns):
        sampled = rng.integers(3, vocab, rng.integers(1, 4))
        turns.append(
            make_turn(
                i + 1,
                observed=rng.integers(3, vocab, rng.integers(1, 5)).tolist(),
                sampled=sampled.tolist(),
                logprobs=(-rng.random(len(sampled))).tolist(),
                budget=budget,
                anchor=f"state{rng.integers(4)}",
                reward=float(rng.integers(0, 2)) * 0.25,
            )
        )
    success = bool(rng.random() < 0.5)
    return make_episode(success=success, budget=budget, group=group, member=member, told=told, turns=turns, **fields)
