from datetime import UTC, datetime

from pipeline.core.dead_letters.refused_rows import RefusedRow, refused_row_letter
from pipeline.core.events.dead_letter import MAX_MESSAGE_BYTES

TABLE = "projects/p/instances/i/tables/t"
NOW = datetime(2026, 2, 17, 12, tzinfo=UTC)


def test_a_refused_row():
    """The dead letter contains the entry, its type, the row key and the reason."""
    letter = refused_row_letter(RefusedRow(b"a#1", "NOT_FOUND", "no\nfamily", b"entry"), TABLE, "WriteRawRows", NOW)
    assert letter.data == b"entry"
    assert letter.attributes == {
        "message_type": "google.bigtable.v2.MutateRowsRequest.Entry",
        "row_key": "a#1",
        "dead_letter_reason": "ROW_REFUSED",
        "dead_letter_detail": f"table {TABLE}: row a#1: NOT_FOUND: no family",
        "dead_letter_step": "WriteRawRows",
        "dead_letter_time": "2026-02-17T12:00:00Z",
    }


def test_what_is_too_long():
    """Entry, key and detail are truncated to Pub/Sub's limits, and the detail notes that the entry was."""
    row = RefusedRow(b"\xff\x00" * 2048, "INVALID_ARGUMENT", "ä" * 5000, b"x" * 20_000_000)
    letter = refused_row_letter(row, TABLE, "WriteRawRows", NOW)
    assert all(len(value.encode()) <= 1024 for value in letter.attributes.values())
    assert letter.attributes["row_key"].startswith("\\xff\x00\\xff")
    size = len(letter.data) + sum(len(f"{name}{value}".encode()) + 20 for name, value in letter.attributes.items())
    assert MAX_MESSAGE_BYTES - 10_000 < size <= MAX_MESSAGE_BYTES
    detail = letter.attributes["dead_letter_detail"]
    assert ": INVALID_ARGUMENT: ä" in detail
    assert detail.endswith(f"… (entry cut from 20000000 to {len(letter.data)} bytes)")
