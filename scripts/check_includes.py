#!/usr/bin/env python3
"""Check who includes whom, and how long files are.

- A folder of the library includes only the folders that it builds on (BUILDS_ON, and what those may
  include). Headers under include/kvcache and the sources in src/ follow the same rule.
- Headers under include/ include no whole-library headers of LibTorch and nothing that the library
  keeps to its sources, so that including one stays cheap.
- Files stay short.

`--self-test` tries the rules on made-up files.
"""

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

BUILDS_ON = {
    "core": (),
    "retention": ("core",),
    "kernels": ("core",),
    "io": ("core",),
    "placement": ("core",),
    "parallel": ("core",),
    "text": ("core", "io"),
    "codec": ("kernels",),
    "attention": ("kernels",),
    "storage": ("codec",),
    "layers": ("retention", "storage"),
    "cache": ("layers", "placement", "parallel"),
    "models": ("cache", "attention", "io", "parallel", "kernels"),
    "generation": ("cache",),
    "chat": ("generation", "text"),
    "verify": ("models", "generation"),
}

# Single headers that a folder may include beyond the rule, and single files that may include a folder.
MODELS = ("models/language_model.h", "models/causal_lm.h")
EXTRA_HEADERS = {"generation": MODELS, "chat": MODELS}
EXTRA_FOLDERS = {
    "cache/serialization.h": ("io",),
    "cache/serialization.cpp": ("io",),
    "cache/cache_file_section.h": ("io",),
    "cache/cache_file_section.cpp": ("io",),
    "generation/generation_config_json.cpp": ("io",),
    "generation/cache_config.cpp": ("io",),
}

# The header that includes everything; it lies beside the folders.
UMBRELLA = "kvcache.h"

NOT_IN_HEADERS = (
    ("torch/torch.h", "include ATen/core/Tensor.h and ATen/ops/<op>.h instead (seconds per file)"),
    ("ATen/ATen.h", "include ATen/core/Tensor.h and ATen/ops/<op>.h instead (seconds per file)"),
    ("fmt/", "fmt stays in src/, tests and programs; use c10::str"),
    ("nlohmann/", "JSON stays in src/"),
    ("pcre2.h", "PCRE2 stays in src/"),
    ("hwy/", "Highway stays in src/"),
    ("utf8proc.h", "utf8proc stays in src/"),
    ("sentencepiece_processor.h", "SentencePiece stays in src/"),
)

LIMIT = 400
MEASURED = ("include", "src", "tests", "examples", "benchmarks", "cmake", "scripts")
SUFFIXES = (".h", ".cpp", ".cu", ".cuh", ".cmake", ".sh")

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def reachable(folder):
    """The folders that `folder` may include: itself and all that it builds on."""
    found, waiting = set(), [folder]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(BUILDS_ON[name])
    return found


def own_path(name):
    """`core/errors.h` for an include of the library's own file by either spelling, else None."""
    path = name.removeprefix("kvcache/")
    if path != name or path.split("/")[0] in BUILDS_ON:
        return path
    return None


def check_include(origin, included):
    """What is wrong with `origin` (a path below include/kvcache or src) including `included`."""
    path = own_path(included)
    if path is None:
        return None
    folder, target = origin.split("/")[0], path.split("/")[0]
    if origin == UMBRELLA:
        return None
    if path == UMBRELLA:
        return f"{UMBRELLA} is for users of the library; include the header itself"
    if target not in BUILDS_ON:
        return f"folder {target}/ is not known to the include rule"
    allowed = reachable(folder) | set(EXTRA_FOLDERS.get(origin, ()))
    if target in allowed or path in EXTRA_HEADERS.get(folder, ()):
        return None
    return f"{folder}/ may not include {target}/ (it may: {', '.join(sorted(allowed))})"


def check_library_file(root, path, is_header):
    base = root / ("include/kvcache" if is_header else "src")
    origin = path.relative_to(base).as_posix()
    if origin != UMBRELLA and origin.split("/")[0] not in BUILDS_ON:
        yield 1, "lies in a folder that the include rule does not know"
        return
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        problem = check_include(origin, match[1])
        if problem:
            yield number, problem
        if is_header:
            for banned, remedy in NOT_IN_HEADERS:
                if match[1] == banned or (banned.endswith("/") and match[1].startswith(banned)):
                    yield number, f"{match[1]} in a public header: {remedy}"


def check_tree(root):
    """All problems under `root`, as `path:line: text`."""
    problems = []

    def report(path, number, text):
        problems.append(f"{path.relative_to(root)}:{number}: {text}")

    for folder, is_header in (("include/kvcache", True), ("src", False)):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu", ".cuh"):
                for number, text in check_library_file(root, path, is_header):
                    report(path, number, text)
    for folder in MEASURED:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                length = len(path.read_bytes().splitlines())
                if length > LIMIT:
                    report(path, LIMIT, f"{length} lines; the limit is {LIMIT}")
    return problems


def check_umbrella(root):
    """Every public header that kvcache.h leaves out."""
    include = root / "include"
    umbrella = (include / "kvcache" / UMBRELLA).read_text(encoding="utf-8")
    names = (path.relative_to(include) for path in sorted(include.rglob("*.h")))
    return [f"include/kvcache/{UMBRELLA}: {name.as_posix()} is missing" for name in names
            if name.name != UMBRELLA and "detail" not in name.parts
            and f'#include "{name.as_posix()}"' not in umbrella]


def self_test():
    """Each case: files, and the words its only problem must hold (None: no problem)."""
    cases = [
        ({"include/kvcache/layers/a.h": '#include "kvcache/core/x.h"'}, None),
        ({"include/kvcache/layers/a.h": '#include "kvcache/kernels/x.h"'}, None),
        ({"include/kvcache/core/a.h": '#include "kvcache/layers/x.h"'}, "core/ may not include layers/"),
        ({"include/kvcache/storage/a.h": '  # include <kvcache/retention/x.h>'}, "may not include retention/"),
        ({"src/text/a.cpp": '#include "io/x.h"'}, None),
        ({"src/io/a.cpp": '#include "text/x.h"'}, "io/ may not include text/"),
        ({"src/text/a.cpp": '#include "text/x.h"\n#include <fmt/core.h>'}, None),
        ({"include/kvcache/cache/serialization.h": '#include "kvcache/io/x.h"'}, None),
        ({"include/kvcache/cache/other.h": '#include "kvcache/io/x.h"'}, "cache/ may not include io/"),
        ({"include/kvcache/generation/a.h": '#include "kvcache/models/causal_lm.h"'}, None),
        ({"include/kvcache/generation/a.h": '#include "kvcache/models/llama.h"'}, "may not include models/"),
        ({"include/kvcache/kvcache.h": '#include "kvcache/models/llama.h"'}, None),
        ({"include/kvcache/models/a.h": '#include "kvcache/kvcache.h"'}, "for users of the library"),
        ({"include/kvcache/core/a.h": "#include <ATen/ATen.h>"}, "ATen/ATen.h in a public header"),
        ({"include/kvcache/core/a.h": "#include <torch/torch.h>"}, "torch/torch.h in a public header"),
        ({"include/kvcache/core/a.h": "#include <fmt/format.h>"}, "fmt/format.h in a public header"),
        ({"include/kvcache/core/a.h": "// #include <ATen/ATen.h>"}, None),
        ({"include/kvcache/new/a.h": ""}, "does not know"),
        ({"src/core/a.cpp": "\n" * (LIMIT + 1)}, f"{LIMIT + 1} lines"),
        ({"tests/unit/core/a.cpp": "\n" * LIMIT}, None),
    ]
    failures = 0
    for files, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name, text in files.items():
                path = root / name
                path.parent.mkdir(parents=True)
                path.write_text(text)
            problems = check_tree(root)
        good = not problems if expected is None else len(problems) == 1 and expected in problems[0]
        if not good:
            failures += 1
            print(f"self-test: {files}: expected {expected!r}, got {problems}", file=sys.stderr)
    return failures


def main():
    parser = argparse.ArgumentParser(description="Check includes and file lengths.")
    parser.add_argument("--self-test", action="store_true", help="try the rules on made-up files")
    options = parser.parse_args()
    if options.self_test:
        return 1 if self_test() else 0
    root = Path(os.path.abspath(__file__)).parent.parent
    problems = check_tree(root) + check_umbrella(root)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
