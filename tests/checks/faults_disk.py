"""Disks that fill up, or take nothing: small file systems, mounted for the check."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from pathlib import Path

from faults_files import NAME, Pair
from faults_loops import Reference


def missing() -> str | None:
    if os.geteuid() != 0:
        return "needs root, to mount a small file system"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with mounted(Path(folder), 1):
                return None
        except subprocess.CalledProcessError:
            return "no file system can be mounted here"


@contextlib.contextmanager
def mounted(folder: Path, mib: int):
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Filler:
    """Takes all room of a file system until `free`; at once, so that nobody gets far meanwhile."""

    def __init__(self, folder: Path):
        self.file, room = folder / "filler", os.statvfs(folder)
        with self.file.open("wb", buffering=0) as out, contextlib.suppress(OSError):
            os.posix_fallocate(out.fileno(), 0, room.f_bavail * room.f_frsize)
            out.seek(0, os.SEEK_END)
            while True:
                out.write(b"x" * 4096)

    def free(self) -> None:
        self.file.unlink()


def check_full_disk_under_an_sdk_loop(args, work: Path):
    """The loop waits, and ends as if nothing had happened."""
    with mounted(work / "loop" / "data", 40), Reference(args, work / "loop") as reference:
        loop = reference.begin()
        reference.reach(loop, 12)
        filler = Filler(reference.world.data)
        time.sleep(5)
        status = reference.world.request("GET", "/api/v1/healthz")[0]
        filler.free()
        assert status == 200, status
        reference.same(loop)
        return f"{len(reference.world.loud())} warnings, the first: {(reference.world.loud() or ['none'])[0][:200]}"


def check_full_disk_is_told(args, work: Path):
    """A request that cannot be kept is refused before anything begins; with room again the same numbers go on."""
    data = work / "told" / "data"
    with mounted(data, 24), Pair(args, data) as pair:
        pair.of_a += [pair.a.step() for _ in range(2)]
        saved = pair.a.save("good")
        pair.of_b.append(pair.b.step())
        filler = Filler(data)
        time.sleep(2)
        refusals = refused_while_full(pair)
        filler.free()
        numbered = len(pair.a.sent)
        pair.a.result(pair.a.again(numbered))
        pair.a.result(pair.a.numbered("optim_step", adam_params={"learning_rate": 1e-2}))
        assert pair.a.loads(saved)
        pair.same_as_undisturbed(pair.b, "b", pair.of_b)
        return refusals


def check_killed_on_a_full_disk(args, work: Path):
    """The last good state was not overwritten by one for which there was no room."""
    data = work / "killed" / "data"
    with mounted(data, 24), Pair(args, data) as pair:
        pair.of_a += [pair.a.step() for _ in range(2)]
        pair.kept(pair.a)
        pair.of_a += [pair.a.step() for _ in range(2)]
        filler = Filler(data)
        time.sleep(2)
        pair.kill()
        filler.free()
        pair.start()
        pair.same_as_undisturbed(pair.a, "a", pair.of_a)


def refused_while_full(pair: Pair) -> str:
    """Requests until one is refused; its message."""
    for _ in range(200):
        try:
            pair.a.train()
        except AssertionError as e:
            assert "500" in str(e) and "journal" in str(e), e
            return str(e)[:300]
    raise AssertionError("200 requests were taken on a full disk")


def check_start_on_a_full_disk(args, work: Path):
    """It is refused plainly, or works; afterwards nothing is lost."""
    data = work / "start" / "data"
    with mounted(data, 24), Pair(args, data) as pair:
        pair.of_a += [pair.a.step() for _ in range(3)]
        pair.kill()
        filler = Filler(data)
        told = ended_or_up(pair)
        filler.free()
        if pair.server.process.poll() is not None:
            pair.server.start()
        pair.same_as_undisturbed(pair.a, "a", pair.of_a)
        return told


def check_read_only_disk(args, work: Path):
    """A start is refused with the directory's name; afterwards nothing is lost."""
    data = work / "read-only" / "data"
    with mounted(data, 24), Pair(args, data) as pair:
        pair.of_a += [pair.a.step() for _ in range(3)]
        pair.kill()
        remount(data, "ro")
        told = ended_or_up(pair)
        assert pair.server.process.poll() is not None, "a server is up on a disk that takes nothing"
        assert str(data) in told, told
        remount(data, "rw")
        pair.server.start()
        pair.same_as_undisturbed(pair.a, "a", pair.of_a)
        return told


def remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


def ended_or_up(pair: Pair) -> str:
    """Starts the server, which may refuse → its words."""
    with contextlib.suppress(AssertionError):
        pair.server.start()
    log = pair.since_kill()
    assert "panicked" not in log, log
    return log.strip().splitlines()[-1][:300]
