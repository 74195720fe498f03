"""Adds to a published template spec the streaming modes and the workers' image, which gcloud leaves out.

``gcloud dataflow flex-template build`` (seen in release 528) copies only the name, description and parameters from its
``--metadata-file``. Without the rest, the console does not offer at-least-once mode.

The image in the spec is the launcher's. Workers run it only if the launch names it, which the console cannot; so it is
also the default of ``FlexTemplateRuntimeEnvironment.sdkContainerImage``.

    python3 complete_spec.py SPEC METADATA
"""

import json
import sys
from pathlib import Path


def main(spec_file: str, metadata_file: str) -> None:
    """Replaces the metadata in the spec file by that of the metadata file."""
    spec = json.loads(Path(spec_file).read_text())
    spec["metadata"] = json.loads(Path(metadata_file).read_text())
    spec.setdefault("defaultEnvironment", {}).setdefault("sdkContainerImage", spec["image"])
    Path(spec_file).write_text(json.dumps(spec, indent=4, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
