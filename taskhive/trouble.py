"""What an error of the server or of a connection calls for. Pure classification."""

from __future__ import annotations

from enum import Enum, auto

from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from taskhive.errors import QueueFull, ServerRefused, TaskHiveError

UPGRADE = (
    "A queue keeps the key layout of the version that made it. Use the same version of TaskHive "
    "for all programs of a queue, or drain it, destroy it and start anew"
)


class Reaction(Enum):
    """What to do next with the same request."""

    RESEND = auto()
    """A new connection: the outcome is unknown, and every request is safe to repeat."""
    EVAL = auto()
    """The server does not know the script: send its text, once."""
    REROUTE = auto()
    """Nothing ran: this server is not the one that writes. Forget the pool, ask again who is."""
    MOVED = auto()
    """Nothing ran: the slot lives elsewhere now, and the error says where."""
    ASK = auto()
    """Nothing ran: this once, ask the server that the slot is moving to."""
    WAIT = auto()
    """Nothing ran: the server will be able to in a while."""
    RAISE = auto()
    """No repetition will help."""


_BY_CODE = {
    "NOSCRIPT": Reaction.EVAL,
    "READONLY": Reaction.REROUTE,
    "MASTERDOWN": Reaction.REROUTE,
    "UNBLOCKED": Reaction.REROUTE,
    "LOADING": Reaction.WAIT,
    "BUSY": Reaction.WAIT,
    "TRYAGAIN": Reaction.WAIT,
    "CLUSTERDOWN": Reaction.WAIT,
    "MISCONF": Reaction.WAIT,
    "NOREPLICAS": Reaction.WAIT,
    "MOVED": Reaction.MOVED,
    "ASK": Reaction.ASK,
}


# What OpenSSL says in an error that the client library passes on as its own.
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"


def code(error: Exception) -> str:
    """The word an error of the server begins with, which the client library cuts off of some."""
    known = _CODE_OF_CLASS.get(type(error).__name__)
    return known or str(error).partition(" ")[0]


# The client library turns some codes into classes and drops the word.
_CODE_OF_CLASS = {
    "NoScriptError": "NOSCRIPT",
    "ReadOnlyError": "READONLY",
    "MasterDownError": "MASTERDOWN",
    "BusyLoadingError": "LOADING",
    "TryAgainError": "TRYAGAIN",
    "ClusterDownError": "CLUSTERDOWN",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "OutOfMemoryError": "OOM",
}


def react(error: Exception) -> Reaction:
    """How to go on after an error, whatever it came from."""
    if isinstance(error, (AuthenticationError, NoPermissionError)):
        return Reaction.RAISE
    if _UNTRUSTED in str(error):
        return Reaction.RAISE
    known = _BY_CODE.get(code(error))
    if known is not None:
        return known
    return Reaction.RAISE if isinstance(error, ResponseError) else Reaction.RESEND


def translate(error: Exception, queue: str) -> TaskHiveError:
    """The exception a user sees for an error that no repetition will help."""
    word, _, sentence = str(error).partition(" ")
    if code(error) == "OOM":
        return QueueFull(
            queue,
            "the server has used up its maxmemory, and nothing was dispatched. Raise maxmemory, or "
            "let workers catch up: settling still works",
        )
    if word == "FULL":
        return QueueFull(queue, sentence)
    if word == "PROTOCOL":
        return ServerRefused(f"{sentence}. {UPGRADE}")
    if isinstance(error, (AuthenticationError, NoPermissionError)):
        return ServerRefused(
            f"{error}. Check user and password in the URL, and that the ACL allows EVAL, EVALSHA, "
            "PUBLISH, SUBSCRIBE and the keys and channels of the prefix"
        )
    if _UNTRUSTED in str(error):
        return ServerRefused(
            f"{error} Name the CA that signed the server's certificate: "
            "rediss://host?ssl_ca_certs=/path/to/ca.crt, with the host as the certificate has it"
        )
    return ServerRefused(f"the server answered: {error}")
