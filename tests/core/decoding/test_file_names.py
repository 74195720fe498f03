import os
from pathlib import Path

import pytest

from pipeline.core.decoding.file_names import file_attributes


@pytest.mark.parametrize(
    ("path", "stem", "folder"),
    [
        ("exports/station-17.csv", "station-17", "exports"),
        ("/data/exports/station-17.csv.gz", "station-17", "exports"),
        ("a/b/S.17.CSV.GZ", "S.17", "b"),
        ("gs://bucket/2026/a.parquet", "a", "2026"),
        ("gs://bucket/a.ndjson", "a", "bucket"),
        ("north/../a b.pb", "a b", "town"),
        ("./a.csv", "a", "town"),
        ("a.csv", "a", "town"),
        ("../a.csv", "a", "county"),
        ("link/a.csv", "a", "link"),
    ],
)
def test_the_name_of_a_file(path: str, stem: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stem has no suffix, and the folder its own name, however the path is written."""
    for name in ("north", "elsewhere"):
        (tmp_path / "county/town" / name).mkdir(parents=True)
    (tmp_path / "county/town/link").symlink_to("elsewhere")
    monkeypatch.chdir(tmp_path / "county/town")
    assert file_attributes(path) == {"file_path": path, "file_stem": stem, "file_folder": folder}


def test_a_name_that_is_not_utf_8() -> None:
    """Attributes are UTF-8, so another byte becomes a replacement character."""
    named = file_attributes(os.fsdecode(b"in\xfe/s\xff-1.csv"))
    assert named == {"file_path": "in\ufffd/s\ufffd-1.csv", "file_stem": "s\ufffd-1", "file_folder": "in\ufffd"}
