"""The error that the command line prints as one line. Google's clients are not imported here: ``--help`` is quick."""


class ServerProblem(Exception):
    """A server lacks a resource, is out of reach or refuses a request. ``str()`` is one line for a person."""
