"""Text environments. Nothing on this import path imports jax, so worker processes start fast."""
