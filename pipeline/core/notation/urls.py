"""Hosts and URLs that people type: which are of this machine, and which a request may go to."""

import ipaddress
from urllib.parse import SplitResult, urlsplit


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
    if url.scheme not in ("http", "https") or not url.hostname or url.port == 0 or not text.isprintable():
        raise ValueError("expected https://HOST/PATH")
    if "@" in url.netloc:
        raise ValueError("remove the user and password, which whoever lists processes can read")
    return url
