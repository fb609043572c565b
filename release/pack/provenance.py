"""Provenance of a release: an in-toto statement with SLSA's predicate, version 1. It is not signed."""

import hashlib


def statement(
    files: dict[str, bytes],
    version: str,
    commit: str,
    lock: bytes,
    binaries: dict[str, bytes],
    tools: dict[str, str],
    created: str,
) -> dict:
    """Returns how `files` came to be: sources, programs that they contain, tools.

    `binaries` are the programs by their kind, and `tools` versions by name.
    """
    subjects = [{"name": name, "digest": digest(data)} for name, data in sorted(files.items())]
    materials = [
        {"name": "source", "digest": {"gitCommit": commit}},
        {"name": "Cargo.lock", "digest": digest(lock)},
    ]
    programs = [{"name": f"ixc, {kind}", "digest": digest(data)} for kind, data in sorted(binaries.items())]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "release/build.sh",
                "externalParameters": {"version": version},
                "internalParameters": {"tools": tools},
                "resolvedDependencies": materials,
            },
            "runDetails": {
                "builder": {"id": "release/build.sh"},
                # The time of the commit: two runs give the same bytes.
                "metadata": {"finishedOn": created},
                "byproducts": programs,
            },
        },
    }


def digest(data: bytes) -> dict[str, str]:
    """Returns the SHA-256 sum in the form of in-toto."""
    return {"sha256": hashlib.sha256(data).hexdigest()}
