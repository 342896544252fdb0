#!/usr/bin/env python3
"""Add up GoogleTest's XML reports: the last line is `N passed, N failed, N skipped`.

    summarize_tests.py STATUS FOLDER...

STATUS is the exit status of what ran; where it tells of a failure that no report holds (a build, a
check, a crash), that counts as one.
"""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def main():
    passed = failed = skipped = 0
    status, folders = sys.argv[1], sys.argv[2:]
    for path in sorted(path for folder in folders for path in Path(folder).rglob("*.xml")):
        for case in ElementTree.parse(path).iter("testcase"):
            if case.find("failure") is not None:
                failed += 1
                print(f"failed: {path}: {case.get('classname')}.{case.get('name')}")
            elif case.find("skipped") is not None or case.get("status") == "notrun":
                skipped += 1
            else:
                passed += 1
    if failed == 0 and status != "0":
        failed = 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
