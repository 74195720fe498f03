"""What the Terraform providers accept for the kinds of resources that we use: names of arguments and blocks.

``provider_schema.json`` is an extract of the bindings that HashiCorp generated from the providers and published as npm
packages. With it, the tests need neither the providers nor a network. The last bindings are those of release 6.50.0.
After the module uses another kind of resource, write the extract again (this needs npm, and downloads 70 MB):

    python -m tests.templates.provider_schema
"""

import json
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.templates.hcl import BLOCKS

EXTRACT = Path(__file__).parent / "provider_schema.json"

RELEASE = "16.12.1"  # of both packages; they were generated from 6.50.0 of their provider
# A provider's package, and what the folders of its resources begin with.
PACKAGES = {"google": ("@cdktf/provider-google", ""), "google-beta": ("@cdktf/provider-google-beta", "google-")}
# What release 7.0 of the providers, the lowest that versions.tf allows, renamed: both names are optional in 6.50.
RENAMED = {"resource google_bigtable_table_iam_member": ("instance", "instance_name")}

Schema = dict[str, Any]


def used() -> dict[str, list[dict[str, Any]]]:
    """Returns the bodies of the module's resources and data sources, by kind, like "resource google_pubsub_topic"."""
    found: dict[str, list[dict[str, Any]]] = {}
    for block in ("resource", "data"):
        for declared in BLOCKS[block]:
            for kind, named in declared.items():
                found.setdefault(f"{block} {kind}", []).extend(named.values())
    return found


def schema_of(interface: str, bodies: dict[str, str]) -> Schema:
    """Returns the schema that a TypeScript interface describes, with those of its blocks."""
    schema: Schema = {"required": [], "optional": [], "blocks": {}}
    properties = re.findall(r"/\*\*(.*?)\*/\s+readonly \w+(\??): (.+?);\n(?=    /|\Z)", bodies[interface], re.DOTALL)
    for comment, optional, kind in properties:
        name = re.findall(r"#(\w+) \w+#\w+\}", comment)[-1]  # the link to the documentation has Terraform's name
        schema["optional" if optional else "required"].append(name)
        if f" {name} block\n" in comment:
            schema["blocks"][name] = schema_of(kind.split("[")[0].split(" ")[0], bodies)
    return schema


def extract() -> dict[str, Schema]:
    """Returns the schema of each kind that the module uses."""
    schemas = {}
    with tempfile.TemporaryDirectory() as folder:
        for provider, (package, prefix) in PACKAGES.items():
            subprocess.run(
                ["npm", "pack", "--silent", f"{package}@{RELEASE}"], cwd=folder, check=True, capture_output=True
            )
            with tarfile.open(Path(folder) / f"{package.strip('@').replace('/', '-')}-{RELEASE}.tgz") as archive:
                for kind, bodies in used().items():
                    if provider == ("google-beta" if "google-beta" in str(bodies[0].get("provider")) else "google"):
                        block, name = kind.replace("google_", "").replace("_", "-").split()
                        member = f"package/lib/{'data-google-' if block == 'data' else prefix}{name}/index.d.ts"
                        text = archive.extractfile(member).read().decode()  # type: ignore[union-attr]
                        interfaces = dict(
                            re.findall(r"^export interface (\w+)[^{]*\{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE)
                        )
                        schemas[kind] = schema_of(next(iter(interfaces)), interfaces)
    for kind, (old, new) in RENAMED.items():
        optional = [name for name in schemas[kind]["optional"] if name not in (old, new)]
        schemas[kind] |= {"optional": optional, "required": [*schemas[kind]["required"], new]}
    return schemas


if __name__ == "__main__":
    lines = [f"{json.dumps(kind)}: {json.dumps(schema)}" for kind, schema in sorted(extract().items())]
    EXTRACT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
