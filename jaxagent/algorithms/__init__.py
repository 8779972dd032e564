"""Advantages, losses and KL estimators: pure functions of arrays, no host code, no config objects.

`FUNCTIONS` is the one table from the names in a config to the functions behind them.
"""

from collections.abc import Callable, Mapping

from jaxagent.algorithms.advantages import GROUP_ADVANTAGES, TOKEN_ADVANTAGES
from jaxagent.algorithms.kl import KL_ESTIMATORS
from jaxagent.algorithms.losses import AGGREGATIONS, RATIOS

FUNCTIONS: Mapping[str, Mapping[str, Callable]] = {
    "group_advantages": GROUP_ADVANTAGES,  # [N] or [N, T], keyed by group ids
    "token_advantages": TOKEN_ADVANTAGES,  # [B, S], from a critic's values
    "ratio": RATIOS,  # log-ratios of tokens to what the surrogate reads
    "aggregation": AGGREGATIONS,  # weights of the tokens in the loss
    "kl": KL_ESTIMATORS,
}
