"""The documentation matches the code: the README, docs/, and the pages beside them."""

import ast
import re
import shlex
import subprocess
import sys
from functools import cache
from itertools import chain
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks.sizes import sizes
from pipeline.cli import profiles
from pipeline.cli.profiles import COMMAND_LINE_ONLY, OF_ONE_COMMAND
from pipeline.cli.root import main
from pipeline.core.events.event import LATEST_US, RESERVED_SENSOR_IDS
from pipeline.core.events.reasons import Reason
from pipeline.core.notation import durations
from pipeline.core.notation.times import format_time
from pipeline.core.schema import gc_policies
from pipeline.core.schema.gc_policies import format_policy
from pipeline.core.schema.table_schema import TableSchema
from pipeline.job.settings import TidetableOptions, parse_flags, settings_of
from pipeline.transforms import metrics
from tests.cli.commands import all_commands
from tests.quotes import PAGES, QUOTES, quoted_names, refreshed

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TIDETABLE = r"(?:^|[|;&(]|\bdo) *(?:\.venv/bin/)?tidetable "  # begins a command
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@cache
def text(name: str) -> str:
    return (DOCS / name).read_text()


def rows_of(page: str, heading: str) -> dict[str, list[str]]:
    """Returns the cells of the first table below a heading, by the text of the first cell."""
    section = f"\n{text(page)}".split(f"\n{heading}\n", 1)[1]
    lines = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)[0].splitlines()[2:]
    rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines)
    return {first.strip("` "): rest for first, *rest in rows}


def test_limits_are_named():
    """Each limit that refuses a time, a duration or a policy stands on the page that describes it."""
    longest = f"`{durations._LONGEST.days}d`"
    assert f"at most `{durations._LONGEST.days}d`" in text("options.md")
    assert f"{longest} at" in text("publish.md")
    assert f"{format_time(LATEST_US)}, the last time of a row key" in text("publish.md")
    age, versions = f"{gc_policies._LONGEST_AGE.days}d", f"{gc_policies._MAX_VERSIONS:,} versions"
    assert f"an age over {age} or more than {versions}" in text("schema-reference.md")


@cache
def sources() -> str:
    return "\n".join(path.read_text() for path in sorted((ROOT / "pipeline").rglob("*.py")))


@cache
def literals() -> set[str]:
    """Returns every string of the code; in an f-string, ``…`` stands for what is filled in."""
    found = set()
    for path in (ROOT / "pipeline").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                found.add("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


# Flags, reasons, metrics, families, guarantees, errors, names


def test_every_flag_with_its_default():
    """The table of flags has every flag and no other; flags of the schema have the default schema's values."""
    table = rows_of("options.md", "## The job's options")
    options = TidetableOptions([])
    schema = TableSchema.default()
    of_schema = {
        "--window": schema.tiers[0].window.text,
        "--raw-family": schema.metrics.families[0],
        "--stats-family": schema.tiers[0].family,
        "--meta-family": schema.metadata.families[0],
    }
    assert {name.removeprefix("--").replace("-", "_") for name in table} == set(options._visible_option_list())
    for name, (_, default) in table.items():
        actual = of_schema.get(name, getattr(options, name.removeprefix("--").replace("-", "_")))
        assert actual is None or default == f"`{actual}`", name


def test_options_with_a_rule_of_their_own():
    """The page lists the options that only the command line sets, and those that differ between commands."""
    page = " ".join(text("options.md").split())
    for introduction, names in (
        ("whether anything is written: ", COMMAND_LINE_ONLY - {"help"}),
        ("have only such a variable: ", OF_ONE_COMMAND),
    ):
        listed = page.partition(introduction)[2].partition(".")[0]
        assert listed == ", ".join(f"`--{name}`" for name in sorted(names))


def test_every_reason():
    """The page lists every reason of dead letters, and no other."""
    assert list(rows_of("dead-letters.md", "## Reasons")) == [reason.value for reason in Reason]


def test_every_reserved_sensor_id():
    """The page lists every reserved sensor id, and no other."""
    listed = re.search(r"Reserved for the table's own rows: ([^.]+)\.", text("publish.md"))[1]
    assert set(re.findall(r"`(\w+)`", listed)) == RESERVED_SENSOR_IDS


def test_every_metric():
    """The page lists every counter and distribution, and no other."""
    headings = re.findall(r"^## .+", text("metrics.md"), re.MULTILINE)
    listed = ", ".join(name for heading in headings for name in rows_of("metrics.md", heading))
    constants = {name: value for name, value in vars(metrics).items() if name.isupper() and isinstance(value, str)}
    named = set(constants.values()) - {metrics.NAMESPACE}
    by_case = {metrics.dead_letters_of("<REASON>"), metrics.bulk_retries_of("<CODE>")}
    by_case |= {metrics.of_type(name, "<TYPE>") for name in metrics.TYPE_COUNTERS}
    assert set(listed.replace("`", "").split(", ")) == named | by_case


def test_families_and_policies():
    """The table of families has the policies that a table is created with."""
    table = rows_of("schemas.md", "## The default schema")
    policies = TableSchema.for_new_table().policies
    assert {family: policy.strip("`").replace("\\|", "|") for family, (_, policy) in table.items()} == {
        family: format_policy(policy) for family, policy in policies.items()
    }


ENGINES = ("Dataflow, exactly-once", "Dataflow, at-least-once", "DirectRunner")


def guarantees() -> dict[str, str]:
    """Returns the sections of the page of guarantees, one for each fault, by their headings."""
    page = text("guarantees.md").split("\n## What happens when\n", 1)[1].split("\n## ", 1)[0]
    return dict(section.split("\n", 1) for section in page.split("\n### ")[1:])


def test_every_guarantee_has_a_test():
    """Each fault's section ends with the names of the tests that show it, and they exist."""
    written = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for what, section in guarantees().items():
        *_, shown_by = section.strip().split("\n\n")
        assert shown_by.startswith("Shown by "), what
        named = re.findall(r"`(test_\w+)`", shown_by)
        assert named, what
        for name in named:
            assert f"def {name}(" in written, name


def test_guarantees_cover_every_engine():
    """Each section begins with an answer for all engines, and names all of them or none; the overview lists each."""
    for what, section in guarantees().items():
        answer, *_ = section.strip().split("\n\n")
        assert not answer.startswith(("-", "Shown by")), what
        named = [name for names in re.findall(r"^- \*\*(.+):\*\*", section, re.MULTILINE) for name in engines(names)]
        assert sorted(named) in ([], sorted(ENGINES)), what
    overview = rows_of("guarantees.md", "## At a glance")
    assert f"| what happens | {' | '.join(ENGINES)} |" in text("guarantees.md")
    assert [re.match(r"\[(.+)\]\(#", row)[1] for row in overview] == list(guarantees())
    assert all(all(cells) for cells in overview.values())


def engines(names: str) -> list[str]:
    """Returns the engines that a line such as "Dataflow, at-least-once, and DirectRunner" is about."""
    found = [engine for engine in ENGINES if engine in names]
    return [*ENGINES[:2], *found] if re.match("Dataflow(?!,)", names) else found


def test_costs_follow_from_sizes():
    """What a million events cost is computed from the sizes that the benchmark prints."""
    one, in_batch, raw, aggregate = sizes().values()
    assert one < 1000  # Pub/Sub's minimum charge
    page = text("size-and-cost.md")
    assert f"2 × 1,000,000 × {in_batch} bytes = {2e6 * in_batch / 2**30:.2f} GiB" in page
    assert f"1,000,000 × {raw} bytes × 3 months = {3e6 * raw / 2**30:.2f} GiB-months" in page
    assert f"Aggregates add {aggregate} bytes" in page


EXTERNAL_MESSAGES = ("Timeout in polling result file", "Errors in batch mutations", "an accumulator of another release")


@pytest.mark.slow
def test_every_error_message():
    """Each message that the page on monitoring quotes is one of the code's, or of the launch script's."""
    known = {literal.replace("\n", " ") for literal in literals()}
    known |= set((ROOT / "templates/flex.sh").read_text().splitlines())
    headings = re.findall(r"^## Messages .+", text("monitor.md"), re.MULTILINE)
    tables = (rows_of("monitor.md", heading) for heading in headings)
    for message in chain.from_iterable(tables):
        for quoted in re.split(r"`, `", message.split("` (")[0]):
            if (
                quoted.startswith("data freshness")
                or quoted in EXTERNAL_MESSAGES
                or quoted.split("`")[0] in EXTERNAL_MESSAGES
            ):
                continue
            parts = [re.escape(part.strip()) for part in quoted.split("…") if part.strip(" :;")]
            assert any(re.search(".*".join(parts), literal) for literal in known) or all(
                any(re.search(part, literal) for literal in known) for part in parts
            ), quoted


def test_every_make_target():
    """The page for developers lists the targets of the Makefile, except those of other pages."""
    targets = set(re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split())
    listed = set(re.findall(r"`make ([\w-]+)`", text("developing.md")))
    assert targets - {"demo", "template", "launch", "clean"} == listed


def test_every_name_of_the_glossary():
    """Modules, flags and identifiers that the glossary names exist."""
    for word, (_, names) in rows_of("glossary.md", "# Glossary").items():
        for name in re.findall(r"`([^`]+)`", names):
            if "/" in name:
                assert (ROOT / "pipeline" / name).exists(), word
            elif name.startswith("--"):
                assert name.removeprefix("--").replace("-", "_") in TidetableOptions([])._visible_option_list(), word
            elif re.fullmatch(r"\w+", name):
                assert re.search(rf"\b{name}\b", sources()), f"{word}: {name}"


# The pages themselves


def test_the_readme_is_short():
    """The README fits on a few screens, and leaves the list of pages to the index."""
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 135
    assert "](docs/README.md)" in readme


def test_one_index():
    """The index names every page of the repository, and is the only list of them."""
    listed = re.findall(r"^\| \[.+?\]\((.+?)\) \|", text("README.md"), re.MULTILINE)
    pages = {*DOCS.glob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"} - {DOCS / "README.md"}
    assert {(DOCS / page).resolve() for page in listed} == pages
    assert len(listed) == len(pages)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_pages_begin_with_their_purpose(page):
    """Each page starts with a sentence below its title, or the index with its first links."""
    title, empty, first = page.read_text().splitlines()[:3]
    assert title.startswith("# ")
    assert not empty
    assert re.match("[A-Z]|- ", first)


@every_page
def test_plain_words(page):
    """No page uses words and turns that readers have to read twice."""
    assert not re.findall(r"(?i)\breckon\w*|\bwhat there (?:is|are)\b|\bthat there (?:is|are)\b", page.read_text())


@pytest.mark.slow
def test_quotes_are_fresh():
    """What pages quote from code is what the code prints; ``make quotes`` refreshes it."""
    assert {name for page in PAGES for name in quoted_names(page.read_text())} == set(QUOTES)
    for page in PAGES:
        assert refreshed(page.read_text()) == page.read_text(), f"{page.name}: run make quotes"


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        assert anchor not in found, f"{page.name}: two headings {heading!r}"
        found.add(anchor)
    return found


@every_page
def test_links_are_valid(page):
    """Every file and every heading that a page links to exists."""
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", FENCE.sub("", page.read_text())):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        assert path.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


# Commands that can be pasted


def shell_of(page: Path) -> str:
    return "".join(code for language, code in FENCE.findall(page.read_text()) if language == "sh")


QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)


@every_page
def test_commands_can_be_pasted(page):
    """Commands mean the same in bash and in zsh, which by default neither splits variables nor knows typed comments."""
    code = shell_of(page)
    bare = QUOTED.sub("''", code)
    assert not re.findall(r"^.*(?<!\S)#.*$", bare, re.MULTILINE)
    for name, value in re.findall(rf"\b(\w+)=({QUOTED.pattern})", code):
        assert not re.search(r"\s", value) or not re.search(rf"\${name}\b|\${{{name}}}", bare), name
    assert not [word for word in bare.split() if word != "[" and re.search(r"[*?\[]", word)]  # patterns without a match
    assert not re.findall(r"\$\w+:[a-z]", code)  # zsh's modifiers


def command_lines(page: Path) -> list[str]:
    return re.sub(r" *\\\n *", " ", shell_of(page)).splitlines()


@every_page
def test_shell_is_shell(page):
    """A shell can parse every block of commands, and each variable has a value by then."""
    checked = subprocess.run(["bash", "-n"], input=shell_of(page), capture_output=True, text=True, check=False)
    assert not checked.stderr
    known = {"PWD", "PUBSUB_EMULATOR_HOST", "BIGTABLE_EMULATOR_HOST"}
    for line in command_lines(page):
        known.update(re.findall(r"\b(\w+)=", line))
        known.update(re.findall(r"\bfor (\w+) in", line))
        if not line.startswith("    "):  # in awk, $ has another meaning
            assert set(re.findall(r"\$(\w+)", line)) <= known, line


@every_page
def test_tidetable_commands_exist(page):
    """Every ``tidetable`` command line names an existing command and its options."""
    for line in command_lines(page):
        for part in re.findall(rf"{TIDETABLE}([^|&)]+)", line):
            words = [word for word in shlex.split(part, comments=True) if word]
            command: click.Command = main
            context = click.Context(command)
            while isinstance(command, click.Group):
                found = command.get_command(context, words.pop(0))
                assert found is not None, line
                command = found
            options = {name for parameter in command.params for name in parameter.opts}
            given = words[: words.index("--")] if "--" in words else words
            if command.name != "run":
                assert {word.partition("=")[0] for word in given if re.match("--?[a-z]", word)} <= options, line


@every_page
def test_variables_are_options(page):
    """Every variable that a page sets for the toolbox is one of its options' variables."""
    variables = {name for _, command in all_commands() for option in command.params for name in option.envvar or ()}
    assert set(re.findall(r"\b(TIDETABLE_\w+)=", shell_of(page))) <= variables


def test_the_profiles_are_valid(monkeypatch, tmp_path):
    """The profiles on the page about options set what the page says, in the command that it names."""
    written = [code for language, code in FENCE.findall(text("options.md")) if language == "toml"]
    (tmp_path / "config.toml").write_text("".join(written))
    monkeypatch.setattr(profiles, "config_file", lambda: tmp_path / "config.toml")
    commands = dict(all_commands())
    profile = profiles.load_profile("test", commands)
    table = {"project": "my-test-project", "instance": "my-instance", "table": "sensors"}
    assert profile.defaults(commands["read sensors"], "read sensors", ()) == table
    assert profile.defaults(commands["read plot"], "read plot", ()).keys() > table.keys()
    assert profiles.load_profile(None, commands).values == table | {"project": "my-project"}


@every_page
def test_the_jobs_flags_exist(page):
    """Every command line of the job has valid flags."""
    for line in command_lines(page):
        for part in re.findall(r"\bpython -m pipeline (.+)", line):
            parse_flags(shlex.split(part))


@every_page
def test_run_accepts_its_command_lines(page, monkeypatch):
    """Every command line of ``tidetable run`` gives complete, valid flags, with the variables that the page sets."""
    monkeypatch.setattr("pipeline.run.main", lambda argv, _: settings_of(parse_flags(argv)) and 0)
    variables = dict(re.findall(r"\b(TIDETABLE_\w+)=(\S+)", shell_of(page)))
    for line in command_lines(page):
        for part in re.findall(rf"{TIDETABLE}run (.+)", line):
            ran = CliRunner().invoke(main, ["run", *shlex.split(part)], env=variables)
            assert ran.exit_code == 0, (ran.output, ran.exception)


@every_page
def test_modules_and_targets_exist(page):
    """Every module and every target of the Makefile that a page names exists."""
    written = page.read_text()
    for module in re.findall(r"python -m (tests[.\w]*)", written):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:`|^)make ([a-z-]+)", written, re.MULTILINE):
        assert re.search(rf"^(?:.* )?{target}(?: .*)?:", makefile, re.MULTILINE), target


def test_the_site(tmp_path):
    """The site builds strictly: every link and anchor leads somewhere, every page is in the menu, no host is asked."""
    mkdocs = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path),
    ]
    built = subprocess.run(mkdocs, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert not list(tmp_path.rglob("*.py*"))  # the hook stays at home
    pages = [page.read_text() for page in tmp_path.rglob("*.html")]
    assert len(pages) > len(list(DOCS.glob("*.md")))  # and one for what is not found
    assert not [found for page in pages for found in re.findall(r'<(?:script|link|img)[^>]+="https?://[^"]*', page)]
