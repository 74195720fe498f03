"""What commands that speak HTTP are given: hosts, URLs and tokens."""

import ipaddress
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

_LEAST_TOKEN_LENGTH = 16
_MOST_TOKEN_BYTES = 1000


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach a server on this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def checked_url(text: str) -> SplitResult:
    """Returns the URL. Raises ValueError with a message that does not repeat the URL, which may contain a secret."""
    url = urlsplit(text)
    if (
        url.scheme not in ("http", "https")
        or not url.hostname
        or url.port == 0
        or not text.isprintable()
        or " " in text
    ):
        raise ValueError("expected https://HOST/PATH")
    if "@" in url.netloc:
        raise ValueError("remove the user and password, which whoever lists processes can read")
    url.hostname.encode("idna")  # raises UnicodeError, a ValueError, for a name that no host can have
    return url


def read_token(path: Path) -> str:
    """Returns the token in a file. Raises ValueError if it is missing, or too short to be a secret."""
    try:
        with path.open("rb") as file:
            token = file.read(_MOST_TOKEN_BYTES + 1).decode("ascii").strip()
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} contains characters beyond ASCII; make a token with: openssl rand -hex 32") from error
    if not token.isprintable() or " " in token or not _LEAST_TOKEN_LENGTH <= len(token) <= _MOST_TOKEN_BYTES:
        raise ValueError(
            f"{path} does not contain one token of {_LEAST_TOKEN_LENGTH} to {_MOST_TOKEN_BYTES} characters; "
            "make one with: openssl rand -hex 32"
        )
    return token
