"""The one exception type that is meant to be read by the user."""


class UserError(ValueError):
    """Bad input of the user's: the message says what was wrong, where, and what to do.

    The command line prints the message as one line and exits with status 2. It is a `ValueError`, so library callers
    need not know the name.
    """
