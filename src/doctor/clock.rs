//! The clock: a plausible year, and the same time on disk, in the database and at an address.

use std::path::Path;
use std::time::SystemTime;

use chrono::{DateTime, Datelike, TimeDelta, Utc};

use super::line::Line;

const AREA: &str = "clock";
/// Tokens and expiries bear as much.
const DIFFERENCE_MOST: TimeDelta = TimeDelta::seconds(60);
const YEARS: std::ops::Range<i32> = 2025..2100;
const ADVICE: &str = "set the clock (timedatectl set-ntp true): expiries, heartbeats and tokens go by it";

pub fn check(data_dir: &Path, database: Option<DateTime<Utc>>) -> Vec<Line> {
    let now = Utc::now();
    let shown = now.format("%Y-%m-%d %H:%M:%S UTC").to_string();
    let year = match YEARS.contains(&now.year()) {
        true => Line::pass(AREA, "year", shown),
        false => Line::fail(AREA, "year", shown, ADVICE),
    };
    let disk = match on_disk(data_dir) {
        Some(time) => compared("disk", now, time),
        None => Line::skip(AREA, "disk", "no file can be written to compare with"),
    };
    let database = match database {
        Some(time) => compared("database", now, time),
        None => Line::skip(AREA, "database", "there is none to compare with"),
    };
    vec![year, disk, database]
}

/// This machine's time beside another's.
pub fn compared(check: &str, here: DateTime<Utc>, there: DateTime<Utc>) -> Line {
    let ahead = here - there;
    let found = match ahead.num_seconds() {
        -1..=1 => "the same time".to_owned(),
        n if n > 0 => format!("this machine is {n} s ahead"),
        n => format!("this machine is {} s behind", -n),
    };
    match ahead.abs() <= DIFFERENCE_MOST {
        true => Line::pass(AREA, check, found),
        false => Line::fail(AREA, check, found, ADVICE),
    }
}

/// The time that the disk, which may be another machine's, gives to a new file.
fn on_disk(data_dir: &Path) -> Option<DateTime<Utc>> {
    let dir = data_dir.ancestors().find(|dir| dir.is_dir())?;
    let file = tempfile::Builder::new().prefix("~tmp-doctor-").tempfile_in(dir).ok()?;
    std::io::Write::write_all(&mut file.as_file(), b"x").ok()?;
    let time: SystemTime = file.as_file().metadata().ok()?.modified().ok()?;
    Some(time.into())
}

#[cfg(test)]
mod tests {
    use super::super::line::Verdict;
    use super::*;

    #[test]
    fn a_minute_apart_is_too_much() {
        let now = Utc::now();
        let of = |seconds| {
            let line = compared("disk", now, now + TimeDelta::seconds(seconds));
            (line.result, line.detail)
        };
        assert_eq!(of(0), (Verdict::Pass, "the same time".into()));
        assert_eq!(of(-59), (Verdict::Pass, "this machine is 59 s ahead".into()));
        assert_eq!(of(3600), (Verdict::Fail, "this machine is 3600 s behind".into()));
        let dir = tempfile::tempdir().unwrap();
        let lines = check(&dir.path().join("later"), Some(now));
        assert!(lines.iter().all(|line| line.result == Verdict::Pass), "{lines:?}");
    }
}
