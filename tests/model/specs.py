"""The tables to try: layouts, row keys, tiers and policies, with the facts that the reference needs."""

from dataclasses import dataclass, replace
from functools import cached_property

from hypothesis import strategies as st

from pipeline.core.schema.table_schema import SchemaError
from pipeline.core.schema.toml import parse_schema
from tests.model.reference import DAY, HOUR, MS, Kind

AGES = {
    "never": None,
    "maxage=2d": 2 * DAY,
    "maxage=3d": 3 * DAY,
    "maxage=5d": 5 * DAY,
    "maxage=30d": 30 * DAY,
    "maxage=36h": 36 * HOUR,
    "maxage=2d && maxversions=1": None,  # the newest version stays
    "maxage=5d || maxversions=2": 5 * DAY,  # if each cell has one version
}
"""Policies, with the age at which a cell is collected."""

READING_POLICIES = [policy for policy in AGES if "versions" not in policy]
TIER_POLICIES = [policy for policy in AGES if policy not in ("maxage=36h", "maxage=2d")]
TIERS = [
    (),
    ("1h",),
    ("1d",),
    ("1h", "1d"),
    ("15m", "1h", "1d"),
    ("90m",),
    ("6h", "1d"),
    ("1h", "1d@Europe/Berlin"),
    ("15m", "1d@Europe/Berlin", "1mo@Europe/Berlin"),
    ("1h", "1d", "1w", "1mo@Europe/Berlin"),
]
INCREASES = [(), (), ("t",), ("h", "t")]
"""The metrics whose increase is declared."""

ROLLUPS = [
    (),
    ("fleet = { by = [] }", "shards = 1"),
    ("fleet = { by = [] }", 'site = { by = "metadata.location", metrics = ["t", "u*"] }', "shards = 2"),
]

# By layout: the row key, the grain of its times in µs, and the other field of an event in it.
_KEYS = {
    "wide": [
        ("{sensor_id}#{reverse_us}", 1, ""),
        ("{sensor_id}#{reverse_ms}", MS, ""),
        ("{salt:2}#{sensor_id}#{reverse_s}", MS, ""),
        ("{sensor_id}#{iso_s}#{event_id}", MS, "event_id"),
        ("{metadata.location}#{sensor_id}#{reverse_us}", 1, "location"),
        ("{reverse_us}#{sensor_id}", 1, ""),
    ],
    "tall": [
        ("{sensor_id}#{metric}#{reverse_us}", 1, ""),
        ("{metric}#{sensor_id}#{reverse_us}", 1, ""),
        ("{sensor_id}#{reverse_us}#{metric}", 1, ""),
        ("{metadata.location}#{sensor_id}#{reverse_s}#{metric}", MS, "location"),
    ],
    "serialized": [
        ("{sensor_id}#{reverse_us}", 1, ""),
        ("{sensor_id}#{iso_s}#{event_id}", 1, "event_id"),
        ("{metadata.location}#{sensor_id}#{time:%Y-%m-%d-%H%M}", 1, "location"),
    ],
    "bucket_cells": [
        ("{sensor_id}#{bucket:1h}", MS, ""),
        ("{metadata.location}#{bucket:1w}#{sensor_id}", MS, "location"),
    ],
    "bucket_columns": [
        ("{sensor_id}#{metric}#{bucket:1d}", MS, ""),
        ("{sensor_id}#{bucket:1w}#{metric}#{metadata.location}", MS, "location"),
    ],
    "bucket_serialized": [
        ("{sensor_id}#{bucket:1h}", 1, ""),
        ("{shard:4}#{sensor_id}#{time:%Y-%m}", 1, ""),
    ],
}


STATISTICS = ["count", "sum", "min", "max", "avg", "stddev", "increase"]


def family_of(text):
    """Returns the family of the windows' tier."""
    return f"tier_{text.replace('@', '_').replace('/', '_')}"


@dataclass(frozen=True)
class Spec:
    """A table as created."""

    layout: str
    key: str
    kind: Kind
    values: str
    tiers: tuple[str, ...]
    policies: tuple[tuple[str, str], ...]
    latest: bool = False
    increases: tuple[str, ...] = ()
    rollups: tuple[str, ...] = ()

    @cached_property
    def schema(self):
        lines = [f'key = "{self.key}"', f'layout = "{self.layout}"']
        if self.latest:
            lines.append('latest = "latest"')
        if self.values != "text":
            lines.append(f'values = "{self.values}"')
        lines += ["[metrics]", *(['logs = ["u"]'] if self.kind.logs else []), 'raw = ["*"]']
        if "serialized" not in self.layout:
            lines += ["[metadata]", 'meta = ["*"]']
        lines += ["[tiers]", *(f'"{text}" = "{family_of(text)}"' for text in self.tiers)]
        lines += ["[statistics]", *(f"{metric} = {STATISTICS}" for metric in self.increases)]
        lines += ["[rollups]", *self.rollups] if self.rollups else []
        lines += ["[policies]", *(f'{family} = "{policy}"' for family, policy in self.policies)]
        return parse_schema("\n".join(lines))

    @property
    def ages_us(self):
        return {family: AGES[policy] for family, policy in self.policies}


@st.composite
def specs(draw):
    """Draws any table."""
    layout = draw(st.sampled_from(sorted(_KEYS)))
    key, grain_us, other_field = draw(st.sampled_from(_KEYS[layout]))
    serializes = "serialized" in layout
    logs = not serializes and draw(st.booleans())
    kind = Kind(grain_us, other_field == "location", other_field == "event_id", logs)
    tiers = draw(st.sampled_from(TIERS))
    of_readings = READING_POLICIES + (["maxage=5d || maxversions=2"] if key.endswith("{reverse_us}") else [])
    policies = [("raw", draw(st.sampled_from(of_readings)))]
    if logs:
        policies.append(("logs", draw(st.sampled_from(of_readings))))
    if not serializes:
        policies.append(("meta", draw(st.sampled_from(of_readings))))
    policies += [(family_of(text), draw(st.sampled_from(TIER_POLICIES))) for text in tiers]
    values = "text" if serializes else draw(st.sampled_from(["text", "float64"]))
    latest = bool(tiers) and draw(st.booleans())
    spec = Spec(layout, key, kind, values, tiers, tuple(policies), latest)
    increases, rollups = draw(st.sampled_from(INCREASES)), draw(st.sampled_from(ROLLUPS))
    for more in ({"increases": increases, "rollups": rollups}, {"rollups": rollups}, {}) if tiers else ({},):
        found = replace(spec, **more)
        try:
            return found if found.schema else spec
        except SchemaError:  # its keys don't find sensors, or its raw rows or metadata are not kept for long enough
            continue
    return spec
