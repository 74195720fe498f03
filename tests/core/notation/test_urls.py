"""Hosts and URLs that people type."""

import pytest

from pipeline.core.notation.urls import checked_url, is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback(host):
    """These hosts are this machine."""
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["::", "10.0.0.1", "example.com", "localhost.example.com"])
def test_beyond_loopback(host):
    """These hosts are not this machine."""
    assert not is_loopback(host)


@pytest.mark.parametrize("text", ["https://example.com/a?b=c", "http://[::1]:8080", "HTTPS://example.com"])
def test_urls(text):
    """A URL of HTTP is taken."""
    assert checked_url(text).scheme in ("http", "https")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("example.com/secret", "expected https://HOST/PATH"),
        ("file:///secret", "expected https://HOST/PATH"),
        ("https:///secret", "expected https://HOST/PATH"),
        ("https://example.com/secret\r\nX: y", "expected https://HOST/PATH"),
        ("https://example.com:0/secret", "expected https://HOST/PATH"),
        ("https://example.com:99999/secret", "Port out of range"),
        ("https://me:secret@example.com/", "remove the user and password"),
        ("https://secret@example.com/", "remove the user and password"),
    ],
)
def test_bad_urls(text, problem):
    """Anything else is refused, by a message that does not repeat what may be a secret."""
    with pytest.raises(ValueError, match=problem) as refused:
        checked_url(text)
    assert "secret" not in str(refused.value)
