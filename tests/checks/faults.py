#!/usr/bin/env python3
"""Faults of the file system and of the database: each is noticed, survived or refused with a plain message, and harms nobody else.

    faults.py --tinderbox BINARY --model-dir DIR
    tests/postgres run faults.py … --only postgres

The checks of full and read-only disks mount a small file system, for which they need root. Those of Postgres want $POSTGRES_SERVER, as
`tests/postgres run` sets it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import faults_database
import faults_disk
import faults_files
import faults_kills
from runner import Checks, main
from server import arguments

NO_ROOM = "needs root, to mount a small file system"


def body(checks: Checks, args) -> None:
    args.tinderbox = args.tinderbox.resolve()
    for faults in (faults_files, faults_kills, faults_disk, faults_database):
        if why := faults.missing():
            print(f"SKIP {faults.__name__}: {why}")
        else:
            with tempfile.TemporaryDirectory(prefix="faults-") as work:
                checks.every(faults, args, Path(work))


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--outage-seconds", type=float, default=30, help="how long the database is gone")
    main(parser, body)
