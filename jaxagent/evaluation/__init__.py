"""Measuring policies from `Episode` records alone: Pass@(K,T) estimators, intervals, panels and summaries."""
