"""Archives with the same bytes in each run: tar, gzip, Debian packages and OCI images.

An archive is a dict from a path without leading slash to an `Entry`. Names are sorted, owners are
root, and all times are the time of the release. Folders above a path are added.
"""

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass


# Mode of a symbolic link.
LINK = 0o120777


@dataclass(frozen=True)
class Entry:
    """A file, a folder (`data` is `None`), or a link to the path in `data` (mode `LINK`)."""

    data: bytes | None
    mode: int = 0o644


def compressed(data: bytes) -> bytes:
    """Returns gzip data without a name and a time."""
    # Level 9 takes 2.5 times as long, for 0.4 % fewer bytes of a program.
    return gzip.compress(data, compresslevel=6, mtime=0)


def tar(entries: dict[str, Entry], time: int, prefix: str = "") -> bytes:
    """Returns an uncompressed tar archive. `prefix` begins each name."""
    folders = {"/".join(path.split("/")[:depth]) for path in entries for depth in range(1, path.count("/") + 1)}
    complete = {**{folder: Entry(None, 0o755) for folder in folders}, **entries}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, entry in sorted(complete.items()):
            info = tarfile.TarInfo(prefix + path)
            info.mtime, info.mode, info.uname, info.gname = time, entry.mode, "root", "root"
            if entry.data is None:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            elif entry.mode == LINK:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.data.decode(), 0o777
                archive.addfile(info)
            else:
                info.size = len(entry.data)
                archive.addfile(info, io.BytesIO(entry.data))
    return buffer.getvalue()


def ar(members: list[tuple[str, bytes]], time: int) -> bytes:
    """Returns an archive of Unix `ar`, the outer form of a Debian package."""
    out = [b"!<arch>\n"]
    for name, data in members:
        out.append(f"{name:<16}{time:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode())
        out.append(data + b"\n" * (len(data) % 2))
    return b"".join(out)


def deb(control: dict[str, Entry], data: dict[str, Entry], time: int) -> bytes:
    """Returns a Debian package (`deb(5)`). Adds the checksums of all files to the control part."""
    files = sorted((path, entry.data) for path, entry in data.items() if entry.data is not None)
    sums = "".join(f"{hashlib.md5(content).hexdigest()}  {path}\n" for path, content in files)
    control = {**control, "md5sums": Entry(sums.encode())}
    return ar(
        [
            ("debian-binary", b"2.0\n"),
            ("control.tar.gz", compressed(tar(control, time, "./"))),
            ("data.tar.gz", compressed(tar(data, time, "./"))),
        ],
        time,
    )


def image(root: dict[str, Entry], config: dict, created: str, annotations: dict[str, str], tag: str, time: int) -> bytes:
    """Returns an OCI image layout of one layer, as a tar archive (`podman load`, `skopeo copy`)."""
    blobs: dict[str, Entry] = {}

    def add(data: bytes, kind: str) -> dict:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = Entry(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    layer = tar(root, time)
    diff = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    described = {
        "created": created,
        "architecture": "amd64",
        "variant": "v2",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [diff]},
        "history": [{"created": created, "created_by": "release/build.sh"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": add(text(described), "config.v1+json"),
        "layers": [add(compressed(layer), "layer.v1.tar+gzip")],
        "annotations": annotations,
    }
    platform = {"architecture": "amd64", "os": "linux"}
    names = {"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": f"docker.io/library/{tag}"}
    listed = {**add(text(manifest), "manifest.v1+json"), "platform": platform, "annotations": names}
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [listed],
    }
    layout = {"oci-layout": Entry(text({"imageLayoutVersion": "1.0.0"})), "index.json": Entry(text(index))}
    return tar({**blobs, **layout}, time)


def text(value: dict) -> bytes:
    """Returns JSON with sorted keys."""
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()
