"""Losses, KL, advantages and GAE against TRL, TorchRL and torch's own derivatives; slow, and skipped without them."""

import types
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.algorithms import advantages, losses
from jaxagent.algorithms.kl import KL_ESTIMATORS, kl

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")

ROWS, LENGTH = 16, 32
BETA, ENTROPY = 0.1, 0.02


def make_batch(seed=0):
    """One sequence a row: log-probs that leave the clip bounds both ways, uneven masks, none of them empty."""
    rng = np.random.default_rng(seed)
    new, old, reference = (rng.normal(-1.0, 0.4, (ROWS, LENGTH)).astype(np.float32) for _ in range(3))
    mask = rng.random((ROWS, LENGTH)) < rng.random((ROWS, 1))
    mask[:, 0] = True
    advantage = np.repeat(rng.normal(size=(ROWS, 1)), LENGTH, axis=1).astype(np.float32)
    entropy = rng.random((ROWS, LENGTH)).astype(np.float32)
    ids = np.repeat(rng.permutation(ROWS)[:, None] * 7 - 3, LENGTH, axis=1).astype(np.int32)
    return types.SimpleNamespace(**locals())


def trl_loss(batch, loss_type, *, level="token", delta=None, beta=0.0, entropy=0.0):
    """(loss, gradient by the new log-probs) of TRL's own `_compute_loss`, its model replaced by given log-probs."""
    GRPOTrainer = pytest.importorskip("trl").GRPOTrainer
    new = torch.tensor(batch.new, requires_grad=True)
    same = lambda x, **_: x  # noqa: E731
    trainer = types.SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (new, torch.tensor(batch.entropy), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=beta,
        loss_type=loss_type,
        epsilon_low=0.2,
        epsilon_high=0.28,
        args=types.SimpleNamespace(delta=delta, use_bias_correction_kl=False, steps_per_generation=1),
        use_vllm=False,
        use_adaptive_entropy=False,
        entropy_coef=entropy,
        _entropy_bonus_enabled=entropy > 0,
        current_gradient_accumulation_steps=1,
        max_completion_length=40,
        model=types.SimpleNamespace(training=True),
        accelerator=types.SimpleNamespace(
            num_processes=1, gather=same, gather_for_metrics=same, reduce=same, sync_gradients=False
        ),
        _metrics={"train": defaultdict(list)},
    )
    mask = torch.tensor(batch.mask).long()
    empty = torch.zeros((ROWS, 0), dtype=torch.long)
    inputs = {
        "prompt_ids": empty,
        "prompt_mask": empty,
        "completion_ids": torch.zeros((ROWS, LENGTH), dtype=torch.long),
        "completion_mask": mask,
        "advantages": torch.tensor(batch.advantage[:, 0]),
        "old_per_token_logps": torch.tensor(batch.old),
        "ref_per_token_logps": torch.tensor(batch.reference),
        "num_items_in_batch": mask.sum(),
    }
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    return loss.item(), new.grad.numpy()


def our_loss(batch, mode, *, level="token", dual_clip=None, beta=0.0, entropy=0.0):
    def loss_of(new):
        log_ratio = losses.masked_difference(new, batch.old, batch.mask)
        if level != "token":
            log_ratio = losses.sequence_log_ratio(log_ratio, batch.mask, batch.ids, variant=level)
        term, _ = losses.surrogate(log_ratio, batch.advantage, dual_clip=dual_clip, mask=batch.mask)
        term += beta * kl("k3", losses.masked_difference(new, batch.reference, batch.mask), batch.mask)
        term += losses.entropy_bonus(batch.entropy, entropy, batch.mask)
        constant = 40.0 if mode == "dr_grpo" else None
        return losses.aggregate(term, batch.mask, batch.ids, mode, constant=constant)

    return jax.jit(jax.value_and_grad(loss_of))(batch.new)


@pytest.mark.parametrize(
    ("loss_type", "mode", "theirs", "ours"),
    [
        ("bnpo", "token_mean", {}, {}),
        ("dapo", "token_mean", {"delta": 1.5, "entropy": ENTROPY}, {"dual_clip": 1.5, "entropy": ENTROPY}),
        ("grpo", "sequence_mean", {"beta": BETA}, {"beta": BETA}),
        ("dr_grpo", "dr_grpo", {}, {}),
        ("grpo", "sequence_mean", {"level": "sequence"}, {"level": "sequence"}),
        ("bnpo", "token_mean", {"level": "sequence", "beta": BETA}, {"level": "sequence", "beta": BETA}),
    ],
)
def test_the_loss_of_trl(loss_type, mode, theirs, ours):
    for seed in range(3):
        batch = make_batch(seed)
        value, gradient = trl_loss(batch, loss_type, **theirs)
        found, slope = our_loss(batch, mode, **ours)
        assert np.abs(gradient).max() > 1e-4
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(slope, gradient, rtol=1e-4, atol=1e-7)


def test_group_advantages_of_trl():
    """TRL's standard deviation and its eps of 1e-4, as a floor."""
    nanstd = pytest.importorskip("trl.trainer.utils").nanstd
    rng = np.random.default_rng(0)
    grouped = rng.choice([0.0, 0.3, 1.0], (64, 8)).astype(np.float32)
    order = rng.permutation(grouped.size)
    ids = np.repeat(rng.permutation(64) * 1001, 8).astype(np.int32)[order]
    rewards = torch.tensor(grouped)
    centred = rewards - torch.nanmean(rewards, dim=1, keepdim=True)
    divided = centred / (nanstd(rewards, dim=1, keepdim=True) + 1e-4)
    left_out = rewards - (rewards.sum(dim=1, keepdim=True) - rewards) / 7
    batch = (grouped.ravel()[order], ids, np.ones(ids.shape, bool))
    for found, expected in (
        (advantages.grpo_advantages(*batch), centred),
        (advantages.grpo_advantages(*batch, normalize_std=True, std_floor=1e-4), divided),
        (advantages.rloo_advantages(*batch), left_out),
    ):
        np.testing.assert_allclose(found, expected.numpy().ravel()[order], atol=2e-6)


@pytest.mark.parametrize("kind", KL_ESTIMATORS)
def test_kl_kinds_and_their_gradients(kind):
    batch = make_batch(3)
    value, slope = jax.value_and_grad(lambda x: kl(kind, x - batch.reference, batch.mask).sum())(batch.new)
    x, mask = torch.tensor(batch.new, requires_grad=True), torch.tensor(batch.mask)
    difference = x - torch.tensor(batch.reference)
    squared, exact = difference.square() / 2, torch.expm1(-difference) + difference
    term = {"k1": difference, "k2": squared, "k3": exact, "k3_st": squared}[kind][mask].sum()
    term.backward()
    expected = exact[mask].sum() if kind == "k3_st" else term
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
    np.testing.assert_allclose(slope, x.grad.numpy(), atol=1e-6)


def test_prompt_mean_value_loss_and_whitening():
    batch = make_batch(5)
    returns, old_values = batch.reference, batch.old
    groups = batch.ids // 28

    def loss_of(values):
        term, _ = losses.value_loss(values, returns, old_values, mask=batch.mask)
        return losses.aggregate(term, batch.mask, groups, "prompt_mean")

    value, slope = jax.value_and_grad(loss_of)(batch.new)
    x, mask, group = torch.tensor(batch.new, requires_grad=True), torch.tensor(batch.mask), torch.tensor(groups)
    near = torch.tensor(old_values) + (x - torch.tensor(old_values)).clamp(-0.2, 0.2)
    target = torch.tensor(returns)
    term = 0.5 * torch.maximum((x - target).square(), (near - target).square())
    reference = torch.stack([term[mask & (group == g)].mean() for g in group.unique()]).mean()
    reference.backward()
    np.testing.assert_allclose(value, reference.item(), rtol=1e-5)
    np.testing.assert_allclose(slope, x.grad.numpy(), atol=1e-7)
    chosen = torch.tensor(batch.new)[mask]
    expected = (chosen - chosen.mean()) * torch.rsqrt(chosen.var() + 1e-8)
    np.testing.assert_allclose(losses.whiten(batch.new, batch.mask)[batch.mask], expected.numpy(), atol=1e-5)


def torchrl_gae(rewards, values, gamma, lam):
    """(advantages, returns) of one finished episode by TorchRL."""
    function = pytest.importorskip("torchrl.objectives.value.functional").generalized_advantage_estimate
    column = lambda x: torch.tensor(np.array(x, np.float32))[:, None]  # noqa: E731
    done = torch.zeros((len(rewards), 1), dtype=torch.bool)
    done[-1] = True
    following = [*values[1:], 0.0]
    found = function(gamma, lam, column(values), column(following), column(rewards), done)
    return [x[:, 0].numpy() for x in found]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.95, 0.9)])
def test_gae_of_torchrl(gamma, lam):
    """Token GAE over the policy tokens, and turn GAE over turns whose value stands before their first token."""
    rng = np.random.default_rng(1)
    batch = make_batch(7)
    rewards, values, mask = batch.new, batch.old, batch.mask
    segments = 1 + (np.arange(LENGTH) >= 20).astype(np.int32)[None].repeat(ROWS, axis=0)
    turns = (rng.random((ROWS, LENGTH)) < 0.3).cumsum(axis=1).astype(np.int32)
    tokens, token_returns = advantages.token_gae(rewards, values, mask, segments, gamma=gamma, lam=lam)
    by_turn, turn_returns = advantages.turn_gae(rewards, values, mask, segments, turns, gamma=gamma, lam=lam)
    for row in range(ROWS):
        for segment in (1, 2):
            places = np.flatnonzero(mask[row] & (segments[row] == segment))
            if not len(places):
                continue
            found = torchrl_gae(rewards[row, places], values[row, places], gamma, lam)
            np.testing.assert_allclose(tokens[row, places], found[0], atol=2e-5)
            np.testing.assert_allclose(token_returns[row, places], found[1], atol=2e-5)
            names, first, member = np.unique(turns[row, places], return_index=True, return_inverse=True)
            paid = np.bincount(member, rewards[row, places], len(names))
            found = torchrl_gae(paid, values[row, places[first]], gamma, lam)
            np.testing.assert_allclose(by_turn[row, places], found[0][member], atol=2e-5)
            np.testing.assert_allclose(turn_returns[row, places], found[1][member], atol=2e-5)


def test_truncated_importance_weights_are_constants():
    """The surrogate times min(old / behaviour, 2), differentiated by torch with the weight detached."""
    batch = make_batch(9)

    def loss_of(new):
        term, _ = losses.surrogate(
            losses.masked_difference(new, batch.old, batch.mask), batch.advantage, mask=batch.mask
        )
        drift = losses.masked_difference(batch.old, batch.reference, batch.mask)
        term *= losses.truncated_importance_weights(drift, mask=batch.mask)
        return losses.aggregate(term, batch.mask, None, "token_mean")

    value, slope = jax.value_and_grad(loss_of)(jnp.asarray(batch.new))
    x, old, mask = torch.tensor(batch.new, requires_grad=True), torch.tensor(batch.old), torch.tensor(batch.mask)
    ratio, advantage = (x - old).exp(), torch.tensor(batch.advantage)
    term = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.28))
    term = term * (old - torch.tensor(batch.reference)).exp().clamp(max=2.0)
    reference = term[mask].mean()
    reference.backward()
    np.testing.assert_allclose(value, reference.item(), rtol=1e-5)
    np.testing.assert_allclose(slope, x.grad.numpy(), atol=1e-7)
