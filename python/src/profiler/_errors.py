class Error(Exception):
    """A run that cannot be started or read. The message is one line."""
