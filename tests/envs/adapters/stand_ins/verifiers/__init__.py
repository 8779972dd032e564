"""The part of `verifiers` that the adapter touches, as small as it can be: for tests without the package."""

import importlib


def load_environment(env_id, **args):
    return importlib.import_module(env_id).load_environment(**args)
