"""Checks whether the emulators that the environment names answer, before Google's clients wait for them."""

import functools
import os

import grpc

from pipeline.cloud.connection.errors import ServerError

PUBSUB = "PUBSUB_EMULATOR_HOST"
BIGTABLE = "BIGTABLE_EMULATOR_HOST"

ANSWER_S = 2.0  # an emulator is near; with the start of the program, a command fails within three seconds


def check_emulator(variable: str) -> None:
    """Checks, once for each address, that an emulator answers if the environment variable names one.

    Once an emulator has answered, requests wait for it if it is away for a while.

    Raises:
        ServerError: no server answers; the message contains the variable and the address.
    """
    if address := os.environ.get(variable):
        _check(variable, address)


@functools.cache  # successes only: errors are not cached
def _check(variable: str, address: str) -> None:
    if not answers(address):
        raise ServerError(
            f"{variable} is {address}, but nothing answers there: start the emulator again (tidetable emulators start) "
            "and set what it prints, or unset the variable to use Google Cloud"
        )


def answers(address: str) -> bool:
    """Returns whether a gRPC server answers. A refused connection is known at once, silence after two seconds."""
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary("/tidetable/Ready")(b"", timeout=ANSWER_S)
        except grpc.RpcError as error:
            return error.code() is grpc.StatusCode.UNIMPLEMENTED
    return True
