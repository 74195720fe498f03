"""What commands that speak HTTP are given."""

import re

import pytest

from pipeline.core.notation.web import checked_url, is_loopback, read_token


def test_loopback():
    """These hosts are this machine, and no others."""
    assert all(map(is_loopback, ["127.0.0.1", "127.1.2.3", "::1", "localhost"]))
    assert not any(map(is_loopback, ["::", "10.0.0.1", "example.com", "localhost.example.com"]))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("example.com/secret", "expected https://HOST/PATH"),
        ("file:///secret", "expected https://HOST/PATH"),
        ("https:///secret", "expected https://HOST/PATH"),
        ("https://example.com/secret\r\nX: y", "expected https://HOST/PATH"),
        ("https://example.com:0/secret", "expected https://HOST/PATH"),
        ("https://example.com:99999/secret", "Port out of range"),
        (f"https://{'x' * 64}.com/secret", "label (empty or )?too long"),
        ("https://me:secret@example.com/", "remove the user and password"),
        ("https://secret@example.com/", "remove the user and password"),
    ],
)
def test_bad_urls(text, problem):
    """A URL that is not of HTTP is refused, by a message that does not repeat what may be a secret."""
    for url in ("https://example.com/a?b=c", "http://[::1]:8080", "HTTPS://example.com"):
        assert checked_url(url).scheme in ("http", "https")
    with pytest.raises(ValueError, match=problem) as refused:
        checked_url(text)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "does not contain one token of 16 to 1000 characters"),
        (b"short\n", "does not contain one token"),
        (b"two words of a token\n", "does not contain one token"),
        (b"x" * 1001, "does not contain one token"),
        ("schlüssel-schlüssel".encode(), "contains characters beyond ASCII"),
    ],
)
def test_no_token(tmp_path, content, problem):
    """A file that is not one token is refused with its path and the problem."""
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(str(path)) + " " + problem):
        read_token(path)
    with pytest.raises(ValueError, match="can't be read: No such file"):
        read_token(tmp_path / "none")
