"""What a run costs: compilations, memory, and model FLOPs against a matmul peak measured on the spot."""

import functools
import resource
import time

import jax
import jax.numpy as jnp

from jaxagent.models.decoder import DecoderConfig

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class CompileCounter:
    """Counts XLA compilations by JAX's own events, from its creation on."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def _on_event(self, event: str, seconds: float, **_: object) -> None:
        if event == COMPILE_EVENT:
            self.count += 1
            self.seconds += seconds

    def close(self) -> None:
        """Stops counting."""
        jax.monitoring.unregister_event_duration_listener(self._on_event)


def peak_memory_bytes() -> int:
    """Peak memory: of the first device where the platform tells, else the peak resident size of this process."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@functools.lru_cache(maxsize=1)
def matmul_peak_flops() -> float:
    """FLOP/s of a float32 matrix product of 1024 cubed on one device: the best of five, 0.1 s on a laptop CPU."""
    size = 1024
    matrix = jnp.ones((size, size), jnp.float32)
    product = jax.jit(jnp.matmul)
    product(matrix, matrix).block_until_ready()
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        times.append(time.perf_counter() - begun)
    return 2 * size**3 / min(times)


def train_flops_per_token(model: DecoderConfig, context: float) -> float:
    """FLOPs of one trained token, forward and backward: 6 per weight of the matrices and head, plus causal attention.

    `context` is the mean number of tokens of an episode; attention looks at half of them on average.
    """
    heads = model.head_dim * (2 * model.num_heads + 2 * model.num_kv_heads)
    weights = model.num_layers * model.width * (heads + 3 * model.mlp_width) + model.width * model.vocab_size
    attention = model.num_layers * 2 * model.num_heads * model.head_dim * context / 2
    return 6 * (weights + attention)
