"""A bill of materials in the form of CycloneDX 1.6, from `cargo metadata` and `Cargo.lock`."""

import uuid
from collections.abc import Iterable


def bill(
    metadata: dict,
    checksums: dict[tuple[str, str], str],
    program: str,
    libraries: Iterable[str],
    created: str,
) -> dict:
    """Returns the crates in `program` and `libraries`, with licences, checksums and dependencies.

    Crates that only a build needs have the scope `excluded`; crates that only tests need are absent.
    """
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    ours = {package["name"]: package["id"] for package in packages.values() if not package["source"]}
    root = ours[program]
    roots = {root, *(ours[library] for library in libraries)}
    linked = reached(roots, nodes, {None})
    built = reached(roots, nodes, {None, "build"})
    order = sorted(built, key=lambda id: (packages[id]["name"], packages[id]["version"]))
    components = [component(packages[id], checksums, id in linked) for id in order if id != root]
    dependencies = [
        {
            "ref": reference(packages[id]),
            "dependsOn": sorted(reference(packages[other]) for other in needed(nodes[id], {None, "build"})),
        }
        for id in order
    ]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": created,
            "component": {**component(packages[root], checksums, True), "type": "application"},
            "tools": {"components": [{"type": "application", "name": "release/build.sh"}]},
        },
        "components": components,
        "dependencies": dependencies,
    }
    # The serial number must be the same in each run, so the contents name it.
    serial = uuid.uuid5(uuid.NAMESPACE_URL, repr(document))
    return {**document, "serialNumber": f"urn:uuid:{serial}"}


def checksums(lock: dict) -> dict[tuple[str, str], str]:
    """Returns the SHA-256 sums of a parsed `Cargo.lock`, by name and version."""
    listed = lock["package"]
    return {(package["name"], package["version"]): package["checksum"] for package in listed if "checksum" in package}


def reached(roots: set[str], nodes: dict, kinds: set) -> set[str]:
    """Returns `roots` and all packages that they need, by dependencies of these kinds."""
    found, open_ids = set(roots), list(roots)
    while open_ids:
        for other in needed(nodes[open_ids.pop()], kinds):
            if other not in found:
                found.add(other)
                open_ids.append(other)
    return found


def needed(node: dict, kinds: set) -> set[str]:
    """Returns the direct dependencies of these kinds; None is the kind of a linked crate."""
    return {other["pkg"] for other in node["deps"] if any(kind["kind"] in kinds for kind in other["dep_kinds"])}


def reference(package: dict) -> str:
    """Returns the package URL, which is unique in a bill."""
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package: dict, sums: dict[tuple[str, str], str], is_linked: bool) -> dict:
    """Returns a crate as a component."""
    found = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
        "scope": "required" if is_linked else "excluded",
    }
    if package["license"]:
        # Old crates separate alternatives by a slash.
        found["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if package["description"]:
        found["description"] = " ".join(package["description"].split())
    digest = sums.get((package["name"], package["version"]))
    if digest:
        found["hashes"] = [{"alg": "SHA-256", "content": digest}]
    if package["repository"]:
        found["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return found
