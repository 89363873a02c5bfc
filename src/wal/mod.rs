//! A write-ahead log of records: appended, synced in groups, and rewritten so that released ones take no room for long.
//!
//! Records lie in numbered segment files. A record is found again by its number until it is released. When the segments
//! hold much more than what is still needed, the oldest one's records that are not released are appended again and its
//! file goes. Only ever the oldest: so a record never outlives on disk one that was written after it and says that it is over.

mod frame;
mod segment;
mod upkeep;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;

use crate::error::{Error, Result};
use frame::Scan;
use segment::{at, create, segment_numbers, segment_path};

/// A segment that has reached this many bytes is followed by a new one.
const SEGMENT: u64 = 32 << 20;

/// A record's number, never given twice.
pub type RecordId = u64;

/// When an appended record is made to survive a power cut. A killed process loses nothing either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// At most so long after it was appended.
    Within(Duration),
    /// As soon as may be; [`Log::synced`] waits for it.
    AtOnce,
}

/// What was wrong with the files of a log that was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Bytes at the end that were being written when the process ended.
    pub torn: u64,
    /// Places before the end that cannot be read, as "FILE: BYTES bytes from POSITION on".
    pub unreadable: Vec<String>,
}

/// Clones share one log.
#[derive(Clone)]
pub struct Log(Arc<Shared>);

struct Shared {
    dir: PathBuf,
    sync: Sync,
    state: Mutex<State>,
    /// Records that were synced so far, counted as they were appended.
    synced: watch::Sender<u64>,
    wake: std::sync::Condvar,
    /// Held while files are synced.
    syncing: Mutex<()>,
}

struct State {
    current: File,
    number: u64,
    /// Length of the current segment.
    len: u64,
    places: HashMap<RecordId, Place>,
    segments: BTreeMap<u64, Segment>,
    next_record: RecordId,
    /// Records appended since the start.
    appended: u64,
    /// Files with bytes that were not synced.
    unsynced: Vec<File>,
    dirty: bool,
    /// After a failed sync nothing that was written is certain: no record is taken any more.
    broken: Option<String>,
}

#[derive(Clone, Copy)]
struct Place {
    segment: u64,
    /// Of the payload.
    offset: u64,
    len: u32,
}

#[derive(Clone, Copy, Default)]
struct Segment {
    bytes: u64,
    /// Bytes of records that were not released.
    live: u64,
}

impl Log {
    /// Opens the log in `dir`, which is made if need be, and tells every record that lies there, in the order they were
    /// appended. What is not needed any more is to be released afterwards.
    ///
    /// # Errors
    /// The directory cannot be read or written; named in the message.
    pub fn open(dir: &Path, sync: Sync, mut each: impl FnMut(RecordId, Vec<u8>)) -> Result<(Self, Damage)> {
        fs::create_dir_all(dir).map_err(|e| at(dir, &e))?;
        let mut numbers = segment_numbers(dir)?;
        numbers.sort_unstable();
        let (mut places, mut segments, mut damage) = (HashMap::new(), BTreeMap::new(), Damage::default());
        for &number in &numbers {
            let path = segment_path(dir, number);
            let bytes = fs::read(&path).map_err(|e| at(&path, &e))?;
            let last = Some(&number) == numbers.last();
            let mut segment = Segment { bytes: bytes.len() as u64, live: 0 };
            for found in frame::scan(&bytes) {
                match found {
                    Scan::Record { id, payload } => {
                        let place = Place { segment: number, offset: payload.start as u64, len: payload.len() as u32 };
                        // A record that was being rewritten when the process ended is there twice.
                        if places.contains_key(&id) {
                            continue;
                        }
                        segment.live += frame::size(payload.len());
                        places.insert(id, place);
                        each(id, bytes[payload].to_vec());
                    }
                    Scan::Torn { bytes: torn } if last => {
                        damage.torn = torn as u64;
                        segment.bytes -= torn as u64;
                        // Once and for all: at the next start it is not the last one.
                        let file = OpenOptions::new().write(true).open(&path).map_err(|e| at(&path, &e))?;
                        file.set_len(segment.bytes).and_then(|()| file.sync_all()).map_err(|e| at(&path, &e))?;
                    }
                    Scan::Torn { bytes: n } => {
                        damage.unreadable.push(format!("{}: the last {n} bytes", path.display()));
                    }
                    Scan::Damaged { at, bytes } => {
                        damage.unreadable.push(format!("{}: {bytes} bytes from {at} on", path.display()));
                    }
                }
            }
            segments.insert(number, segment);
        }
        let number = numbers.last().map_or(1, |n| n + 1);
        let current = create(dir, number)?;
        segments.insert(number, Segment::default());
        let next_record = places.keys().max().map_or(1, |n| n + 1);
        let state = State {
            current,
            number,
            len: 0,
            places,
            segments,
            next_record,
            appended: 0,
            unsynced: Vec::new(),
            dirty: false,
            broken: None,
        };
        let shared = Shared {
            dir: dir.into(),
            sync,
            state: Mutex::new(state),
            synced: watch::channel(0).0,
            wake: std::sync::Condvar::new(),
            syncing: Mutex::default(),
        };
        let log = Self(Arc::new(shared));
        upkeep::start(&log)?;
        Ok((log, damage))
    }

    /// Adds a record. When it returns, a killed process does not lose it.
    ///
    /// # Errors
    /// Server errors: the disk is full or cannot be written. Nothing was added then.
    pub fn append(&self, payload: &[u8]) -> Result<RecordId> {
        let mut state = self.lock();
        let id = state.next_record;
        self.put(&mut state, id, payload)?;
        state.next_record += 1;
        state.appended += 1;
        state.dirty = true;
        drop(state);
        self.0.wake.notify_one();
        Ok(id)
    }

    /// The record is not needed any more. Harmless when it was released before.
    pub fn release(&self, id: RecordId) {
        let mut state = self.lock();
        if let Some(place) = state.places.remove(&id)
            && let Some(segment) = state.segments.get_mut(&place.segment)
        {
            segment.live -= frame::size(place.len as usize);
        }
    }

    /// Resolves when everything appended so far survives a power cut.
    ///
    /// # Errors
    /// Server errors: the disk failed, so that nobody can promise that.
    pub async fn synced(&self) -> Result<()> {
        let wanted = self.lock().appended;
        let mut synced = self.0.synced.subscribe();
        let reached = synced.wait_for(|n| *n >= wanted).await.is_ok();
        match (&self.lock().broken, reached) {
            (Some(why), _) => Err(Error::server(why.clone())),
            _ => Ok(()),
        }
    }

    /// Syncs what was appended so far; for threads that may wait.
    ///
    /// # Errors
    /// As of [`Self::synced`].
    pub fn sync_now(&self) -> Result<()> {
        upkeep::sync(self);
        match &self.lock().broken {
            Some(why) => Err(Error::server(why.clone())),
            None => Ok(()),
        }
    }

    /// Whether [`Self::synced`] is to be waited for before anything is promised.
    pub fn is_strict(&self) -> bool {
        self.0.sync == Sync::AtOnce
    }

    /// Bytes of all segments, and of the records that were not released.
    pub fn bytes(&self) -> (u64, u64) {
        let state = self.lock();
        state.segments.values().fold((0, 0), |(all, live), s| (all + s.bytes, live + s.live))
    }

    fn put(&self, state: &mut State, id: RecordId, payload: &[u8]) -> Result<()> {
        if let Some(why) = &state.broken {
            return Err(Error::server(why.clone()));
        }
        if state.len >= SEGMENT {
            self.roll(state)?;
        }
        let framed = frame::framed(id, payload)?;
        if let Err(e) = state.current.write_all(&framed) {
            // Half a record at the end would hide what is written behind it from nobody, but it takes room.
            let _ = state.current.set_len(state.len);
            let _ = state.current.seek(SeekFrom::Start(state.len));
            return Err(Error::server(format!(
                "the request could not be written to the journal in {}: {e}; nothing was begun, send it again when there \
                 is room",
                self.0.dir.display()
            )));
        }
        let place =
            Place { segment: state.number, offset: state.len + frame::HEADER as u64, len: payload.len() as u32 };
        state.len += framed.len() as u64;
        let number = state.number;
        let segment = state.segments.get_mut(&number).expect("the current segment is known");
        segment.bytes = state.len;
        segment.live += framed.len() as u64;
        state.places.insert(id, place);
        Ok(())
    }

    fn roll(&self, state: &mut State) -> Result<()> {
        let number = state.number + 1;
        let next = create(&self.0.dir, number)?;
        let full = std::mem::replace(&mut state.current, next);
        state.unsynced.push(full);
        state.segments.insert(number, Segment::default());
        (state.number, state.len) = (number, 0);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no code panics while it holds the log")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Sync = Sync::Within(Duration::from_millis(1));

    fn open(dir: &Path) -> (Log, Vec<(RecordId, Vec<u8>)>, Damage) {
        let mut found = Vec::new();
        let (log, damage) = Log::open(dir, SOON, |id, payload| found.push((id, payload))).unwrap();
        (log, found, damage)
    }

    fn segments(dir: &Path) -> Vec<PathBuf> {
        let mut all: Vec<_> = segment_numbers(dir).unwrap();
        all.sort_unstable();
        all.into_iter().map(|n| segment_path(dir, n)).collect()
    }

    #[test]
    fn records_come_back_in_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let (log, found, _) = open(dir.path());
        assert!(found.is_empty());
        let ids: Vec<_> = [&b"one"[..], b"", b"three"].iter().map(|p| log.append(p).unwrap()).collect();
        log.release(ids[1]);
        drop(log);
        let (log, found, damage) = open(dir.path());
        assert_eq!(found, [(1, b"one".to_vec()), (2, vec![]), (3, b"three".to_vec())]);
        assert_eq!(damage, Damage::default());
        assert_eq!(log.append(b"four").unwrap(), 4);
    }

    #[test]
    fn a_torn_tail_is_left_out_and_damage_before_it_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (log, ..) = open(dir.path());
        for i in 0..4u8 {
            log.append(&[i; 100]).unwrap();
        }
        drop(log);
        let path = segments(dir.path())[0].clone();
        let mut bytes = fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 7);
        fs::write(&path, &bytes).unwrap();
        let (_, found, damage) = open(dir.path());
        assert_eq!(found.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(damage.torn > 0 && damage.unreadable.is_empty(), "{damage:?}");
        assert_eq!(open(dir.path()).2, Damage::default(), "it is told once");
        bytes[150] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let (_, found, damage) = open(dir.path());
        assert_eq!(found.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3]);
        assert!(damage.unreadable[0].contains("from 120 on"), "{damage:?}");
    }

    #[test]
    fn the_oldest_segment_goes_when_little_of_it_is_needed() {
        let dir = tempfile::tempdir().unwrap();
        let (log, ..) = open(dir.path());
        let kept = log.append(b"kept").unwrap();
        for _ in 0..7 {
            let id = log.append(&vec![7; SEGMENT as usize / 2]).unwrap();
            log.release(id);
        }
        assert!(upkeep::compact_once(&log).unwrap());
        while upkeep::compact_once(&log).unwrap() {}
        let (all, live) = log.bytes();
        assert!(all <= 2 * live + upkeep::SLACK, "{all} of {live}");
        assert!(!segment_path(dir.path(), 1).exists());
        drop(log);
        let (_, found, _) = open(dir.path());
        assert!(found.contains(&(kept, b"kept".to_vec())));
    }

    #[tokio::test]
    async fn everything_appended_is_synced_soon() {
        let dir = tempfile::tempdir().unwrap();
        let (log, ..) = open(dir.path());
        log.append(b"x").unwrap();
        tokio::time::timeout(Duration::from_secs(10), log.synced()).await.unwrap().unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let e = Log::open(&file, SOON, |_, _| ()).err().unwrap();
        assert!(e.message.contains(&*file.display().to_string()), "{e}");
    }
}
