"""jaxagent: train and measure LLM agents under interaction budgets, in JAX/Flax.

This module stays free of jax so that environment workers start fast.
"""

__version__ = "0.1.0"
