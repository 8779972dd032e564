"""The value function of PPO: a linear head on the policy's trunk, or on a network of its own.

Unshifted, as log-probs: the value at s is that of the state in which token s is drawn, read off the hidden state before
it.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxagent.models import decoder, lora

KINDS = ("head", "separate")


def init_params(kind: str, model: decoder.DecoderConfig, policy_params: dict) -> dict:
    """{"head": {"weight": [D], "bias": []}}, and "trunk": a copy of the policy's parameters for a separate network.

    The head starts at 0, so every first value is 0.
    """
    head = {"weight": jnp.zeros(model.width, jnp.float32), "bias": jnp.zeros((), jnp.float32)}
    return {"head": head} if kind == "head" else {"head": head, "trunk": jax.tree.map(jnp.copy, policy_params)}


def logical_axes(kind: str, policy_axes: dict) -> dict:
    """The logical name of every axis, in the structure of `init_params`; `policy_axes` are those of the policy."""
    head = {"weight": ("embed",), "bias": ()}
    return {"head": head} if kind == "head" else {"head": head, "trunk": policy_axes}


def values(
    model: decoder.DecoderConfig,
    params: dict,
    policy_hidden: jax.Array,
    tokens: jax.Array,
    positions: jax.Array,
    segment_ids: jax.Array,
    *,
    trunk_weight: float = 0.0,
    base: dict | None = None,
) -> jax.Array:
    """Values [B, S] float32, differentiable; 0 at s = 0.

    Args:
      model: static.
      params: as from `init_params`; with LoRA the trunk's adapters stand in `params`, their base in `base`.
      policy_hidden: [B, S, D], the policy's hidden states; what a head on its trunk reads.
      tokens, positions, segment_ids: [B, S], for a separate network.
      trunk_weight: static; the share of the gradient that a head sends into `policy_hidden`.
    """
    if "trunk" in params:
        trunk = params["trunk"] if base is None else lora.combine(base, params["trunk"])
        hidden = decoder.forward(model, trunk, tokens, positions, segment_ids)
    else:
        stopped = jax.lax.stop_gradient(policy_hidden)
        hidden = stopped + trunk_weight * (policy_hidden - stopped) if trunk_weight else stopped
    per_token = hidden.astype(jnp.float32) @ params["head"]["weight"] + params["head"]["bias"]
    return jnp.pad(per_token[:, :-1], ((0, 0), (1, 0)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CriticState:
    """The critic's parameters and the moments of its own optimizer."""

    params: dict
    opt_state: tuple
