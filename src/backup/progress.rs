//! What the user sees while a backup is made.

use std::fmt::Display;
use std::io::Write;
use std::time::{Duration, Instant};

/// Between two lines about one part.
const INTERVAL: Duration = Duration::from_secs(2);

pub struct Progress<'a> {
    out: &'a mut dyn Write,
    files: u64,
    bytes: u64,
    told: Instant,
}

impl<'a> Progress<'a> {
    pub fn new(out: &'a mut dyn Write) -> Self {
        Self { out, files: 0, bytes: 0, told: Instant::now() }
    }

    /// A line. That nobody reads it stops no backup.
    pub fn says(&mut self, text: impl Display) {
        let _ = writeln!(self.out, "{text}");
        (self.files, self.bytes, self.told) = (0, 0, Instant::now());
    }

    /// One more file of the part that was begun with [`Self::says`].
    pub fn took(&mut self, bytes: u64) {
        (self.files, self.bytes) = (self.files + 1, self.bytes + bytes);
        if self.told.elapsed() >= INTERVAL {
            self.told = Instant::now();
            let _ = writeln!(self.out, "  {} files, {} MiB so far", self.files, self.bytes >> 20);
        }
    }
}
