"""Packs programs and texts into the files of a release. `release/build.sh` runs it.

usage: python3 release/pack --root DIR --gnu FILE --static FILE --out DIR --commit HASH --time SECONDS
                            [--library DIR --wheel FILE] [--tool "NAME VERSION"]...
"""

import argparse
import hashlib
import json
import platform
import re
import subprocess
import tempfile
import tomllib
import zipfile
from datetime import datetime, timezone
from pathlib import Path

import provenance
import sbom
from archive import LINK, Entry, compressed, deb, image, tar, text
from dashboard import dashboard

PROGRAM = "ixc"
# Other crates of a release: the C library and the extension module of the wheel.
LIBRARIES = ("ixc-capi", "ixc-python")
TARGET = "x86_64-unknown-linux"
# User of the container, as in other images without a user database.
USER = "65532:65532"
SHELLS = {
    "bash": "usr/share/bash-completion/completions/ixc",
    "zsh": "usr/share/zsh/vendor-completions/_ixc",
    "fish": "usr/share/fish/vendor_completions.d/ixc.fish",
}


class Texts:
    """Texts that a program writes about itself: manual pages and completions."""

    def __init__(self, program: Path):
        self.version = output(program, "--version").decode().split()[1]
        self.completions = {shell: output(program, "completions", shell) for shell in SHELLS}
        with tempfile.TemporaryDirectory() as folder:
            output(program, "man", "-o", f"{folder}/man1")
            self.pages = {page.name: page.read_bytes() for page in sorted(Path(folder, "man1").iterdir())}


class Release:
    """Sources of a release: the checkout, its version, commit and time."""

    def __init__(self, root: Path, commit: str, time: int):
        self.root, self.commit, self.time = root, commit, time
        command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", f"{TARGET}-gnu"]
        self.metadata = json.loads(output(*command, cwd=root))
        found = [p for p in self.metadata["packages"] if p["name"] == PROGRAM and not p["source"]]
        self.version = found[0]["version"]
        self.created = datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    def read(self, path: str, **values: str) -> bytes:
        """Returns a file of the checkout, with values in place of names such as `@VERSION@`."""
        content = self.root.joinpath(path).read_bytes()
        for name, value in {"VERSION": self.version, **values}.items():
            content = content.replace(f"@{name}@".encode(), value.encode())
        return content

    def folder(self, path: str) -> dict[str, Entry]:
        """Returns the files below a folder of the checkout, with values."""
        files = [file for file in self.root.joinpath(path).rglob("*") if file.is_file()]
        names = [file.relative_to(self.root).as_posix() for file in files]
        return {name.removeprefix(f"{path}/"): Entry(self.read(name)) for name in names}


def output(*command, cwd: Path | None = None) -> bytes:
    """Returns the standard output of a command that must succeed."""
    return subprocess.run([str(word) for word in command], cwd=cwd, check=True, stdout=subprocess.PIPE).stdout


def portable(release: Release, program: bytes, texts: Texts) -> dict[str, Entry]:
    """Returns the contents of an archive that `install.sh` unpacks."""
    kept = {name: Entry(release.read(name)) for name in ("README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT")}
    shells = {SHELLS[shell].removeprefix("usr/"): Entry(content) for shell, content in texts.completions.items()}
    pages = {f"share/man/man1/{name}": Entry(page) for name, page in texts.pages.items()}
    return {"bin/ixc": Entry(program, 0o755), **kept, **shells, **pages}


def library(release: Release, folder: Path) -> dict[str, Entry]:
    """Returns the contents of the archive of the C library, which works in any folder."""
    header = release.read("capi/include/ixc.h")
    abi = re.search(rb"^#define IXC_ABI_VERSION (\d+)$", header, flags=re.MULTILINE)[1].decode()
    kept = {name: Entry(release.read(name)) for name in ("LICENSE-APACHE", "LICENSE-MIT")}
    return {
        "include/ixc.h": Entry(header),
        f"lib/libixc.so.{abi}": Entry(folder.joinpath("libixc_capi.so").read_bytes(), 0o755),
        "lib/libixc.so": Entry(f"libixc.so.{abi}".encode(), LINK),
        "lib/libixc.a": Entry(folder.joinpath("libixc_capi.a").read_bytes()),
        # pkg-config computes the prefix from the place of the file.
        "lib/pkgconfig/ixc.pc": Entry(release.read("capi/ixc.pc.in", PREFIX="${pcfiledir}/../..")),
        "share/doc/ixc/c-api.md": Entry(release.read("docs/c-api.md")),
        **kept,
    }


def extension(wheel: Path) -> bytes:
    """Returns the extension module of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read("ixc/_ixc.abi3.so")


def package(release: Release, program: bytes, texts: Texts) -> bytes:
    """Returns the Debian package."""
    rights = release.read("LICENSE-MIT") + b"\nOr, at your option:\n\n" + release.read("LICENSE-APACHE")
    data = {
        "usr/bin/ixc": Entry(program, 0o755),
        # The file may contain an API key, so not every user may read it.
        "etc/default/ixc": Entry(release.read("release/systemd/ixc.default"), 0o640),
        "usr/share/doc/ixc/changelog.gz": Entry(compressed(release.read("CHANGELOG.md"))),
        "usr/share/doc/ixc/copyright": Entry(rights),
    }
    for unit in ("ixc.service", "ixc.socket"):
        data[f"usr/lib/systemd/system/{unit}"] = Entry(release.read(f"release/systemd/{unit}"))
    data |= {SHELLS[shell]: Entry(content) for shell, content in texts.completions.items()}
    data |= {f"usr/share/man/man1/{name}.gz": Entry(compressed(page)) for name, page in texts.pages.items()}
    size = sum(len(entry.data) for entry in data.values()) // 1024
    values = {"INSTALLED_KIB": str(size), "DEPENDS": depends(program)}
    control = {"control": Entry(release.read("release/debian/control", **values)), "conffiles": Entry(b"/etc/default/ixc\n")}
    for script in ("postinst", "prerm", "postrm"):
        control[script] = Entry(release.read(f"release/debian/{script}"), 0o755)
    return deb(control, data, release.time)


def depends(program: bytes) -> str:
    """Returns the Debian packages of the shared libraries that a program names."""
    newest = max(tuple(map(int, found)) for found in re.findall(rb"GLIBC_(\d+)\.(\d+)", program))
    needed = ["libc6 (>= %d.%d)" % newest]
    if b"libgcc_s.so.1" in program:
        needed.append("libgcc-s1 | libgcc1")
    return ", ".join(needed)


def container(release: Release, program: bytes) -> bytes:
    """Returns the container image: the static program in an empty root file system."""
    root = {
        "ixc": Entry(program, 0o755),
        "models": Entry(None, 0o755),
        # Kernels and templates may need a temporary file.
        "tmp": Entry(None, 0o1777),
    }
    config = {
        "User": USER,
        "Entrypoint": ["/ixc"],
        # Without an API key this ends with an error that names the options.
        "Cmd": ["serve", "--host", "0.0.0.0"],
        "ExposedPorts": {"8080/tcp": {}},
        "StopSignal": "SIGTERM",
        "WorkingDir": "/",
    }
    labels = {
        "org.opencontainers.image.title": PROGRAM,
        "org.opencontainers.image.version": release.version,
        "org.opencontainers.image.revision": release.commit,
        "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
        "org.opencontainers.image.created": release.created,
    }
    config["Labels"] = labels
    return image(root, config, release.created, labels, f"{PROGRAM}:{release.version}", release.time)


def deployment(release: Release) -> dict[str, Entry]:
    """Returns the files for Compose, Kubernetes and replicas."""
    board = {"grafana/dashboard.json": Entry(text(dashboard()))}
    folders = {
        "compose": {**release.folder("release/container"), **board},
        "kubernetes": release.folder("release/kubernetes"),
        "replicas": release.folder("release/replicas"),
    }
    return {f"{folder}/{name}": entry for folder, entries in folders.items() for name, entry in entries.items()}


def remove_release(folder: Path) -> None:
    """Removes the files of an earlier release, which can have another version, from a folder."""
    sums = folder / "SHA256SUMS"
    for line in sums.read_text().splitlines() if sums.exists() else []:
        digest, _, name = line.partition("  ")
        file = folder / Path(name).name
        # Another list of sums may name other files. They stay.
        is_ours = name.startswith(("ixc", "libixc", "install.sh")) and file.is_file()
        if is_ours and hashlib.sha256(file.read_bytes()).hexdigest() == digest:
            file.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("root", "gnu", "static", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--time", type=int, required=True)
    parser.add_argument("--library", type=Path)
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--tool", action="append", default=[])
    given = parser.parse_args()
    release = Release(given.root, given.commit, given.time)
    version, programs = release.version, {"gnu": given.gnu.read_bytes(), "static": given.static.read_bytes()}
    texts = Texts(given.static)
    for path in (given.gnu, given.static):
        found = output(path, "--version").decode().split()[1]
        if found != version:
            raise SystemExit(f"{path} has version {found}; Cargo.toml has {version}: build it again")

    files = {}
    for kind, program in programs.items():
        name = f"{PROGRAM}-{version}-{TARGET}-{kind}"
        archive = tar(portable(release, program, texts), release.time, f"{name}/")
        files[f"{name}.tar.gz"] = compressed(archive)
    files[f"{PROGRAM}_{version}_amd64.deb"] = package(release, programs["gnu"], texts)
    files[f"{PROGRAM}-{version}-oci.tar"] = container(release, programs["static"])
    name = f"{PROGRAM}-{version}-deploy"
    files[f"{name}.tar.gz"] = compressed(tar(deployment(release), release.time, f"{name}/"))
    files["install.sh"] = release.read("release/install.sh")
    if given.library:
        name = f"lib{PROGRAM}-{version}-{TARGET}-gnu"
        files[f"{name}.tar.gz"] = compressed(tar(library(release, given.library), release.time, f"{name}/"))
        for kind in ("so", "a"):
            programs[f"C library ({kind})"] = given.library.joinpath(f"libixc_capi.{kind}").read_bytes()
    if given.wheel:
        files[given.wheel.name] = given.wheel.read_bytes()
        programs["Python extension module"] = extension(given.wheel)
    lock = release.read("Cargo.lock")
    sums = sbom.checksums(tomllib.loads(lock.decode()))
    bill = sbom.bill(release.metadata, sums, PROGRAM, LIBRARIES, release.created)
    files[f"{PROGRAM}-{version}.cdx.json"] = text(bill)
    tools = {"python": platform.python_version(), **dict(tool.split(" ", 1) for tool in given.tool)}
    for tool in ("rustc", "cargo"):
        tools[tool] = output(tool, "--version", cwd=release.root).decode().strip()
    made = provenance.statement(files, version, release.commit, lock, programs, tools, release.created)
    files[f"{PROGRAM}-{version}.provenance.json"] = text(made)
    listed = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(files.items())]
    files["SHA256SUMS"] = "".join(listed).encode()

    given.out.mkdir(parents=True, exist_ok=True)
    remove_release(given.out)
    # Git ignores the folder.
    given.out.joinpath(".gitignore").write_text("*\n")
    for name, content in files.items():
        path = given.out / name
        path.write_bytes(content)
        path.chmod(0o755 if name.endswith(".sh") else 0o644)
        print(f"{len(content):>12}  {path}")


main()
