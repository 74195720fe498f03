"""The names that a mapping gives."""

from urllib.parse import unquote

from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.core.decoding.mapping.compiling.execution import rewritten
from pipeline.core.decoding.mapping.values.conversions import encoded_id
from pipeline.core.events.event import MAX_NAME, is_name

_names = st.text(st.sampled_from("a2_-./ üö温%"), max_size=4) | st.text(max_size=MAX_NAME)


@given(_names, _names)
@example("Küche", "Köche")
@example("温度", "湿度")
@example("2nd", "_2nd")
@example("ü" * MAX_NAME, "ü" * (MAX_NAME - 1) + "ö")
def test_rewritten_names_are_valid_and_different(one, other):
    """Names are equal only if they differ by a slash or a dot, or by a space or an underscore."""
    assert is_name(rewritten(one))
    assert not is_name(one) or rewritten(one) == one
    if rewritten(one) == rewritten(other):
        assert one.replace("/", ".").replace(" ", "_") == other.replace("/", ".").replace(" ", "_")


@given(_names)
def test_ids_can_be_decoded(text):
    """An encoded id has printable ASCII except ``#``, and is the percent-encoding of one text."""
    encoded = encoded_id(text)
    assert set(encoded) <= set(map(chr, range(0x21, 0x7F))) - {"#"}
    assert unquote(encoded) == text
