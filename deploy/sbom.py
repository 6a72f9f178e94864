#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a bill of materials (SPDX 2.3) beside a file of a release: what is inside of it, and what it needs.

usage: deploy/sbom.py FILE...     of Debian packages, whose dependencies dpkg-shlibdeps has found, and of archives of the sources

deploy/python/build calls write() with what the linker took."""

import hashlib
import json
import os
import re
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).resolve().parent
SUFFIX = ".spdx.json"
NOBODY = "NOASSERTION"


def part(name, version, relation, licence=NOBODY, sha256="", source=NOBODY, purl="", where=()):
    """A library: how the file relates to it, where it was taken from, and in which programs it is."""
    return dict(name=name, version=version, relation=relation, licence=licence, sha256=sha256, source=source, purl=purl, where=sorted(where))


def package(identity, name, version, licence, sha256="", file="", purl="", source=NOBODY):
    found = {"SPDXID": identity, "name": name, "versionInfo": version, "downloadLocation": NOBODY, "filesAnalyzed": False,
             "licenseConcluded": licence, "licenseDeclared": licence, "copyrightText": NOBODY}
    if file:
        found["packageFileName"] = file
    if source != NOBODY:
        found["sourceInfo"] = source
    if sha256:
        found["checksums"] = [{"algorithm": "SHA256", "checksumValue": sha256}]
    if purl:
        found["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}]
    return found


def write(file, name, version, licence, parts, created, purl=""):
    """The document of one file of a release, beside it. Equal files get equal documents."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    packages = [package("SPDXRef-rdzv", name, version, licence, digest, file.name, purl)]
    relations = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-rdzv"}]
    for p in sorted(parts, key=lambda p: p["name"]):
        identity = "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", p["name"])
        packages.append(package(identity, p["name"], p["version"], p["licence"], p["sha256"], purl=p["purl"], source=p["source"]))
        relations.append({"spdxElementId": "SPDXRef-rdzv", "relationshipType": p["relation"], "relatedSpdxElement": identity})
        if p["where"]:
            relations[-1]["comment"] = "in " + ", ".join(p["where"])
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": file.name,
        "documentNamespace": f"https://rdzv.invalid/spdx/{file.name}-{digest}",
        "creationInfo": {"created": f"{datetime.fromtimestamp(created, timezone.utc):%Y-%m-%dT%H:%M:%SZ}", "creators": ["Organization: rdzv developers", f"Tool: deploy/sbom.py-{version}"]},
        "packages": packages, "relationships": relations,
    }
    at = file.with_name(file.name + SUFFIX)
    at.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return at


def needed(program):
    """The shared libraries that an ELF file names."""
    done = subprocess.run(["readelf", "-dW", program], capture_output=True, text=True, check=True)
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", done.stdout))


def of_debian(file, created):
    fields = subprocess.run(["dpkg-deb", "-f", file], capture_output=True, text=True, check=True).stdout
    field = dict(re.findall(r"(?m)^([\w-]+): (.*)$", fields))
    parts = []
    for word in filter(None, (w.strip() for w in field.get("Depends", "").split(","))):
        name, _, bound = word.partition(" ")
        parts.append(part(name.partition(":")[0], bound.strip("()") or "any", "DEPENDS_ON", purl=f"pkg:deb/debian/{name.partition(':')[0]}"))
    return write(file, field["Package"], field["Version"], "Apache-2.0", parts, created, f"pkg:deb/debian/{field['Package']}@{field['Version']}?arch={field['Architecture']}")


def main(files):
    created = int(os.environ.get("SOURCE_DATE_EPOCH") or subprocess.run([HERE / "version", "--time"], capture_output=True, text=True, check=True).stdout)
    for file in map(Path, files):
        if file.suffix == ".deb":
            print(of_debian(file, created))
        else:
            version = subprocess.run([HERE / "version"], capture_output=True, text=True, check=True).stdout.strip()
            print(write(file, "rdzv", version, "Apache-2.0", [], created))


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(sys.argv[1:])
