import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.decoding.mapping.language.parsing import MAX_MAPPING_BYTES, parse_mapping

TOP = 'message = "m.M"\nsensor = "id"\ntime = "at"\n'
SMALLEST = TOP + '[readings]\nt = "t"\n'


def with_time(value):
    return f'message = "m.M"\nsensor = "id"\ntime = {value}\n[readings]\nt = "t"\n'


def reading(text):
    return parse_mapping(f"{TOP}[readings]\n{text}\n").readings[0]


def test_first_shares_the_other_keys_of_its_table():
    """Sources below `first` have the table's keys, unless they have their own."""
    first, second = reading('t = { scale = 2, first = ["a", { path = "b", scale = 3, offset = 1 }] }').value
    assert (first.path.text, first.scale, first.offset) == ("a", 2, None)
    assert (second.path.text, second.scale, second.offset) == ("b", 3, 1)


def test_null_and_invalid_of_the_mapping_hold_for_every_value():
    """A mapping's null and invalid apply to each value beside its own."""
    text = 'null = ["", "-"]\ninvalid = "drop reading"\n' + TOP + '[readings]\nt = { path = "t", null = "x" }'
    mapping = parse_mapping(text)
    assert mapping.readings[0].value[0].null == {"", "-", "x"}
    assert mapping.readings[0].value[0].invalid == "drop reading"
    assert mapping.sensor[0].null == {"", "-"}


def test_paths_and_attributes_of_everything():
    """A mapping lists all its paths, by the keys that contain them, and all attributes."""
    mapping = parse_mapping(
        'message = "json"\nsensor = "{@a}/{s}"\ntime = [{ path = "t", unit = "s" }, "$publish_time"]\neach = "e[]"\n'
        'event_id = "i"\nmatch = { path = "@b", is = "x" }\nskip_if = { path = "k", set = true }\n'
        '[attributes]\nc = "{p}/q"\n'
        '[readings]\nr = { path = ".r", when = { path = ".w", is = 1 } }\n"*" = { path = ".v", name = ".n" }\n'
        '[metadata]\no = { name_of = "o" }\nc = "@c.p"\n'
    )
    assert {path.text for path in mapping.paths} == {
        "@a", "s", "t", "$publish_time", "e[]", "i", "@b", "k", ".r", ".w", ".v", ".n", "o", "@c.p",
    }  # fmt: skip
    assert [key for key, value in mapping.values if value] == [
        "sensor", "time", "event_id", "readings.r", "readings.*", "readings.*.name", "metadata.o", "metadata.c",
    ]  # fmt: skip
    assert mapping.attribute_names == {"a", "b", "c"}
    assert mapping.of_file is None
    for value in (
        '"$file.stem"',
        '"x/{$file.stem}"',
        '["s", { constant = "c", when = { path = "$file.stem", is = "a" } }]',
    ):
        named = parse_mapping(f'message = "json"\nsensor = {value}\ntime = "t"\nreadings = {{}}')
        assert str(named.of_file) == "$file.stem"


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        ("a = ", "", "not TOML"),
        ("a = " + "[" * 5000, "", "not TOML"),
        ("", "message", "missing"),
        ('message = "m.M"\nsensor = "a"\ntime = "t"', "readings", "missing"),
        ('message = "json"\n[readings]\nsensor = "a"\ntime = "t"', "sensor", "below the line [readings] belongs"),
        ('message = "json"\nsensor = "a"\ntime = { path = "t", format = "YYYY-MM-DD" }\nreadings = {}',
         "time.format", "not a format of times"),
        ("mesage = 1\n" + SMALLEST, "mesage", "did you mean message?"),
        ("xyz = 1\n" + SMALLEST, "xyz", "the keys are message"),
        ("message = 1\n" + SMALLEST.split("\n", 1)[1], "message", "not a text"),
        ("each = 1\n" + SMALLEST, "each", "not a text"),
        ('each = "a"\n' + SMALLEST, "each", "not the path of a repeated field"),
        ("unmarked = 1\n" + SMALLEST, "unmarked", "true or false"),
        ('inexact_integers = "x"\n' + SMALLEST, "inexact_integers", "none of 'refuse', 'round', 'metadata'"),
        ('decimal = ","\nthousands = ","\n' + SMALLEST, "thousands", "decimal sign too"),
        ("null = true\n" + SMALLEST, "null", "texts and numbers"),
        ("skip_if = 1\n" + SMALLEST, "skip_if", "not a table"),
        ('skip_if = { path = "a" }\n' + SMALLEST, "skip_if", "one of is, is_not, set and glob"),
        ('skip_if = { path = "a", is = 1, set = true }\n' + SMALLEST, "skip_if", "one of is, is_not, set and glob"),
        ('skip_if = { path = "a", set = 1 }\n' + SMALLEST, "skip_if.set", "true or false"),
        ('skip_if = { path = "a", glob = 1 }\n' + SMALLEST, "skip_if.glob", "texts"),
        ('skip_if = { path = "a", is = [] }\n' + SMALLEST, "skip_if.is", "texts, numbers"),
        ('skip_if = { path = "a.*", is = 1 }\n' + SMALLEST, "skip_if", "star"),
        (SMALLEST + "x = []", "readings.x", "names no path"),
        (SMALLEST + "x = {}", "readings.x", "exactly one of path"),
        (SMALLEST + 'x = { path = "a", scle = 1 }', "readings.x.scle", "did you mean scale?"),
        (SMALLEST + 'x = { path = "a", scale = "1" }', "readings.x.scale", "not a number"),
        (SMALLEST + 'x = { path = "a", scale = inf }', "readings.x.scale", "finite"),
        (SMALLEST + 'x = { path = "a", signed = 65 }', "readings.x.signed", "number of bits"),
        (SMALLEST + 'x = { path = "a", first = ["b"] }', "readings.x", "first stands for its path"),
        (SMALLEST + "x = { first = [] }", "readings.x", "names no path"),
        (SMALLEST + 'x = { first = [{ first = ["a"] }] }', "readings.x.first", "no such key"),
        (SMALLEST + 'x = "{a}"', "readings.x", "into quotes"),
        (SMALLEST + 'x = "a.*"', "readings.x", "needs a name with a star"),
        (SMALLEST + 'x = { path = "a", name = "b" }', "readings.x", "only a name with a star"),
        (SMALLEST + '"*" = ["a.*", "b"]', "readings.*", "a name with a star takes paths that end with one"),
        (SMALLEST + '"**" = "a.*"', "readings.**", "at most one star"),
        (SMALLEST + '"*" = { path = "a.*", name = "b" }', "readings.*", "each text of its name has one too, like {m"),
        (SMALLEST + '"*" = { path = "a.*", name = ["{b}.*", "{b}"] }', "readings.*", "each text of its name has one"),
        (SMALLEST + '"*" = { path = "a", name = "{b}.*" }', "readings.*", "each text of its name has none either"),
        (SMALLEST + '"*" = { first = ["a.*", "a"], name = "{b}.*" }', "readings.*", "takes paths that end with one"),
        (SMALLEST + '[types]\na = ["text", "json"]', "types.a", 'is ["json", "text"]'),
        ('compression = "br"\n' + SMALLEST, "compression", "none of 'gzip', 'zlib', 'auto'"),
        (SMALLEST + '"*" = { path = "a.*", required = true }', "readings.*", "can't be required"),
        (SMALLEST + '"1x" = "a"', "readings.1x", "not a name"),
        (SMALLEST + '"*" = { path = "a.*", except = 1 }', "readings.*.except", "globs"),
        (SMALLEST + '[metadata]\na = { path = "a", constant = "b" }', "metadata.a", "one of path, name_of, con"),
        (SMALLEST + '[metadata]\na = "{b"', "metadata.a", "brace"),
        (SMALLEST + "[metadata]\na = { path = [1] }", "metadata.a", "not a text"),
        (SMALLEST + "[types]\na = 1", "types.a", "full name"),
        (SMALLEST + '[types]\n"a.*" = "m.M"', "types.a.*", "path of a field from the message"),
        (SMALLEST + '[attributes]\na = "{"', "attributes.a", "not a pattern"),
        (SMALLEST + '[csv]\ndelimiter = ";;"', "csv.delimiter", "single character"),
        (SMALLEST + "[csv]\nskip_lines = -1", "csv.skip_lines", "from 0 to 10,000, or a glob of the header"),
        (SMALLEST + '[csv]\nskip_lines = ""', "csv.skip_lines", "a glob of the header"),
        (SMALLEST + "[csv]\nheader_lines = true", "csv.header_lines", "it is True, not a number of lines from 1 to"),
        (SMALLEST + "[csv]\nheader_lines = 0", "csv.header_lines", "from 1 to 10,000"),
        (SMALLEST + '[csv]\ncomment = ""', "csv.comment", "the beginning of a line"),
        (SMALLEST + '[csv]\nencoding = "utf-42"', "csv.encoding", "no encoding"),
        (SMALLEST + '[csv]\nencoding = "a\\u0000b"', "csv.encoding", "no encoding"),
        (with_time('{ path = "t", unit = "min" }'), "time.unit", "none of 's', 'ms', 'us', 'ns', 'd'"),
        (with_time('{ path = "t", epoch = "1899-12-30" }'), "time.epoch", 'a number with a unit'),
        (with_time('{ path = "t", unit = "d", epoch = "30.12.1899" }'), "time.epoch", "like 1899-12-30"),
        (with_time('{ path = "t", stamps = "end" }'), "time.stamps", 'like length = "15m"'),
        (with_time('{ path = "t", stamps = "start", length = "1h" }'), "time.stamps", "none of 'end'"),
        (with_time('{ path = "t", length = "1h" }'), "time.length", 'with stamps = "end"'),
        (with_time('{ path = "t", stamps = "end", length = "0s" }'), "time.length", "longer than zero"),
        (with_time('{ path = "t", stamps = "end", length = "1h", interval = "/" }'), "time.stamps", "without interval"),
        (with_time('{ path = "t", interval = "" }'), "time.interval", "between two times"),
        (with_time('{ path = "t", valid_from = "soon" }'), "time.valid_from", "ISO 8601"),
        (with_time('{ path = "t", max_age = "30" }'), "time.max_age", "not a duration"),
        (with_time('{ path = "t", invalid = "null" }'), "time.invalid", "no such key"),
        (with_time('{ path = "t", time_zone = "Mars/Olympus" }'), "time.time_zone", "no time zone"),
        (with_time('{ path = "t", ambiguous = "first" }'), "time.ambiguous", "with a time_zone"),
        (with_time('{ path = "t", time_zone = "Europe/Berlin", ambiguous = "last" }'),
         "time.ambiguous", "none of 'refuse', 'first'"),
        (with_time('{ path = "t", time_zone = "Europe/Berlin", ambiguous = "order" }\neach = "a[]"'),
         "time.ambiguous", "each makes several"),
        (with_time('{ path = "t", plus = "soon" }'), "time.plus", "a path stands in a table, like"),
        (with_time('{ path = "t", plus = { path = "a.*", unit = "s" } }'), "time.plus", "no single value"),
        (with_time('{ path = "t", plus = { path = "a", unit = "min" } }'), "time.plus.unit", "none of 's'"),
        (with_time('{ path = "t", step = "60s" }'), "time.step", "the mapping has neither"),
        ('zip = "a.t"\n' + SMALLEST, "zip", "not the path of a named list"),
        ('zip = ["a[0][]", "b[]"]\n' + SMALLEST, "zip", "not the path of a named list"),
        ('zip = "a[]"\n' + SMALLEST, "zip", "a single list is in each"),
        ('zip = ["a.*[]", "b[]"]\n' + SMALLEST, "zip", "stands alone"),
        ('zip = "a.*.b[]"\n' + SMALLEST, "zip", "ends with .*[]"),
        ('zip = ["a[].t[]", "t[]"]\n' + SMALLEST, "zip", "are not lists of one element"),
        ('zip = ["a.t[]", "b.t[]"]\n' + SMALLEST, "zip", "two lists named t"),
        (with_time('{ path = "t", format = "%Q" }'), "time.format", "not a format"),
        (with_time('{ path = "t", format = "%Y%Y" }'), "time.format", "not a format"),
        (with_time('{ constant = "2026" }'), "time.constant", "no such key"),
    ],
)  # fmt: skip
def test_mappings_that_do_not_hold(text, key, problem):
    """An invalid mapping is one line with the key and the problem."""
    with pytest.raises(MappingError) as error:
        parse_mapping(text)
    assert error.value.key == key
    assert problem in error.value.problem
    assert "\n" not in str(error.value)


def test_bounds():
    """A mapping has at most 1 MiB, 1,000 readings and 100 names of metadata."""
    with pytest.raises(MappingError, match="at most 1 MiB"):
        parse_mapping(SMALLEST + "#" * MAX_MAPPING_BYTES)
    with pytest.raises(MappingError, match=r"readings: it has 1001 entries, more than the 1000"):
        parse_mapping(TOP + "[readings]\n" + "".join(f'r{index} = "a"\n' for index in range(1001)))
    with pytest.raises(MappingError, match=r"metadata: it has 101 entries, more than the 100"):
        parse_mapping(SMALLEST + "[metadata]\n" + "".join(f'm{index} = "a"\n' for index in range(101)))


_KEYS = [
    "message", "unmarked", "match", "skip_if", "each", "sensor", "time", "event_id", "rewrite_names", "invalid", "null",
    "inexact_integers", "decimal", "thousands", "types", "attributes", "csv", "readings", "metadata", "path", "name_of",
    "epoch", "interval", "stamps", "length", "valid_from", "max_age",
    "constant", "when", "unit", "format", "time_zone", "scale", "offset", "signed", "name", "except", "required",
    "first", "is", "set", "glob", "delimiter", "encoding", "*", "a",
]  # fmt: skip
_text = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'), max_size=4)
_texts = ["a", "a.*", "a[]", "{a:x}", "**", "*", "ms", "null", "%Y%m", "15m", "end", "json", "UTC", ""]
_others = ["1", "-1", "0.5", "inf", "nan", "true", "false", "2026-02-17T10:30:00Z", "10:30:00", "1e400", "64"]
_scalars = (st.sampled_from(_texts) | _text).map('"{}"'.format) | st.sampled_from(_others)
_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4).map(
            lambda table: "{" + ", ".join(f'"{key}" = {value}' for key, value in table.items()) + "}"
        )
    ),
    max_leaves=8,
)
_tables = st.fixed_dictionaries(
    {"message": _values | st.just('"a.B"'), "sensor": _values, "time": _values, "readings": _values},
    optional={key: _values for key in _KEYS if key not in ("message", "sensor", "time", "readings")},
)


@given(_tables)
def test_any_toml_is_a_mapping_or_a_mapping_error(tables):
    """Any TOML is parsed, or refused with a MappingError."""
    with contextlib.suppress(MappingError):
        parse_mapping("\n".join(f'"{key}" = {value}' for key, value in tables.items()))


@given(st.text(max_size=60))
def test_any_text_is_a_mapping_error(text):
    """Any text that is no mapping is refused with a MappingError."""
    with pytest.raises(MappingError):
        parse_mapping(text)
