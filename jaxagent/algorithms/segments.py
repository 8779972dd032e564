"""Group statistics over rows keyed by arbitrary integer ids: fixed shapes, no sorting, no N x N matrix.

A *segment* is the set of selected rows with equal key. It is named by its *representative*: the smallest index among
its rows. Representatives come out of a hash table that is filled by scatter-min, so the cost is linear in the number of
rows (a two-key sort of four million rows takes two seconds on two CPU cores, this takes a few hundredths). Collisions
are resolved by comparing the keys themselves, so the result is exact for every int32 value.
"""

import chex
import jax
import jax.numpy as jnp

Array = jax.Array

TOLERANCE = 1e-6  # values of a segment whose range is below this, relative to max(1, |largest|), count as equal
MIN_DIVISOR = 1e-6  # added to every standard deviation
EXACT_SUM = 128  # rows whose float32 sum is off by less than 1e-5 of their range in the worst case


def representatives(
    keys: Array, mask: Array, table_start: Array | int = 0, table_bits: Array | int | None = None
) -> Array:
    """Flat index of the first selected row with the same key, for every row.

    Args:
      keys: int32 [...], any values; R rows in all.
      mask: bool [...], the selected rows. A row outside stands for itself.
      table_start, table_bits: int32, broadcast against `keys`: the part `[start, start + 2**bits)` of a table of R
        slots that a row may use. Parts must not overlap; rows whose parts differ never share a segment, which makes
        (part, key) the key. Left out: one part for all rows.

    Returns:
      int32 [R]. Each round of the loop settles at least the first open row of every occupied slot, so it ends; with ids
      that are dense within a part, the first round settles all.
    """
    chex.assert_equal_shape([keys, mask])
    keys, num = jnp.asarray(keys, jnp.int32), keys.size
    if table_bits is None:
        table_bits = max(num, 1).bit_length() - 1
    flat_keys = keys.reshape(-1)

    def any_open(state: tuple[Array, Array, Array]) -> Array:
        return jnp.any(state[1])

    def settle(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        owner, open_rows, turn = state
        bits = keys.view(jnp.uint32)
        hashed = jnp.where(turn == 0, bits, _mix(bits + turn * jnp.uint32(0x9E3779B9)))
        slot = table_start + (hashed & ((jnp.uint32(1) << jnp.uint32(table_bits)) - 1)).astype(jnp.int32)
        slot = jnp.where(open_rows, slot.reshape(-1), num)
        rows = jnp.arange(num, dtype=jnp.int32)
        table = jnp.full(num, num, jnp.int32).at[slot].min(rows, mode="drop")
        candidate = jnp.where(open_rows, table.at[slot].get(mode="clip"), rows)
        hit = open_rows & (flat_keys.at[candidate].get(mode="promise_in_bounds") == flat_keys)
        return jnp.where(hit, candidate, owner), open_rows & ~hit, turn + 1

    start = (jnp.arange(num, dtype=jnp.int32), jnp.asarray(mask).reshape(-1), jnp.uint32(0))
    return jax.lax.while_loop(any_open, settle, start)[0]


def nested_representatives(outer: Array, inner_ids: Array, mask: Array) -> Array:
    """Representatives of the key (outer segment, inner id) over [N, T], as flat indices.

    Args:
      outer: int32 [N], representatives of the outer segments, from `representatives`.
      inner_ids: int32 [N, T], any values.
      mask: bool [N, T].

    Returns:
      int32 [N * T], indices into the flattened arrays. Each outer segment has its own contiguous part of the hash
      table, so neighbouring rows touch neighbouring memory.
    """
    num, width = inner_ids.shape
    members = jax.ops.segment_sum(jnp.ones_like(outer), outer, num)  # [N], at the representatives
    start = width * (jnp.cumsum(members) - members)
    bits = 31 - jax.lax.clz(jnp.maximum(width * members, 1))  # the largest power of two that fits
    return representatives(inner_ids, mask, start[outer][:, None], bits[outer][:, None])


def centre(
    values: Array,
    segments: Array,
    mask: Array,
    weights: Array | None = None,
    *,
    divide_by_std: bool = False,
    floor: float = 0.0,
) -> Array:
    """Value minus the mean of its segment; exactly 0 where a segment has one row or equal values, and outside the mask.

    Args:
      values: float32 [N].
      segments: int32 [N], representatives under the same mask.
      mask: bool [N]; rows outside count for nothing, whatever they hold.
      weights: int32 [N], how often a row counts (default once).
      divide_by_std: static; divide by the segment's standard deviation (ddof 1) plus max(floor, 1e-6).
      floor: static, not negative.

    Returns:
      float32 [N]. Deviations are taken from the segment's largest value before they are summed, so a large common
      offset costs no digits. Segments do not touch each other's sums; a NaN inside the mask spoils its own segment,
      visibly.
    """
    num = values.shape[0]
    values = jnp.where(mask, values, 0.0)
    counts = jnp.where(mask, 1.0 if weights is None else weights.astype(jnp.float32), 0.0)
    high = jax.ops.segment_max(values, segments, num)
    low = jax.ops.segment_min(values, segments, num)
    equal = high - low <= TOLERANCE * jnp.maximum(1.0, jnp.abs(high))
    shifted = values - _of(high, segments)
    # Sum and count side by side: on the CPU a scatter costs by the row, whatever its width.
    sums = jax.ops.segment_sum(jnp.stack([counts * shifted, counts], axis=-1), segments, num)
    size = jnp.maximum(sums[:, 1], 1.0)
    # Nothing lies above the largest value, so no mean is +inf: that marks a segment of equal values.
    mean = _of(jnp.where(equal, jnp.inf, sums[:, 0] / size), segments)
    centred = jnp.where(mask & (mean != jnp.inf), shifted - mean, 0.0)

    def refine(centred: Array) -> Array:
        rest = jax.ops.segment_sum(counts * centred, segments, num) / size
        return jnp.where(centred == 0.0, 0.0, centred - _of(rest, segments))

    # A sum of n terms is off by up to n half units in the last place: worth a second pass where n is large.
    centred = jax.lax.cond(jnp.max(size) > EXACT_SUM, refine, lambda centred: centred, centred)
    if not divide_by_std:
        return centred
    squares = jax.ops.segment_sum(counts * jnp.square(centred), segments, num)
    std = jnp.sqrt(squares / jnp.maximum(size - 1.0, 1.0))
    return centred / _of(std + max(floor, MIN_DIVISOR), segments)


def _of(per_segment: Array, segments: Array) -> Array:
    """Each row's entry of its segment."""
    return per_segment.at[segments].get(mode="promise_in_bounds")


def _mix(x: Array) -> Array:
    """A bijection of uint32 in which every input bit reaches every output bit (two multiply-xorshift rounds)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
