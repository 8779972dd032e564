"""BFCL-v3 multi-turn (Berkeley function-calling leaderboard): tool use over user turns, on simulated systems."""
