"""The Python API under the distribution's name: ``from tidetable_bigtable import SensorTable``.

The build puts this package beside ``pipeline``, whose name a project may have already.
"""

import pipeline

TYPE_CHECKING = False  # as typing's: an import of this package imports nothing else
if TYPE_CHECKING:
    from pipeline import *  # noqa: F403 (each name that it exports)
    from pipeline.core.schema.table_schema import SchemaError as SchemaError
    from pipeline.core.schema.table_schema import TableSchema as TableSchema
    from pipeline.core.schema.table_schema import Tier as Tier
    from pipeline.core.schema.toml import format_schema as format_schema
    from pipeline.core.schema.toml import parse_schema as parse_schema
else:
    _SCHEMAS = {
        "SchemaError": "table_schema",
        "TableSchema": "table_schema",
        "Tier": "table_schema",
        "format_schema": "toml",
        "parse_schema": "toml",
    }
    __all__ = [*pipeline.__all__, *_SCHEMAS]

    def __getattr__(name):
        """Imports a name of the API when it is first used."""
        if name not in _SCHEMAS:
            return getattr(pipeline, name)
        from importlib import import_module

        return getattr(import_module(f"pipeline.core.schema.{_SCHEMAS[name]}"), name)


__version__ = pipeline.__version__
