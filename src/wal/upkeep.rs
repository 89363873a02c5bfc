//! The log's thread: syncs in groups, and gives up the oldest segment when most of what lies there was released.

use std::fs::{self, File};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::segment::{read_at, segment_path};
use super::{Log, Place, RecordId, Shared, Sync};
use crate::error::{Error, Result};

/// Bytes of released records that may lie about, beside as many as there are of others.
pub(super) const SLACK: u64 = 64 << 20;
/// Segments beyond which the oldest goes, however small: each start makes one.
const SEGMENTS: usize = 16;
/// How often it is looked whether a segment can go.
const LOOK: Duration = Duration::from_secs(1);

/// Ends when the last clone of the log is gone.
pub(super) fn start(log: &Log) -> Result<()> {
    let shared = Arc::downgrade(&log.0);
    let thread = std::thread::Builder::new().name("journal".into()).spawn(move || run(&shared));
    thread.map(|_| ()).map_err(|e| Error::server(format!("the journal's thread does not start: {e}")))
}

fn run(shared: &Weak<Shared>) {
    let mut looked = Instant::now();
    while let Some(log) = shared.upgrade().map(Log) {
        wait(&log);
        sync(&log);
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            match compact_once(&log) {
                Ok(_) => {}
                Err(e) => tracing::warn!(error = %e, "old journal files stay for now"),
            }
        }
    }
}

/// Until there is something to sync, but not for ever.
fn wait(log: &Log) {
    let state = log.lock();
    let waited = log.0.wake.wait_timeout_while(state, LOOK / 2, |s| !s.dirty);
    let dirty = waited.expect("no code panics while it holds the log").0.dirty;
    if let (Sync::Within(time), true) = (log.0.sync, dirty) {
        std::thread::sleep(time);
    }
}

pub(super) fn sync(log: &Log) {
    // One at a time: whoever comes second finds nothing to do only when the first is through.
    let _turn = log.0.syncing.lock().expect("no code panics while it syncs");
    let mut state = log.lock();
    if !state.dirty {
        return;
    }
    state.dirty = false;
    let appended = state.appended;
    let mut files = std::mem::take(&mut state.unsynced);
    let current = state.current.try_clone();
    drop(state);
    let synced = current.and_then(|current| {
        files.push(current);
        files.iter().try_for_each(File::sync_data)?;
        File::open(&log.0.dir)?.sync_all()
    });
    if let Err(e) = synced {
        let why = format!(
            "the journal in {} cannot be synced: {e}; restart the server when the disk is well",
            log.0.dir.display()
        );
        tracing::error!("{why}");
        log.lock().broken = Some(why);
    }
    log.0.synced.send_replace(appended);
}

/// Gives up the oldest segment if there is reason to. → whether it did.
pub(super) fn compact_once(log: &Log) -> Result<bool> {
    let (oldest, records) = {
        let state = log.lock();
        let Some((&oldest, segment)) = state.segments.iter().next().filter(|(n, _)| **n != state.number) else {
            return Ok(false);
        };
        let (all, live) = state.segments.values().fold((0, 0), |(a, l), s| (a + s.bytes, l + s.live));
        if segment.live > 0 && all <= 2 * live + SLACK && state.segments.len() <= SEGMENTS {
            return Ok(false);
        }
        let of_oldest = state.places.iter().filter(|(_, p)| p.segment == oldest);
        let mut records: Vec<(RecordId, Place)> = of_oldest.map(|(id, p)| (*id, *p)).collect();
        records.sort_unstable_by_key(|(id, _)| *id);
        (oldest, records)
    };
    for (id, place) in records {
        let payload = read_at(&log.0.dir, place)?;
        let mut state = log.lock();
        // It may have been released meanwhile.
        if state.places.contains_key(&id) {
            log.put(&mut state, id, &payload)?;
            state.dirty = true;
        }
    }
    sync(log);
    if let Some(why) = &log.lock().broken {
        return Err(Error::server(why.clone()));
    }
    let path = segment_path(&log.0.dir, oldest);
    fs::remove_file(&path).map_err(|e| Error::server(format!("journal {}: {e}", path.display())))?;
    log.lock().segments.remove(&oldest);
    Ok(true)
}
