//! The parts of a data directory, taken in the order that makes them fit together (`super` says why).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::files::{self, How};
use super::progress::Progress;
use crate::config::store::Store as Place;
use crate::store::backup::Copy;
use crate::store::moved::last_three;

/// How often what does not fit together is taken again.
const TRIES: u32 = 5;
const JOURNAL: &str = "journal";
const CHECKPOINTS: &str = "checkpoints";
/// States of runs, then the weights of samplers that they count on.
const STATES: [&str; 2] = ["runs", "snapshots"];
/// Of the process that serves, or on their way in or out: of no use to another.
const PASSING: [&str; 3] = ["lock", "uploads", "exports"];

pub struct Gathering<'a, 'b> {
    pub place: &'a Place,
    pub to: &'a Path,
    /// What never changes once it is there.
    pub how: How,
    pub progress: &'a mut Progress<'b>,
}

/// What the backup holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub checkpoints: usize,
    pub bytes: u64,
    /// Checkpoints that went before their files were taken.
    pub left_out: Vec<String>,
}

impl Gathering<'_, '_> {
    pub async fn all(mut self) -> anyhow::Result<Found> {
        let mut found = Found::default();
        self.progress.says("journal and states of runs");
        found.bytes += self.runs().context("journal and states of runs")?;
        self.progress.says("checkpoints");
        found.bytes += self.tree(CHECKPOINTS).context("checkpoints")?;
        self.progress.says("database");
        match self.place.is_embedded() {
            true => self.database(&mut found).await?,
            false => found.checkpoints = self.leaves()?.len(),
        }
        found.bytes += self.others()?;
        Ok(found)
    }

    /// Journal, states, journal again.
    fn runs(&mut self) -> anyhow::Result<u64> {
        for _ in 0..TRIES {
            let held = segments(&self.place.data_dir.join(JOURNAL))?;
            let mut bytes = self.tree(JOURNAL)?;
            for part in STATES {
                bytes += self.tree(part)?;
            }
            if self.journal_again(&held)? {
                return Ok(bytes);
            }
            for part in STATES.iter().chain([&JOURNAL]) {
                files::remove(&self.to.join(part))?;
            }
        }
        bail!("the journal is rewritten faster than it can be read; try again when there is less to do")
    }

    /// Brings the journal up to now: segments are only ever added to. False when segments between the held ones and
    /// today's have come and gone.
    fn journal_again(&self, held: &BTreeMap<String, u64>) -> anyhow::Result<bool> {
        let (from, to) = (self.place.data_dir.join(JOURNAL), self.to.join(JOURNAL));
        let now = segments(&from)?;
        let number = |name: &String| name.trim_end_matches(".log").parse::<u64>().unwrap_or_default();
        let (last, first) = (held.keys().next_back().map(number), now.keys().next().map(number));
        if let (Some(last), Some(first)) = (last, first)
            && first > last + 1
        {
            return Ok(false);
        }
        for (name, length) in &now {
            // Not the file itself, which grows.
            let (target, fresh) = (to.join(name), to.join(format!("{name}.tmp")));
            match files::prefix(&from.join(name), &fresh, *length) {
                Ok(_) => fs::rename(&fresh, &target)?,
                // It was rewritten into a later one meanwhile.
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
        if to.is_dir() {
            files::sync_dir(&to)?;
        }
        Ok(true)
    }

    /// The database, and what it lists that was not taken before.
    async fn database(&mut self, found: &mut Found) -> anyhow::Result<()> {
        for tries_left in (0..TRIES).rev() {
            let mut copy = Copy::make(&self.place.url, self.to).await.context("database")?;
            let listed = copy.checkpoint_dirs().await?;
            let mut gone = Vec::new();
            for (dir, path) in &listed {
                if !self.take_listed(dir, found)? {
                    gone.extend(path.as_ref().map(|path| (dir, path)));
                }
            }
            if !gone.is_empty() && tries_left > 0 {
                copy.close().await?;
                files::remove(&Place::in_dir(self.to).database_file())?;
                continue;
            }
            for (dir, path) in gone {
                copy.leave_out(dir).await?;
                found.left_out.push(path.clone());
            }
            copy.close().await?;
            let kept: BTreeSet<PathBuf> = listed.iter().map(|(dir, _)| last_three(dir)).collect();
            self.drop_unlisted(&kept)?;
            found.checkpoints = listed.iter().filter(|(_, path)| path.is_some()).count() - found.left_out.len();
            fs::File::open(Place::in_dir(self.to).database_file())?.sync_all()?;
            return Ok(());
        }
        unreachable!("the last try ends in the loop")
    }

    /// False when its files are gone.
    fn take_listed(&mut self, dir: &Path, found: &mut Found) -> anyhow::Result<bool> {
        let below = Path::new(CHECKPOINTS).join(last_three(dir));
        let to = self.to.join(&below);
        if to.is_dir() {
            return Ok(true);
        }
        // A data directory that was moved has rows that say where it was.
        let here = self.place.data_dir.join(&below);
        let from = if here.is_dir() { here } else { dir.to_owned() };
        match files::tree(&from, &to, self.how, self.progress) {
            Ok(bytes) => {
                found.bytes += bytes;
                Ok(true)
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {
                files::remove(&to)?;
                Ok(false)
            }
            Err(e) => Err(e).with_context(|| from.display().to_string()),
        }
    }

    /// Directories whose row went before the database was copied.
    fn drop_unlisted(&self, kept: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
        for leaf in self.leaves()? {
            if !kept.contains(&last_three(&leaf)) {
                files::remove(&leaf)?;
            }
        }
        Ok(())
    }

    /// `RUN/KIND/NAME` of the backup.
    fn leaves(&self) -> anyhow::Result<Vec<PathBuf>> {
        let mut level = vec![self.to.join(CHECKPOINTS)];
        for _ in 0..3 {
            let mut below = Vec::new();
            for dir in level.iter().filter(|dir| dir.is_dir()) {
                below.extend(fs::read_dir(dir)?.map(|entry| entry.map(|e| e.path())).collect::<Result<Vec<_>, _>>()?);
            }
            level = below;
        }
        Ok(level)
    }

    /// Small files, and whatever else lies there.
    fn others(&mut self) -> anyhow::Result<u64> {
        let taken = [JOURNAL, CHECKPOINTS].into_iter().chain(STATES).chain(PASSING);
        let taken: BTreeSet<&str> = taken.collect();
        let mut sum = 0;
        for entry in fs::read_dir(&self.place.data_dir)? {
            let (entry, name) = entry.map(|e| (e.path(), e.file_name()))?;
            let shown = name.to_string_lossy();
            if taken.contains(&*shown) || self.place.is_of_database(&entry) || files::is_unfinished(&name) {
                continue;
            }
            let to = self.to.join(&name);
            sum += match entry.is_dir() {
                true => files::tree(&entry, &to, How::Copy, self.progress)?,
                false => files::file(&entry, &to, How::Copy)?,
            };
        }
        Ok(sum)
    }

    fn tree(&mut self, part: &str) -> anyhow::Result<u64> {
        let from = self.place.data_dir.join(part);
        if !from.is_dir() {
            return Ok(0);
        }
        Ok(files::tree(&from, &self.to.join(part), self.how, self.progress)?)
    }
}

/// The files of a directory with their lengths, in order of name.
fn segments(dir: &Path) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    if !dir.is_dir() {
        return Ok(all);
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        match (entry.file_name().into_string(), entry.metadata()) {
            (Ok(name), Ok(about)) if about.is_file() && name.ends_with(".log") => all.insert(name, about.len()),
            _ => None,
        };
    }
    Ok(all)
}
