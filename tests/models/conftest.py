"""Shared by the model tests: parameters made with NumPy, which compiles nothing."""

import jax
import numpy as np
import pytest

from jaxagent.models.decoder import init_params


@pytest.fixture(scope="session")
def random_params():
    """(config, seed) -> parameters of ordinary size, with norm scales that are not 1."""

    def make(config, seed=0):
        noise = np.random.default_rng(seed)

        def draw(path, shape):
            if "norm" in str(path[-1]):
                return noise.uniform(0.5, 1.5, shape.shape).astype(np.float32)
            std = config.embedding_std if "embedding" in str(path[-1]) else 0.3
            return (std * noise.normal(size=shape.shape)).astype(np.float32)

        shapes = jax.eval_shape(lambda: init_params(config, jax.random.key(0)))
        return jax.tree_util.tree_map_with_path(draw, shapes)

    return make
