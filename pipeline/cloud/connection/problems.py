"""The error that the command line prints as one line. This module imports no client, so that ``--help`` is quick."""


class ServerError(Exception):
    """A server lacks a resource, is out of reach or refuses a request. ``str()`` is one line for a person."""
