"""Checks the file of a mapping."""

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.cloud.pubsub.message_files import DescriptorFile, parse_mapping_file, with_type
from pipeline.core.decoding.mapped_type import MappedType
from pipeline.core.decoding.mapping.authoring.check import MappingReport, check
from pipeline.core.decoding.mapping.language.model import JSON, MappingError
from pipeline.core.decoding.mapping.values.descriptors import Descriptors


class CheckedMapping(NamedTuple):
    """A mapping's file, what its mapping does, and the mapping; None if it does not hold."""

    file: str
    report: MappingReport
    mapped: MappedType | None


def checked(file: str, sets: Sequence[DescriptorFile]) -> CheckedMapping:
    """Checks a mapping against the first descriptors with its type.

    Raises ServerProblem if a bucket is out of reach.
    """
    try:
        mapped = parse_mapping_file(file, sets)
        types = Descriptors() if mapped.name == JSON else with_type(mapped.name, sets).types
        report = check(mapped.mapping, types)
        if not report.problems:
            mapped.compile()  # of a schema, against its older revisions too
    except MappingError as error:
        return CheckedMapping(file, MappingReport("", problems=[str(error).removeprefix(f"{file}: ")]), None)
    return CheckedMapping(file, report, None if report.problems else mapped)
