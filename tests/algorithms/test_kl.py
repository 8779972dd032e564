"""KL estimators by hand, by exact expectation over a small vocabulary, and under masks."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.algorithms import kl as kl_module
from jaxagent.algorithms.kl import kl


@pytest.mark.parametrize(
    ("kind", "value"),
    [("k1", 0.5), ("k2", 0.125), ("k3", math.exp(-0.5) + 0.5 - 1.0), ("k3_st", math.exp(-0.5) + 0.5 - 1.0)],
)
def test_values_by_hand(kind, value):
    np.testing.assert_allclose(kl(kind, jnp.array([0.5, 0.0])), [value, 0.0], atol=1e-7)


@pytest.mark.parametrize(("kind", "slope"), [("k1", 1.0), ("k2", 0.5), ("k3", 1.0 - math.exp(-0.5)), ("k3_st", 0.5)])
def test_gradients_by_hand(kind, slope):
    np.testing.assert_allclose(jax.grad(lambda d: kl(kind, d))(jnp.float32(0.5)), slope, rtol=1e-6)


def test_clamps():
    np.testing.assert_allclose(kl("k1", jnp.array([300.0, -300.0])), [20, -20])
    np.testing.assert_allclose(kl("k3", jnp.array([-5.0, -300.0, 8.0])), [10, 10, math.exp(-8) + 7], rtol=1e-6)
    gradient = jax.grad(lambda d: kl("k3", d).sum())(jnp.array([-5.0, -300.0, jnp.inf]))
    np.testing.assert_array_equal(gradient, [0, 0, 0])


def test_expectations_over_a_vocabulary():
    """E[k1] and E[k3] under pi are the KL divergence; k3_st has k3's value and the true gradient of the reverse KL."""
    logits, reference = jnp.array([0.2, -0.4, 0.9]), jax.nn.log_softmax(jnp.array([0.1, 0.5, -0.3]))
    exact = lambda x: jnp.sum(jax.nn.softmax(x) * (jax.nn.log_softmax(x) - reference))  # noqa: E731
    probabilities = jax.nn.softmax(logits)

    def estimate(x, kind):
        return jnp.sum(probabilities * kl(kind, jax.nn.log_softmax(x) - reference))

    for kind in ("k1", "k3", "k3_st"):
        np.testing.assert_allclose(estimate(logits, kind), exact(logits), rtol=1e-5)
    true_gradient = jax.grad(exact)(logits)
    for kind in ("k2", "k3_st"):
        np.testing.assert_allclose(jax.grad(estimate)(logits, kind), true_gradient, atol=1e-6)
    np.testing.assert_allclose(jax.grad(estimate)(logits, "k1"), np.zeros(3), atol=1e-6)


@pytest.mark.parametrize("kind", kl_module.KL_ESTIMATORS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, -1e30])
def test_poison_under_the_mask(kind, poison):
    d, mask = jnp.array([0.5, poison]), jnp.array([True, False])
    value, gradient = jax.value_and_grad(lambda d: kl(kind, d, mask).sum())(d)
    np.testing.assert_allclose(value, kl(kind, d[:1])[0], rtol=1e-6)
    assert np.isfinite(gradient).all() and gradient[1] == 0.0 and gradient[0] != 0.0


def test_policy_equal_to_the_reference_costs_nothing_whatever_the_observations_say():
    """Only observation tokens differ: the KL is exactly 0."""
    d, mask = jnp.array([0.0, 7.0, 0.0]), jnp.array([True, False, True])
    for kind in kl_module.KL_ESTIMATORS:
        np.testing.assert_array_equal(kl(kind, d, mask), np.zeros(3))


def test_small_differences_keep_their_digits():
    """k3 is about d^2 / 2 for small d, where exp(-d) + d - 1 cancels in float32."""
    np.testing.assert_allclose(kl("k3", jnp.float32(1e-3)), math.exp(-1e-3) + 1e-3 - 1.0, rtol=1e-3)


def test_unknown_kind_raises():
    with pytest.raises(ValueError, match="k4"):
        kl("k4", jnp.zeros(2))
