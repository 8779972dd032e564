"""Training: the pure step, the loop around it, supervised cloning, checkpoints."""
