#!/usr/bin/env python3
"""Reads pytest's JUnit report of the conformance suite: exit 0 when nothing failed but what the known lists name.

    conformance_verdict.py REPORT.xml KNOWN.txt…
"""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def main() -> int:
    report, *known_files = map(Path, sys.argv[1:])
    lines = (line.split("#")[0].strip() for file in known_files for line in file.read_text().splitlines())
    known = {line for line in lines if line}
    ran, failed = 0, []
    for case in ET.parse(report).iter("testcase"):
        ran += 1
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname', '').split('.')[-1]}.py::{case.get('name')}")
    excused = [name for name in failed if name in known]
    guilty = [name for name in failed if name not in known]
    print(f"{ran} tests, {len(failed)} failed, {len(excused)} of them on a known list")
    for name in excused:
        print(f"  known: {name}")
    for name in guilty:
        print(f"  FAILED: {name}")
    return 1 if guilty or ran == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
