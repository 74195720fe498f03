"""Any schema: a strategy of keys, layouts, encodings, families, tiers, policies, rates, roll-ups and units."""

from hypothesis import strategies as st

from pipeline.core.events.invalid_readings import Invalid
from pipeline.core.notation.cell_values import Values
from pipeline.core.schema.declared_metric import DeclaredMetric
from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.gc_policies import parse_policy
from pipeline.core.schema.key_template import KeyTemplate
from pipeline.core.schema.layouts import LAYOUTS
from pipeline.core.schema.rate import Rate
from pipeline.core.schema.rollup import Rollup
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.windows import Window

_DECLARED = {"t": DeclaredMetric(unit="°C", valid=(-40.0, 60.5)), "air.pm10": DeclaredMetric("µg/m³", "PM10")}
_families = st.from_regex(r"[-_.A-Za-z0-9]{1,12}", fullmatch=True).filter(
    lambda name: name not in ("tidetable", "latest", "rollup")
)
_globs = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6), min_size=1, max_size=3)
_intervals = st.builds(
    lambda amount, unit_us: min(amount * unit_us, 36_500 * 86_400_000_000),  # the longest duration
    st.integers(1, 10**9 - 1),
    st.sampled_from([1, 1000, 1_000_000, 86_400_000_000]),
)
_rates = st.none() | st.builds(
    Rate, _intervals, st.integers(1, 1000), st.integers(0, 100), st.none() | st.integers(1, 10**9)
)
_policies = st.sampled_from(
    ["never", "maxage=7d", "maxage=36h || maxage=1500ms", "maxage=1d && (maxage=2d || maxage=3d)"]
)


@st.composite
def schemas(draw):
    """Draws a schema of any layout, with one of the keys that fit it."""
    layout, key = draw(
        st.sampled_from(
            [
                ("wide", "{sensor_id}#{reverse_us}"),
                ("wide", '"\\{salt:2}#{sensor_id}#{time:%Y-%m}#{iso_us}#{event_id}'),
                ("tall", "{metadata.location}#{sensor_id}#{metric}#{iso_us}"),
                ("serialized", "shard-{shard:32}#{sensor_id}#{iso_s}"),
                ("bucket_cells", "{sensor_id}#{bucket:1w}"),
                ("bucket_columns", "{sensor_id}#{metric}#{bucket:15m}"),
                ("bucket_serialized", "{sensor_id}#{time:%Y'%m}"),
            ]
        )
    )
    windows = draw(st.sampled_from([(), ("1h",), ("1d",), ("90s", "15m", "1h", "1d"), ("60m", "24h")]))
    names = draw(st.lists(_families, min_size=len(windows) + 1, max_size=len(windows) + 5, unique=True))
    tiers = tuple(Tier(Window.parse(window), names.pop()) for window in windows)
    serializes = LAYOUTS[layout].serializes
    metrics, metadata = (names[:1], []) if serializes else (names[:2], names[2:])
    latest = draw(st.sampled_from([None, "latest"])) if tiers else None
    # Other globs may take no metric that has a unit or is rolled up.
    rollups = draw(st.sampled_from([(), (Rollup("a", ()), Rollup("b", ("site",), windows[:1], ("t*",)))]))
    whole = serializes and bool(tiers)
    return TableSchema(
        KeyTemplate.parse(key),
        LAYOUTS[layout],
        Values.TEXT if serializes else draw(st.sampled_from(Values)),
        FamilyRules(tuple((name, ("*",) if serializes else tuple(draw(_globs))) for name in metrics)),
        FamilyRules(tuple((name, tuple(draw(_globs))) for name in metadata)),
        tiers,
        {name: parse_policy(draw(_policies)) for name in [*metrics, *metadata] if draw(st.booleans())},
        draw(_rates),
        latest=latest,
        rollups=rollups if whole else (),
        declared=draw(st.sampled_from([{}, _DECLARED])) if whole else {},
        invalid=draw(st.sampled_from(Invalid)) if whole else Invalid.DROP_READING,
    )
