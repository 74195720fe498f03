"""Turns the values of messages into texts and readings, some of which count as not set, and compares them.

A mapping that compares a value with what it can never be is wrong: that is found here too.
"""

import fnmatch
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from decimal import Context, Decimal, InvalidOperation
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from pipeline.core.decoding.mapping.language.model import FORM, Condition, Mapping, MappingError, Scalar, Source
from pipeline.core.decoding.mapping.language.paths import PathError
from pipeline.core.decoding.mapping.values.nodes import PLAIN, Getter, Leaf, Node, composed, itself
from pipeline.core.events.invalid_readings import Invalid, LeftOut, out_of_range
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.exact_numbers import MAX_EXACT, exact_float, nearest_float32, shortest_float32
from pipeline.core.notation.text import shown
from pipeline.core.notation.times import format_time, parse_time


def leaf_text(leaf: Leaf) -> Getter:
    """Returns the function that turns a leaf's value into text: a value of an enum into its name. It raises BadData."""
    match leaf.kind:
        case "string":
            return itself if leaf.is_checked else checked_text
        case "bool":
            return lambda value: "true" if value else "false"
        case "enum":
            names = leaf.enum.values_by_number  # type: ignore[union-attr]
            return lambda value: names[value].name if value in names else str(value)
        case "bytes":
            return bytes.hex
        case "timestamp":
            return timestamp_text
        case "duration":
            return lambda value: float_text((value.seconds * 1_000_000_000 + value.nanos) / 1_000_000_000)
        case "int":
            return str
        case "float":
            return lambda value: float_text(shortest_float32(value))
        case "json":
            return plainly
        case _:
            return float_text


def checked_text(value: str | bytes) -> str:
    """Returns text unchanged. Raises BadData for bytes, which are text of proto2 that is not UTF-8."""
    if type(value) is bytes:
        raise BadData(Reason.UNPARSEABLE, f"a text is not UTF-8: {shown(value.hex())} in hexadecimal")
    return value  # type: ignore[return-value]


def timestamp_text(timestamp: Any) -> str:
    """Returns a Timestamp as RFC 3339 text. Raises BadData if it is outside the years 1 to 9999."""
    time_us = timestamp_us(timestamp)
    try:
        return format_time(time_us)
    except OverflowError:
        raise BadData(
            Reason.INVALID_EVENT_TIME, f"a time is {time_us} µs since the epoch, which no calendar has"
        ) from None


def float_text(value: float) -> str:
    """Returns the shortest text of a number, without a trailing ``.0``."""
    return repr(value).removesuffix(".0")


def plainly(value: Any) -> str | None:
    """Returns the text of a value of JSON or a Struct; None for arrays and objects."""
    kind = type(value)
    if kind is str:
        return value
    if kind is bool:
        return "true" if value else "false"
    if kind is float:
        return float_text(value)
    return None if kind in (list, dict) else str(value)


def timestamp_us(timestamp: Any) -> int:
    """Returns a Timestamp in microseconds since the epoch. Raises BadData if its nanoseconds are out of range."""
    nanos = timestamp.nanos
    if not 0 <= nanos < 1_000_000_000:
        raise BadData(Reason.INVALID_EVENT_TIME, f"the time has {nanos} nanoseconds, not 0 to 999,999,999")
    return timestamp.seconds * 1_000_000 + nanos // 1000


def kind_of(value: Any) -> str:
    """Returns the kind of a value, for error messages."""
    kinds = {dict: "an object", list: "an array", str: f"the text {shown(str(value))}", bool: "a boolean"}
    return kinds.get(type(value), "a number" if isinstance(value, (int, float)) else f"a {type(value).__name__}")


class KeptDigits(str):
    """The digits of a reading that became metadata, since a double can't hold them."""

    __slots__ = ()


class Inexact(BadData):
    """Raised for an integer that a double cannot hold exactly. ``text`` contains its digits."""

    def __init__(self, key: str, value: int) -> None:
        super().__init__(Reason.INEXACT_INTEGER, f"{key} is {shown(str(value))}, which a double can't hold exactly")
        self.text = KeptDigits(value)


_SPELLED = {
    "nan": ("nan", "NaN", "NAN"),
    "inf": ("inf", "Inf", "+Inf", "Infinity"),
    "-inf": ("-inf", "-Inf", "-Infinity"),
}
"""The texts of numbers that are not finite: in Python, in Prometheus, and in protobuf's JSON."""


def without_nulls(convert: Getter, source: Source, node: Leaf) -> Getter:
    """Returns a conversion for which the null values of a source count as not set."""
    null = as_in(node, source.null)
    if not null:
        return convert
    has_nan = any(value != value for value in null)
    null |= {text for value in null for text in as_texts(value)}  # the cells of CSV are text

    def get(value: Any) -> Any:
        try:
            # True equals 1 in Python, and NaN is not even equal to itself.
            if (value in null and type(value) is not bool) or (has_nan and value != value):
                return None
        except TypeError:  # an array or an object
            pass
        return convert(value)

    return get


def or_null(convert: Getter, source: Source) -> Getter:
    """Returns a conversion for which an invalid value counts as not set, if the source does not refuse it."""
    if source.invalid is Invalid.REFUSE_EVENT:
        return convert

    def get(value: Any) -> Any:
        try:
            return convert(value)
        except Inexact:
            raise
        except BadData:
            return None

    return get


def as_in(node: Leaf, values: Iterable[Scalar]) -> frozenset[Scalar]:
    """Returns the values as a node holds them: the 32-bit float nearest to 0.1, or the number of an enum's name."""
    if node.kind == "float":
        return frozenset(nearest_float32(value) if isinstance(value, float) else value for value in values)
    if node.enum is not None:
        known = node.enum.values_by_name
        return frozenset(known[value].number if value in known else value for value in values)
    return frozenset(values)


def as_texts(value: Scalar) -> tuple[str, ...]:
    """Returns the texts that stand for a value."""
    text = str(value)
    return _SPELLED.get(text, (text,)) if isinstance(value, float) else (text,)


NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_EXACT = Context(prec=1000)
MAX_DIGITS = 400  # characters of a number

MEASURED = frozenset({"double", "float", "int", "bool", "duration", "json"})
_NUMBERS = MEASURED | {"enum", "string"}


def star_number_of(key: str, node: Node, source: Source, mapping: Mapping) -> Getter | None:
    """Returns :func:`number_of` for a value that a star leads to: a number, a boolean or a state; None for others."""
    is_measured = isinstance(node, Leaf) and node.kind in (_NUMBERS if source.values else MEASURED)
    if not is_measured:
        return None
    convert = number_of(key, node, source, mapping, of_star=True)
    if node != PLAIN or mapping.message != FORM:
        return convert
    number_in, convert_text = number_reader(mapping.decimal, mapping.thousands), number_of(key, node, source, mapping)
    states = {text for text, _ in source.values}

    def field(value: Any) -> float | None:
        """Returns the number of a form's field, which is text; a word is not set."""
        if type(value) is not str:
            return convert(value)
        is_known = value in states or number_in(value.strip().removesuffix(source.suffix)) is not None
        return convert_text(value) if is_known else None

    return field


def number_of(key: str, node: Node, source: Source, mapping: Mapping, *, of_star: bool = False) -> Getter:
    """Returns the function that turns a value of a node into a reading.

    The function returns a float, or None for a value that counts as not set, or is not a number and ``of_star``. It
    raises BadData. Raises MappingError if a value of this node is never a number.
    """
    if not isinstance(node, Leaf) or node.kind not in _NUMBERS:
        raise MappingError(key, f"a reading is a number, not {node}")
    rounds = mapping.inexact_integers == "round"

    def integer(value: int) -> float:
        number = exact_float(value)
        if number is None:
            if not rounds:
                raise Inexact(key, value)
            number = float(value)
        return number

    if source.scale is None and source.offset is None:
        convert = _raw_number(key, node, source, mapping, integer, of_star=of_star)
    else:  # first in decimal, then as a double
        convert = _raw_number(key, node, source, mapping, itself, of_star=of_star)
        scale = Decimal(1) if source.scale is None else source.scale
        convert = _scaled(convert, scale, source.offset or Decimal(0), integer)
    if source.signed is not None:
        convert = _signed(key, node, source.signed, convert)
    if source.values:
        convert = _of_states(key, node, source, convert, is_star=of_star)
    convert = or_left_out(without_nulls(convert, source, node), source)
    return _in_range(key, convert, source.valid) if source.valid else convert


def or_left_out(convert: Getter, source: Source) -> Getter:
    """Returns a conversion that leaves out values that are not numbers, if the source says so."""
    if source.invalid is Invalid.REFUSE_EVENT:
        return convert

    def get(value: Any) -> float | None:
        try:
            return convert(value)
        except Inexact:
            raise
        except BadData as problem:
            return LeftOut(problem.with_traceback(None))

    return get


def _in_range(key: str, convert: Getter, valid: tuple[float, float]) -> Getter:
    """Returns a conversion that leaves out numbers outside a range."""
    least, greatest = valid

    def get(value: Any) -> float | None:
        number = convert(value)
        if number is None or least <= number <= greatest or isinstance(number, LeftOut):
            return number
        if math.isfinite(number):
            return LeftOut(out_of_range(key, number, valid))
        return LeftOut(BadData(Reason.NON_FINITE_VALUE, f"{key} is {number}"))

    return get


def _of_states(key: str, node: Leaf, source: Source, convert: Getter, *, is_star: bool) -> Getter:
    """Returns a conversion that looks texts, booleans and names of an enum up in the source's table first.

    Stars leave out texts and names that the table does not have. Raises MappingError if the node has no such values, or
    the table has others, unless a star leads to it.
    """
    numbers, name_of = dict(source.values), leaf_text(node)
    names = {"bool": ("true", "false"), "enum": tuple(node.enum.values_by_name) if node.enum else ()}.get(node.kind)
    if not is_star and names is None and node.kind not in ("string", "json"):
        raise MappingError(f"{key}.values", f"it is for texts, booleans and enums, not for {node}")
    if not is_star and names and (others := sorted(numbers.keys() - set(names))):
        raise MappingError(f"{key}.values", f"{others[0]!r} is none of {', '.join(names):.200}")

    def get(value: Any) -> float | None:
        number = None
        if type(value) is str:
            number = numbers.get(value)
        elif type(value) is bool:
            number = numbers.get("true" if value else "false")
        return convert(value) if number is None else number

    def get_named(value: Any) -> float | None:
        text = name_of(value)
        if not is_star and text not in numbers:
            raise BadData(Reason.NOT_A_NUMBER, f"{key} is {shown(text)}, which values does not have")
        return numbers.get(text)

    return get_named if node.kind == "enum" or (is_star and node.kind == "string") else get


def _raw_number(
    key: str, node: Leaf, source: Source, mapping: Mapping, integer: Callable[[int], float], *, of_star: bool
) -> Getter:
    parse = _number_parser(key, source, mapping, integer)
    match node.kind:
        case "float" if mapping.shortest_floats:
            return shortest_float32
        case "double" | "float":
            return itself
        case "bool" | "enum":
            return float
        case "duration":
            return lambda value: (value.seconds * 1_000_000_000 + value.nanos) / 1_000_000_000
        case "int":
            return float if node.bits < 64 and integer is not itself and source.signed is None else integer
        case "string":
            return composed(leaf_text(node), parse)

    def plain(value: Any) -> float | None:
        kind = type(value)
        if kind is float:
            return value
        if kind is bool:
            return float(value)
        if kind is int:
            return integer(value)
        if of_star:
            return None
        if kind is str:
            return parse(value)
        raise BadData(Reason.NOT_A_NUMBER, f"{key} is {kind_of(value)}, not a number")

    return plain


def _number_parser(
    key: str, source: Source, mapping: Mapping, integer: Callable[[int], float]
) -> Callable[[str], float | None]:
    number_in = number_reader(mapping.decimal, mapping.thousands)

    def parse(text: str) -> float | None:
        number = number_in(text.strip().removesuffix(source.suffix))
        if number is None:
            raise BadData(Reason.NOT_A_NUMBER, f"{key} is {shown(text)}, not a number")
        whole = number.rstrip("0").rstrip(".") if "." in number else number  # of 12.00
        found = (integer(int(whole)) if whole.lstrip("+-").isdecimal() else 0) or float(number)
        return None if found in source.null else found  # also where the text is "-999.0" or "-999,0"

    return parse


def number_reader(decimal: str, thousands: str) -> Callable[[str], str | None]:
    """Returns the function that turns a number as text into Python's notation; it returns None for other text."""
    grouped = re.compile(rf"[+-]?[1-9][0-9]{{0,2}}(?:{re.escape(thousands)}[0-9]{{3}})*(?:{re.escape(decimal)}[0-9]*)?")

    def read(text: str) -> str | None:
        number = text.strip()
        if thousands and thousands in number and grouped.fullmatch(number):
            number = number.replace(thousands, "")
        if decimal != "." and "." not in number:
            number = number.replace(decimal, ".", 1)
        elif decimal != ".":
            return None  # a dot is no decimal sign here
        return number if len(number) <= MAX_DIGITS and NUMBER.fullmatch(number) else None

    return read


def _signed(key: str, node: Leaf, bits: int, convert: Getter) -> Getter:
    if node.kind not in ("int", "json"):
        raise MappingError(f"{key}.signed", f"it is for integers, not for {node}")
    top, mask = 1 << (bits - 1), (1 << bits) - 1
    # Above the bits of a negative number, there are zeros, or ones up to the 32 or 64 bits of the field.
    wraps = (0, 1 << bits, 1 << 32, 1 << 64)

    def signed(value: Any) -> float | None:
        value = _whole_number(value)
        if type(value) is not int:
            return convert(value)
        number = ((value & mask) ^ top) - top
        if value != number and not (number < 0 and value - number in wraps):
            raise BadData(Reason.NOT_A_NUMBER, f"{key} is {shown(str(value))}, which is no number of {bits} bits")
        return convert(number)

    return signed


def _whole_number(value: Any) -> Any:
    """Returns the integer that text, or a float of a Struct, stands for; any other value unchanged."""
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is str and len(value) <= MAX_DIGITS and _INTEGER.fullmatch(value.strip()):
        return int(value)
    return value


def _scaled(convert: Getter, scale: Decimal, offset: Decimal, integer: Callable[[int], float]) -> Getter:
    def scaled(value: Any) -> float | None:
        number = convert(value)
        is_integer = type(number) is int  # of any size
        if number is None or not (is_integer or math.isfinite(number)):
            return number
        # In decimal, 2150 · 0.01 is 21.5.
        exact = _EXACT.add(_EXACT.multiply(Decimal(number if is_integer else repr(number)), scale), offset)
        found = float(exact)
        if is_integer and not -MAX_EXACT < found < MAX_EXACT and exact == exact.to_integral_value():
            return integer(int(exact))
        return found

    return scaled


def decimal_in(text: str) -> Decimal | None:
    """Returns the number in a text; None if it is not a number, or absurdly long."""
    try:
        return Decimal(text) if len(text) <= MAX_DIGITS and NUMBER.fullmatch(text) else None
    except InvalidOperation:  # an exponent of twenty digits
        return None


_IN_IDS = "".join(character for character in map(chr, range(0x21, 0x7F)) if character not in "#%")


def encoded_id(text: str) -> str:
    """Returns a text with each character that a sensor's id can't have, and ``%``, percent-encoded as in RFC 3986."""
    return quote(text, safe=_IN_IDS)


_TEXT_FORMATS = {"hex": ("bytes",), "upper": ("string", "bytes", "enum"), "lower": ("string", "bytes", "enum")}


def star_text_of(key: str, node: Node, source: Source, mapping: Mapping) -> Getter | None:
    """Returns the function that turns a value that a star leads to into text; None unless it is text or an enum.

    The fields of a form are text too if they are numbers: these are for the stars of readings.
    """
    if not isinstance(node, Leaf) or node.kind not in ("string", "enum", "json"):
        return None
    if node != PLAIN:
        return text_of(key, node, source)
    number_in = number_reader(mapping.decimal, mapping.thousands) if mapping.message == FORM else lambda _: None
    return without_nulls(lambda value: value if type(value) is str and number_in(value) is None else None, source, node)


def text_of(key: str, node: Node, source: Source, *, name_of: bool = False) -> Getter:
    """Returns the function that turns a value of a node into text, or with ``name_of`` a value of an enum into its
    name.

    Raises MappingError if a value of this node is never text.
    """
    if not isinstance(node, Leaf):
        raise MappingError(key, f"a text is made of a single value, not of {node}")
    if name_of and node.enum is None and node != PLAIN:
        raise MappingError(key, f"name_of is for an enum or a oneof, not for {node}")

    def single(value: Any) -> str:
        text = plainly(value)
        if text is None:
            raise BadData(Reason.UNPARSEABLE, f"{key} is {kind_of(value)}, not a single value")
        return text

    return without_nulls(single if node == PLAIN else leaf_text(node), source, node)


def formatted(key: str, node: Node, spec: str, source: Source) -> Getter:
    """Returns the function that formats a value for a placeholder; without a spec, as usual. It raises BadData."""
    if not spec:
        return text_of(key, node, source)
    if spec == "id":
        return composed(text_of(key, node, source), encoded_id)
    if spec == "sha256":
        return composed(text_of(key, node, source), _digest)
    if kinds := _TEXT_FORMATS.get(spec):
        is_text = node == PLAIN and spec != "hex"  # JSON has no bytes
        if not is_text and not (isinstance(node, Leaf) and node.kind in kinds):
            raise MappingError(key, f"the format {spec} is for {' and '.join(kinds)}, not for {node}")
        return composed(text_of(key, node, source), str.upper if spec == "upper" else str.lower)
    integral = spec[-1] in "dxXob"
    wanted = ("int", "enum", "json") if integral else ("int", "float", "double", "json")
    if not isinstance(node, Leaf) or node.kind not in wanted:
        raise MappingError(key, f"the format {spec} is for {'integers' if integral else 'numbers'}, not for {node}")

    def get_formatted(value: Any) -> str:
        number = decimal_in(value.strip()) if type(value) is str else value  # the cells of CSV are text
        if isinstance(number, bool) or not isinstance(number, (int, float, Decimal)):
            raise BadData(Reason.NOT_A_NUMBER, f"{key} is {kind_of(value)}, which the format {spec} is not for")
        if isinstance(number, Decimal) and number.adjusted() > MAX_DIGITS:
            raise BadData(Reason.NOT_A_NUMBER, f"{key} exceeds the range of a double")
        if not integral:  # Python would round an integer to a double first
            return format(Decimal(number) if type(number) is int else number, spec)
        try:
            whole = int(number)
        except (ValueError, OverflowError):  # NaN and infinity
            whole = None
        if whole is None or whole != number:
            raise BadData(Reason.NOT_A_NUMBER, f"{key} is {number}, which the format {spec} is not for")
        return format(whole, spec)

    return without_nulls(get_formatted, source, node)


def _digest(text: str) -> str:
    """Returns the first 16 digits of a text's hash: the same for the same text, and of no use to guess it."""
    return sha256(text.encode()).hexdigest()[:16]


class NeverHolds(ValueError):
    """Raised for a condition that no value of a node fulfils. ``str()`` is the reason."""


def tester(key: str, condition: Condition, node: Node) -> Callable[[Any], bool]:
    """Returns the test of whether a value that is set fulfils a condition.

    Raises MappingError if the condition does not fit the node, and NeverHolds if no value of the node fulfils it.
    """
    kind, values = condition.kind, condition.values
    if kind == "set":
        return lambda _: values == (True,)
    if not isinstance(node, Leaf):
        raise MappingError(key, f"{condition.path} is {node}; a condition on it can only be set = true or set = false")
    if kind == "glob":
        if impossible := [value for value in values if not can_fit(node, str(value))]:
            raise NeverHolds(f"it is {node}, which never fits {impossible[0]!r}")
        text = leaf_text(node)
        globs = [re.compile(fnmatch.translate(str(value))) for value in values]
        return lambda value: (found := text(value)) is not None and any(glob.fullmatch(found) for glob in globs)
    convert, expected = _comparison(key, condition, node)
    is_expected = kind == "is"
    return lambda value: (convert(value) in expected) == is_expected


def _comparison(key: str, condition: Condition, node: Leaf) -> tuple[Getter, Collection]:
    """Returns how a value is converted to be compared, and what with. Raises as :func:`tester` does."""
    values, kind = condition.values, node.kind
    match kind:
        case "string" | "bytes" | "timestamp" | "duration":
            _check_kinds(key, condition, node, (str,), "text")
        case "bool":
            _check_kinds(key, condition, node, (bool,), "true or false")
        case "int" | "float" | "double":
            _check_kinds(key, condition, node, (int, float), "a number")
    if impossible := [value for value in values if not can_be(node, value)]:
        hint = "; empty text counts as not set, so test it with set = false" if "" in impossible else ""
        if node.enum:
            hint = f"; it has {', '.join(list(node.enum.values_by_name)[:20])}"
        raise NeverHolds(f"it is {node}, which is never {impossible[0]!r}{hint}")
    if kind in ("string", "bytes", "timestamp", "duration"):
        return leaf_text(node), values
    # JSON has numbers that are not finite as text.
    infinite = [value for value in values if isinstance(value, float) and not math.isfinite(value)]
    texts = {text for value in infinite for text in as_texts(value)} if node == PLAIN else set()
    return _compared, {_compared(value) for value in (*as_in(node, values), *texts)}


def _check_kinds(key: str, condition: Condition, node: Node, kinds: tuple[type, ...], expected: str) -> None:
    if not all(isinstance(value, kinds) and (bool in kinds or type(value) is not bool) for value in condition.values):
        raise MappingError(key, f"{condition.path} is {node}; compare it with {expected}")


def _compared(value: Any) -> tuple[bool, Any]:
    """Returns a value so that true is not 1, NaN equals itself, and an array or an object equals nothing."""
    if isinstance(value, (list, dict)):
        return False, None
    return isinstance(value, bool), _NAN if value != value else value


_NAN = object()


def order_of(node: Node, path: str) -> Getter:
    """Returns the getter of a number by which values of a node are compared; None for NaN. Raises PathError."""
    if isinstance(node, Leaf) and node.kind in ("timestamp", "duration"):
        return lambda value: value.seconds * 1_000_000_000 + value.nanos
    if not isinstance(node, Leaf) or node.kind in ("string", "bytes"):
        raise PathError(f"{path} is {node}, by which elements can't be compared")

    def number(value: Any) -> Any:
        if not isinstance(value, (int, float)):
            raise BadData(Reason.NOT_A_NUMBER, f"{path} is not a number, so elements can't be compared by it")
        return None if value != value else value  # NaN

    return number


def lookup_text_of(node: Node, path: str) -> Getter:
    """Returns the getter of the text by which values of a node are looked up. Raises PathError."""
    if not isinstance(node, Leaf):
        raise PathError(f"{path} is {node}, by which elements can't be looked up")
    return leaf_text(node)


def useless_null(source: Source, nodes: Sequence[Node]) -> str | None:
    """Returns why one of a source's own null values is none that any of the nodes can have; None if all may be."""

    def can_be_null(node: Node, value: Scalar) -> bool:
        match node.kind if isinstance(node, Leaf) else "":
            case "string":  # a number may stand in text
                return True
            case "bytes" | "timestamp" | "duration" | "bool":  # they are compared with nothing
                return False
        return can_be(node, value)

    for value in source.own_null if nodes else ():
        if not any(can_be_null(node, value) for node in nodes):
            return f"it is {nodes[0]}, which is never {value!r}"
    return None


def can_be(node: Node, value: Scalar) -> bool:
    """Returns whether a value of a node, as conditions compare it, can equal a value."""
    if not isinstance(node, Leaf) or node == PLAIN:
        return True
    match node.kind:
        case "enum":
            return value in node.enum.values_by_name if isinstance(value, str) else type(value) is int  # type: ignore[union-attr]
        case "int":
            is_whole = type(value) is int or (isinstance(value, float) and value.is_integer())
            return is_whole and node.has(int(value))
        case "float" | "double":
            return isinstance(value, (int, float)) and type(value) is not bool
        case "bool":
            return type(value) is bool
        case "string":
            return isinstance(value, str) and (bool(value) or node.can_be_empty)
    return isinstance(value, str) and (bool(value) or node.can_be_empty) and _is_text_of(node.kind, value)


def can_fit(node: Leaf, glob: str) -> bool:
    """Returns whether the text of a value of a node can fit a glob, as far as that is certain."""
    match node.kind:
        case "bool":
            return any(fnmatch.fnmatchcase(text, glob) for text in ("true", "false"))
        case "enum":  # a number without a name is its digits
            names = node.enum.values_by_name  # type: ignore[union-attr]
            return any(fnmatch.fnmatchcase(name, glob) for name in names) or not re.search("[A-Za-z_]", glob)
        case "int":
            return not re.search(r"[^0-9*?\[\]!-]", glob)
    return True


def _is_text_of(kind: str, text: str) -> bool:
    """Returns whether a text is one that bytes, times and durations become."""
    try:
        match kind:
            case "bytes":
                return bytes.fromhex(text).hex() == text
            case "timestamp":
                return format_time(parse_time(text)) == text
        return float_text(float(text)) == text
    except ValueError:
        return False
