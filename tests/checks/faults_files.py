"""Damaged files: torn and flipped journals and states, what a power cut leaves, two servers on one directory."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
from pathlib import Path

import layout
from plain import PlainRun
from rest_world import becomes
from server import Server

NAME = "tiny"


def missing() -> str | None:
    return None


class Pair:
    """A server with two runs of different accounts; `steps` of each, kept to compare."""

    def __init__(self, args, data: Path):
        self.server = Server(args.tinderbox, data, {NAME: args.model_dir})
        self.server.start()
        self.a, self.b = self.run("a"), self.run("b")
        self.of_a, self.of_b = [], []

    def run(self, seed: str) -> PlainRun:
        return PlainRun(self.server, NAME, random.Random(seed))

    def kill(self) -> None:
        self.server.process.send_signal(signal.SIGKILL)
        self.server.process.wait()
        self.logged = self.server.log.stat().st_size

    def start(self) -> str:
        """→ what the log says since."""
        self.server.start()
        return self.since_kill()

    def since_kill(self) -> str:
        return self.server.log.read_bytes()[self.logged :].decode(errors="replace")

    def kept(self, run: PlainRun) -> None:
        """Until the run's whole state is on disk."""
        number = len(run.sent) + 1
        becomes(lambda: any(int(p.stem) == number for p in layout.states(self.server.data, run.run)), f"no state before number {number} is written")

    def same_as_undisturbed(self, run: PlainRun, seed: str, given: list) -> None:
        """One more step, and all of them beside those of a run that nothing happened to."""
        given.append(run.step())
        twin = self.run(seed)
        expected = [twin.step() for _ in given]
        assert given == expected, f"run {seed!r} differs at step {next(i for i, (g, e) in enumerate(zip(given, expected)) if g != e) + 1} of {len(given)}"

    def told_corrupted(self, run: PlainRun) -> str:
        """The run is marked, and a request on it is told why."""
        status, row = self.server.call("GET", f"training_runs/{run.run}")
        assert status == 200 and row["corrupted"], f"{status} {row}"
        status, answer = self.server.call("POST", "optim_step", {"model_id": run.run, "seq_id": len(run.sent) + 1, "adam_params": {}})
        why = run.outcome(answer).get("error", "") if status == 200 else answer.get("detail", "")
        assert run.run in why, f"{status} {answer} {why}"
        return f"{status} {why}"

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.process.kill()
        self.server.process.wait()


def check_second_server_is_refused(args, work: Path):
    with Pair(args, work / "second") as pair:
        command = [str(args.tinderbox), "serve", "--port", "0", "--data-dir", str(pair.server.data), "--model", f"{NAME}={args.model_dir}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode not in (0, None) and str(pair.server.data) in done.stderr and "panick" not in done.stderr, done
        pair.same_as_undisturbed(pair.a, "a", pair.of_a)
        return done.stderr.strip()[-200:]


def check_torn_tail_of_the_journal(args, work: Path):
    """Nobody was promised what was being written; every run goes on."""
    with Pair(args, work / "torn") as pair:
        for bytes_cut in (1, 21, 150):
            pair.of_b.append(pair.b.step())
            pair.of_a += [pair.a.step() for _ in range(3)]
            pair.kill()
            layout.cut(layout.segments(pair.server.data)[-1], bytes_cut)
            log = pair.start()
            assert "ended in the middle of a record" in log, log
            pair.kill()
            assert "journal" not in pair.start(), "a start that finds nothing wrong tells of the journal"
        pair.same_as_undisturbed(pair.b, "b", pair.of_b)
        pair.same_as_undisturbed(pair.a, "a", pair.of_a)


def check_flipped_byte_in_a_needed_record(args, work: Path):
    """The run whose request is lost says so and is left; its checkpoints load, and the other run goes on."""
    with Pair(args, work / "flipped") as pair:
        pair.of_b += [pair.b.step() for _ in range(2)]
        pair.kept(pair.b)
        pair.of_a.append(pair.a.step())
        saved = pair.a.save("before")
        pair.of_a += [pair.a.step() for _ in range(3)]
        pair.kill()
        segment = layout.segments(pair.server.data)[-1]
        mine = [(at, r) for at, r in layout.records(segment) if b"Accepted" in r and pair.a.run.encode() in r]
        at, record = mine[len(mine) // 2]
        layout.flip(segment, at + len(record) // 2)
        log = pair.start()
        assert "journal damaged" in log and str(segment) in log, log
        told = pair.told_corrupted(pair.a)
        assert pair.a.loads(saved)
        pair.same_as_undisturbed(pair.b, "b", pair.of_b)
        return told


def check_flipped_byte_in_a_record_of_the_past(args, work: Path):
    """What a state on disk holds is not missed."""
    with Pair(args, work / "past") as pair:
        pair.of_a += [pair.a.step() for _ in range(2)]
        pair.kept(pair.a)
        pair.of_b.append(pair.b.step())
        pair.kill()
        segment = layout.segments(pair.server.data)[-1]
        at, record = next((at, r) for at, r in layout.records(segment) if b"Accepted" in r and pair.a.run.encode() in r)
        layout.flip(segment, at + len(record) // 2)
        log = pair.start()
        assert "journal damaged" in log, log
        pair.same_as_undisturbed(pair.a, "a", pair.of_a)
        pair.same_as_undisturbed(pair.b, "b", pair.of_b)


def check_flipped_byte_in_a_state(args, work: Path):
    return damaged_state(args, work / "state", lambda file: layout.flip(file, file.stat().st_size // 2))


def check_half_a_state(args, work: Path):
    return damaged_state(args, work / "half", lambda file: layout.cut(file, file.stat().st_size // 2))


def damaged_state(args, data: Path, damage):
    with Pair(args, data) as pair:
        pair.of_a.append(pair.a.step())
        saved = pair.a.save("before")
        pair.of_b.append(pair.b.step())
        pair.kept(pair.a)
        pair.kept(pair.b)
        pair.kill()
        state = layout.states(pair.server.data, pair.a.run)[-1]
        damage(state)
        log = pair.start()
        assert f"{state} is damaged" in log, log
        told = pair.told_corrupted(pair.a)
        assert layout.set_aside(pair.server.data), "the damaged files are gone"
        assert pair.a.loads(saved)
        pair.same_as_undisturbed(pair.b, "b", pair.of_b)
        return told


def check_flipped_byte_in_a_samplers_weights(args, work: Path):
    """It is told, instead of samples from other weights."""
    with Pair(args, work / "sampler") as pair:
        pair.of_a.append(pair.a.step())
        sampler = pair.a.snapshot()
        pair.kept(pair.a)
        becomes(lambda: layout.snapshot_files(pair.server.data), "no snapshot is written")
        pair.kill()
        for file in layout.snapshot_files(pair.server.data):
            layout.flip(file, file.stat().st_size // 2)
        pair.start()
        answer = pair.a.outcome(pair.a.sample(sampler))
        assert "error" in answer, f"sampled from damaged weights: {str(answer)[:200]}"
        pair.same_as_undisturbed(pair.b, "b", pair.of_b)
        return str(answer)[:200]


def check_flipped_byte_in_a_checkpoint(args, work: Path):
    """It does not load, instead of loading as something else."""
    with Pair(args, work / "checkpoint") as pair:
        pair.of_a.append(pair.a.step())
        path = pair.a.save("flipped")
        for file in layout.checkpoint_files(pair.server.data, pair.a.run):
            layout.flip(file, file.stat().st_size // 2)
        session = pair.a.ask("create_session", tags=[], user_metadata={}, sdk_version="0.38.0")["session_id"]
        answer = pair.a.outcome(pair.a.ask("load_weights", session_id=session, model_seq_id=0, path=path, optimizer=True))
        assert "error" in answer, f"loaded from damaged files: {answer}"
        pair.same_as_undisturbed(pair.b, "b", pair.of_b)
        return str(answer)[:200]


def check_power_cut(args, work: Path):
    """A copy of the directory of a server in the midst of work, without the journal's last bytes. Whatever is sent again has the same result as
    before, or is told to be lost; where little is missing, nothing is lost."""
    with Pair(args, work / "running") as pair:
        pair.of_a += [pair.a.step() for _ in range(4)]
        pair.kept(pair.a)
        pair.of_a += [pair.a.step() for _ in range(3)]
        pair.server.process.send_signal(signal.SIGSTOP)
        copies = {n: shutil.copytree(pair.server.data, work / f"cut-{n}") for n in (10, 500, 5000, 50_000)}
        pair.server.process.send_signal(signal.SIGCONT)
    told = []
    for bytes_cut, data in copies.items():
        layout.cut(layout.segments(data)[-1], bytes_cut)
        with Server(args.tinderbox, data, {NAME: args.model_dir}) as server:
            pair.a.server = server
            lost = [number for number in pair.a.sent if sent_again(pair, number) is None]
            assert bytes_cut > 5000 or not lost, f"-{bytes_cut} bytes: numbers {lost} are lost"
            told.append(f"-{bytes_cut} bytes: {len(lost)} of {len(pair.a.sent)} requests lost")
    return "; ".join(told)


def sent_again(pair: Pair, number: int) -> dict | None:
    """The result, the same as before; `None` where the server says that it is lost."""
    expected = pair.of_a[(number - 1) // 2][(number - 1) % 2]
    have = pair.a.outcome(pair.a.again(number))
    assert have == expected or pair.a.run in have.get("error", ""), f"number {number}: {str(have)[:300]}"
    return None if "error" in have else have
