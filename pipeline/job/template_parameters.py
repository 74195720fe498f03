"""Checks a launch of the Flex Template without asking a server; ``make launch`` calls it before it does anything.

    python -m pipeline.job.template_parameters

The environment has the variables of ``make launch``. Each problem is a line on standard error.
"""

import difflib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence

from pipeline.core.notation.text import plain
from pipeline.job import dataflow
from pipeline.job.flags import FLAGS, BadFlag, TidetableOptions
from pipeline.job.settings import parse_flags, settings_of
from pipeline.private_apis.beam_flags import checked_flags

_PARAMETER = re.compile(r"[a-z]\w*=.+")
_LAUNCHERS = {  # what the launcher adds
    "runner": "DataflowRunner",
    "project": "some-project",
    "region": "europe-west4",
    "job_name": "some-job",
    "temp_location": "gs://some-bucket/temp",
    "sdk_container_image": "some-image",
}
_INPUT = {"input_subscription": "projects/some-project/subscriptions/some-input"}
# Valid flags in place of missing and refused ones: so the next problem is found too, and is no consequence of the last.
_STAND_INS = {
    "input_subscription": _INPUT,
    "input_topic": _INPUT,
    "dead_letter_topic": {"dead_letter_topic": "projects/some-project/topics/some-dead-letters"},
    "dead_letters": {"dead_letters": "drop"},
    "results_topic": {"results_topic": "projects/some-project/topics/some-results"},
    "message_mapping": {"message_mapping": "some.toml"},
    "bigtable_instance": {"bigtable_instance": "some-instance"},
    "bigtable_table": {"bigtable_table": "some-table"},
}


def problems(parameters: Sequence[str], options: Sequence[str]) -> list[str]:
    """Returns a line for each thing that the template or the job would refuse; none for a valid launch.

    Args:
        parameters: the parameters of the launch, ``name=value``.
        options: Beam's options beside them, ``name=value`` or ``name``.
    """
    beams = [flag.removeprefix("--") for flag in checked_flags([], TidetableOptions, accept_own=False).declared]
    found: list[str] = []
    given: dict[str, str] = {}
    for word in parameters:
        name, _, value = word.partition("=")
        if not _PARAMETER.fullmatch(word):
            found.append(f"PARAMETERS has {word!r}; it must be name=value, separated by spaces")
            continue
        if name not in FLAGS:
            found.append(f"PARAMETERS: there is no parameter {name}{_hint(name, FLAGS, beams, 'PIPELINE_OPTIONS')}")
            name = _nearest(name, FLAGS) or ""
        elif name in given:
            found.append(f"PARAMETERS: {name} is set twice")
        if name:
            given.setdefault(name, value)
    passed: dict[str, str] = {}
    for word in options:
        name, _, value = word.partition("=")
        if name in beams:
            passed[name] = value
        else:
            found.append(f"PIPELINE_OPTIONS: there is no option {name}{_hint(name, beams, FLAGS, 'PARAMETERS')}")
    found += _refused(given, passed)
    for name, value in given.items():
        option, regex = FLAGS[name].option, FLAGS[name].regex
        known = any(re.search(rf"{option}(?![\w-])", line) for line in found)
        if not known and not re.fullmatch(regex, value):
            found.append(f"PARAMETERS: {option} is {value!r}; the template takes ^{regex}$")
    return found


def _refused(given: Mapping[str, str], passed: Mapping[str, str]) -> list[str]:
    """Returns what the job's settings refuse, one after the other: the flag that a line names gets a stand-in."""
    flags = {**_LAUNCHERS, **given, **passed}
    found: list[str] = []
    replaced: set[str] = set()
    while refusal := _refusal(flags):
        named = [name.replace("-", "_") for name in re.findall(r"--(\w[\w-]*)", refusal)]
        line = f"{'PIPELINE_OPTIONS' if set(named) & set(passed) else 'PARAMETERS'}: {refusal}"
        if line not in found:
            found.append(line)
        flag = next((name for name in named if name not in replaced), None)
        if flag is None:
            break
        replaced.add(flag)
        flags.pop(flag, None)
        flags |= _STAND_INS.get(flag, {})
    return found


def _refusal(flags: Mapping[str, str]) -> str | None:
    """Returns what ``python -m pipeline`` would print of these flags before it asks a server; None if it takes them."""
    try:
        options = parse_flags([f"--{name}={value}" if value else f"--{name}" for name, value in flags.items()])
        settings_of(options)
        dataflow.prepare(options)
    except BadFlag as refusal:
        return str(refusal)
    return None


def _hint(name: str, known: Iterable[str], others: Iterable[str], variable: str) -> str:
    """Returns where the name belongs, or the known name that it resembles."""
    if name in others:
        return f"; it belongs in {variable}"
    near = _nearest(name, known)
    return f"; did you mean {near}?" if near else ""


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def main() -> int:
    """Prints the problems of a launch. Returns the exit code: 2 if there are problems."""
    found = problems(*(os.environ.get(variable, "").split() for variable in ("PARAMETERS", "PIPELINE_OPTIONS")))
    for line in found:
        print(plain(f"make: {line}"), file=sys.stderr)
    return 2 if found else 0


if __name__ == "__main__":
    sys.exit(main())
