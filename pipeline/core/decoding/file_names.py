"""The name of a record's file, which can name the sensor: people keep one file a sensor, without a column for it."""

from pathlib import Path

FILE = "file"
"""The attribute of a refused record with which a person finds it."""

FILE_ATTRIBUTES = {"file": "file_path", "file.stem": "file_stem", "file.folder": "file_folder"}
"""The attributes of a message with the name of its file, by their names in mappings and options."""


def file_attributes(path: str) -> dict[str, str]:
    """Returns the attributes of messages from a file: its path, its name without suffixes, and its folder's name.

    Args:
        path: the path as given, local or in a bucket. Its folder is the working directory if it names none, and the
            bucket for an object at the top of a bucket.
    """
    name, folder = Path(path).name, Path(path).parent
    unzipped = name[:-3] if name.lower().endswith(".gz") else name
    found = path, Path(unzipped).stem, (folder if folder.name not in ("", "..") else folder.resolve()).name
    # A name on disk may have bytes that are not UTF-8, which an attribute can't have.
    texts = (text.encode(errors="surrogateescape").decode(errors="replace") for text in found)
    return dict(zip(FILE_ATTRIBUTES.values(), texts, strict=True))
