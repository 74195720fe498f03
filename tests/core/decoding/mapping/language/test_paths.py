import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.decoding.mapping.language.paths import (
    MAX_PATH,
    MAX_STEPS,
    Current,
    Extreme,
    Field,
    Index,
    Lookup,
    PathError,
    Placeholder,
    Root,
    Star,
    parse_attribute_pattern,
    parse_path,
    parse_template,
)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("a.b_1.c-d", (Field("a"), Field("b_1"), Field("c-d"))),
        ('a."b.c [d]"', (Field("a"), Field("b.c [d]"))),
        ("a[0].b", (Field("a"), Index(0), Field("b"))),
        ("a[-1]", (Field("a"), Index(-1))),
        ("a[].b[]", (Field("a"), Current(), Field("b"), Current())),
        ("[].b", (Current(), Field("b"))),
        ("a[max b.c].d", (Field("a"), Extreme(True, parse_path("b.c")), Field("d"))),
        ("a[max b[0]]", (Field("a"), Extreme(True, parse_path("b[0]")))),
        ("a[key=site].v", (Field("a"), Lookup(parse_path("key"), "site"), Field("v"))),
        ("a[ key = the site ]", (Field("a"), Lookup(parse_path("key"), "the site"))),
        ('a[key="x=]"]', (Field("a"), Lookup(parse_path("key"), "x=]"))),
        ("a[key=]", (Field("a"), Lookup(parse_path("key"), ""))),
        ("a.*", (Field("a"), Star(False))),
        ("**", (Star(True),)),
        ("a.*.b", (Field("a"), Star(False), Field("b"))),
        ('a."*"', (Field("a"), Field("*"))),
        (".", ()),
        (".a.b", (Field("a"), Field("b"))),
        (".[0]", (Index(0),)),
        ("@mqtt_topic.group", (Field("mqtt_topic"), Field("group"))),
        ('@"x.y z"', (Field("x.y z"),)),
        ("$publish_time", (Field("publish_time"),)),
        ("$file", (Field("file"),)),
        ("$file.stem", (Field("file"), Field("stem"))),
    ],
)
def test_path(text, steps):
    """A path becomes its steps, and is written as it was. Its prefix says where it begins."""
    path = parse_path(text)
    roots = {".": Root.ELEMENT, "@": Root.ATTRIBUTE, "$": Root.ENVELOPE}
    assert (path.root, path.steps, str(path)) == (roots.get(text[0], Root.MESSAGE), steps, text)
    assert path.is_of_file == text.startswith("$file")


def test_names_leave_out_selectors():
    """A path's names are its fields and stars alone."""
    assert parse_path("a[0].b[key=c].*").names == ("a", "b", "*")
    assert parse_path("a.**").names == ("a", "**")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("a..b", "no name begins"),
        ("a.", "ends with a dot"),
        ("a[0", "opening bracket without a closing"),
        ('"a', "opening quote without a closing"),
        ("-a", "into quotes"),
        ("a[x].b", "keys of maps follow a dot"),
        ("a b", "put a name with other characters into quotes"),
        ("$.a", "paths in the message have no $"),
        ("a[max @b]", "not by a field of the element"),
        ("**.a", "goes on after **"),
        ("*.*", "more than one star"),
        ("@", "no name begins"),
        ("@a.b.c", "not an attribute"),
        ("$file.name", "none of $publish_time, $message_id, $ordering_key, $file, $file.stem, $file.folder"),
        (".".join("a" * (MAX_STEPS + 1)), "steps"),
        ("a" * (MAX_PATH + 1), "characters"),
    ],
)
def test_text_that_is_no_path(text, problem):
    """Text that is no path is refused in one line with the problem."""
    with pytest.raises(PathError) as error:
        parse_path(text)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_template():
    """A template becomes its texts and placeholders."""
    assert parse_template("!{packet.from:08x}/{@a.b}") == (
        "!",
        Placeholder(parse_path("packet.from"), "08x"),
        "/",
        Placeholder(parse_path("@a.b"), ""),
    )
    assert parse_template('{tags[key=aws:id].value}{"a:b}":upper}') == (
        Placeholder(parse_path("tags[key=aws:id].value"), ""),
        Placeholder(parse_path('"a:b}"'), "upper"),
    )
    assert parse_template("{{{a}}}") == ("{", Placeholder(parse_path("a"), ""), "}")
    assert parse_template("") == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{a", "opening brace without a closing"),
        ("a}", "closing brace without an opening"),
        ("{}", "empty"),
        ("{a.*}", "star"),
        ("{a:s}", "format 's'"),
        ("{a:>9999999999d}", "format"),
        ("{a!r}", "does not begin with a dot"),
        ("{a.__class__:{b}}", "format"),
    ],
)
def test_text_that_is_no_template(text, problem):
    """Text that is no template is refused with the problem."""
    with pytest.raises(PathError, match=problem.replace("{", r"\{")):
        parse_template(text)


def test_attribute_pattern():
    """Each name of a pattern takes one part of an attribute, or several."""
    pattern = parse_attribute_pattern("spBv1.0/{group}/DDATA/{node}/{device=**}")
    assert pattern.fullmatch("spBv1.0/plant/DDATA/line 1/d/e").groupdict() == {
        "group": "plant",
        "node": "line 1",
        "device": "d/e",
    }
    assert not pattern.fullmatch("spBv1x0/plant/DDATA/line 1/d")  # a dot is a dot
    assert not pattern.fullmatch("spBv1.0/plant/DDATA/line 1/")
    assert not pattern.fullmatch("spBv1.0/plant/a/DDATA/line 1/d")


@pytest.mark.parametrize("text", ["{a=**}/b", "x{a}", "{a", "{a}/{a}", "{a=*}", "{1}"])
def test_text_that_is_no_attribute_pattern(text):
    """Text that is no pattern is refused."""
    with pytest.raises(PathError, match="is not a pattern"):
        parse_attribute_pattern(text)


_texts = st.text(st.sampled_from(list('ab0-.[]"*@${}=: /_é\n')) | st.characters(), max_size=40)


@given(_texts)
def test_any_text_is_parsed_or_is_a_path_error(text):
    """Any text is parsed, or refused with a PathError."""
    for parse in (parse_path, parse_template, parse_attribute_pattern):
        with contextlib.suppress(PathError):
            parse(text)


_names = st.text(st.characters(exclude_characters='"', exclude_categories=["Cs"]), max_size=8)
_quoted = st.lists(_names, min_size=1, max_size=6)


@given(_quoted)
def test_any_name_can_be_written_in_quotes(names):
    """Any name of a field can be written in quotes."""
    assert parse_path(".".join(f'"{name}"' for name in names)).steps == tuple(map(Field, names))
