"""Rollouts: the jitted sampler, the host loop over slots, and what turns text into appended ids."""
