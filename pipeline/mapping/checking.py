"""Checks the file of a mapping."""

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.cloud.pubsub.message_files import DescriptorFile, located, parse_mapping_file, with_type
from pipeline.core.decoding.mapped_type import MappedType
from pipeline.core.decoding.mapping.authoring.check import MappingReport, check
from pipeline.core.decoding.mapping.language.model import JSON, MappingError
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.notation.toml_lines import placed


class CheckedMapping(NamedTuple):
    """The result of checking a mapping's file.

    Attributes:
        file: the file.
        report: the report on its mapping.
        mapped: the mapping; None if it does not hold.
        problems: the report's problems, each after the file and the line.
    """

    file: str
    report: MappingReport
    mapped: MappedType | None
    problems: Sequence[str] = ()


def checked(file: str, sets: Sequence[DescriptorFile]) -> CheckedMapping:
    """Checks a mapping against the first descriptors with its type.

    Raises ServerProblem if a bucket is out of reach.
    """
    try:
        mapped = parse_mapping_file(file, sets)
        types = Descriptors() if mapped.name == JSON else with_type(mapped.name, sets).types
        report = check(mapped.mapping, types)
        if not report.problems:
            with located(file, mapped.text):
                mapped.compile()  # of a schema, against its older revisions too
    except MappingError as error:
        return CheckedMapping(file, MappingReport("", problems=[error.problem]), None, [str(error)])
    problems = [f"{placed(file, mapped.text, problem)}: {problem}" for problem in report.problems]
    return CheckedMapping(file, report, None if problems else mapped, problems)
