"""Base class of errors that are explained by their messages: `ExplainedError`."""


class ExplainedError(Exception):
    """An error whose message contains the reason, and often a solution; programs show it without type and traceback."""
