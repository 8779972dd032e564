"""The device mesh and the rules that place arrays on it."""
