//! The data directory: whether it can be used, how fast its disk is, how much room is left, whose it is.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::line::{Line, median};
use super::patience::within;
use crate::server::data_dir;
use crate::server::lock;

const AREA: &str = "data directory";
/// Directories of such names are removed when a server starts.
const TEMPORARY: &str = "~tmp-doctor";
const WRITES: usize = 7;
const WRITE_BYTES: usize = 4096;
/// A disk of today takes a tenth of it.
const WRITE_GOOD: Duration = Duration::from_millis(50);
const ROOM_LEAST: u64 = 100 << 20;
const ROOM_GOOD: u64 = 5 << 30;

pub fn check(dir: &Path, limit: Duration) -> Vec<Line> {
    let shown = dir.display();
    let mut lines = match fs::metadata(dir) {
        Ok(about) if about.is_dir() => vec![Line::pass(AREA, "is there", shown.to_string())],
        Err(e) if e.kind() == ErrorKind::NotFound => vec![missing(dir)],
        Ok(_) => vec![refused("is there", dir, &ErrorKind::NotADirectory.into())],
        Err(e) => vec![refused("is there", dir, &e)],
    };
    if !dir.is_dir() {
        lines.extend(
            ["writes", "room", "format", "lock"].map(|check| Line::skip(AREA, check, "there is no directory yet")),
        );
        return lines;
    }
    let place = dir.to_owned();
    lines.push(match within(limit, move || write(&place)) {
        Ok(Ok(times)) => {
            let time = median(times);
            let advice = "slow: every accepted request waits for the disk, so put --data-dir on a local one";
            Line::pass(AREA, "writes", "4 KiB, synced").took(time).better(time > WRITE_GOOD, advice)
        }
        Ok(Err(e)) => refused("writes", dir, &e),
        Err(why) => Line::fail(AREA, "writes", why, "look at the disk, or give another --data-dir"),
    });
    lines.push(room(dir));
    lines.push(match data_dir::format(dir) {
        Ok(Some(format)) => {
            Line::pass(AREA, "format", format!("{}, of tinderbox {}", format.version, format.created_by))
        }
        Ok(None) => Line::pass(AREA, "format", "none noted yet; the next start notes it"),
        Err(e) => {
            Line::fail(AREA, "format", e.message, "use the release that wrote it or a newer one, or restore a backup")
        }
    });
    lines.push(match lock::holder(dir) {
        Ok(None) => Line::pass(AREA, "lock", "nobody serves from it now"),
        Ok(Some(who)) => Line::pass(AREA, "lock", format!("{who} serves from it now")),
        Err(e) => refused("lock", &dir.join("lock"), &e),
    });
    lines
}

/// The first start makes it, where the directory above it can be written.
fn missing(dir: &Path) -> Line {
    let above =
        dir.ancestors().skip(1).find(|above| above.exists()).map_or_else(|| PathBuf::from("/"), Path::to_path_buf);
    match write_once(&above) {
        Ok(_) => Line::pass(AREA, "is there", format!("{} is made at the first start", dir.display())),
        Err(e) => refused("is there", dir, &e),
    }
}

fn refused(check: &str, path: &Path, e: &std::io::Error) -> Line {
    Line::fail(
        AREA,
        check,
        data_dir::refused(path, e).message,
        "correct its owner or mode, make room, or give another --data-dir",
    )
}

fn write(dir: &Path) -> std::io::Result<Vec<Duration>> {
    (0..WRITES).map(|_| write_once(dir)).collect()
}

/// How long a small synced write takes; nothing is left.
fn write_once(dir: &Path) -> std::io::Result<Duration> {
    let path = dir.join(format!("{TEMPORARY}-{}", std::process::id()));
    let start = Instant::now();
    let written = File::create(&path).and_then(|mut file| {
        file.write_all(&[0x5a; WRITE_BYTES])?;
        file.sync_all()
    });
    let took = start.elapsed();
    let _ = fs::remove_file(&path);
    written.map(|()| took)
}

#[cfg(unix)]
fn room(dir: &Path) -> Line {
    match rustix::fs::statvfs(dir) {
        Ok(disk) => {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            let found = format!("{:.1} GiB free", free as f64 / f64::from(1 << 30));
            let advice = "delete checkpoints that nobody needs, or put --data-dir on a larger disk";
            match free < ROOM_LEAST {
                true => Line::fail(AREA, "room", found, advice),
                false => Line::pass(AREA, "room", found).better(free < ROOM_GOOD, advice),
            }
        }
        Err(e) => refused("room", dir, &e.into()),
    }
}

#[cfg(not(unix))]
fn room(_: &Path) -> Line {
    Line::skip(AREA, "room", "this system does not say")
}

#[cfg(test)]
mod tests {
    use super::super::line::Verdict;
    use super::*;

    fn results(dir: &Path) -> Vec<(String, Verdict)> {
        check(dir, Duration::from_secs(30)).into_iter().map(|l| (l.check, l.result)).collect()
    }

    #[test]
    fn a_directory_in_use_one_of_a_newer_release_and_none_yet() {
        let dir = tempfile::tempdir().unwrap();
        let held = data_dir::open(dir.path()).unwrap();
        let lines = check(dir.path(), Duration::from_secs(30));
        let lock = lines.iter().find(|l| l.check == "lock").unwrap();
        assert_eq!(lock.detail, format!("process {} serves from it now", std::process::id()));
        assert!(lines.iter().all(|l| l.result == Verdict::Pass), "{lines:?}");
        drop(held);
        fs::write(dir.path().join("format.json"), r#"{"version": 7}"#).unwrap();
        assert!(results(dir.path()).contains(&("format".into(), Verdict::Fail)));
        let later = results(&dir.path().join("a/b"));
        assert_eq!(later[0], ("is there".into(), Verdict::Pass));
        assert!(later[1..].iter().all(|(_, result)| *result == Verdict::Skip));
    }
}
