"""Environments written for other libraries: Gymnasium, `verifiers`, and TRL's `environment_factory`."""
