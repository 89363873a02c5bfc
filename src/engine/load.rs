//! What waits in the engine and why, as the engine's thread told it last: for long polls and the status page.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use crate::ids::{ModelId, OwnerId};
use crate::scheduler::Place;

/// A picture of all queues, at most a fraction of a second old while the engine works.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// Owners with anything that waits or runs.
    pub owners: HashMap<OwnerId, OwnerLoad>,
    /// Runs with anything that waits.
    pub runs: HashMap<ModelId, Place>,
    /// Saves that are being written leave no writer free.
    pub writers_busy: bool,
}

/// Pieces of work begun since the start, each the least that others have to wait for.
#[derive(Default)]
pub struct PieceCounters {
    passes: AtomicU64,
    barriers: AtomicU64,
    decode_steps: AtomicU64,
    prompt_pieces: AtomicU64,
}

/// What [`PieceCounters`] say at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Training micro-batches.
    pub passes: u64,
    /// Everything on runs but forward and backward.
    pub barriers: u64,
    /// Each one token for all sequences of a lane.
    pub decode_steps: u64,
    /// Of prompts, and of what was asked about them.
    pub prompt_pieces: u64,
}

impl PieceCounters {
    pub fn pass(&self) {
        self.passes.fetch_add(1, Ordering::Relaxed);
    }

    pub fn barrier(&self) {
        self.barriers.fetch_add(1, Ordering::Relaxed);
    }

    pub fn decode_step(&self) {
        self.decode_steps.fetch_add(1, Ordering::Relaxed);
    }

    pub fn prompt_piece(&self) {
        self.prompt_pieces.fetch_add(1, Ordering::Relaxed);
    }

    pub fn read(&self) -> Done {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Done {
            passes: read(&self.passes),
            barriers: read(&self.barriers),
            decode_steps: read(&self.decode_steps),
            prompt_pieces: read(&self.prompt_pieces),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct OwnerLoad {
    /// Requests on runs that are not done.
    pub training: usize,
    /// Tickets of the sample requests that wait, rising.
    pub samples: Vec<u64>,
    /// Sample requests whose prompts or sequences run.
    pub sampling: usize,
    /// Owners whose turn comes before this one's.
    pub ahead: usize,
    pub held_up: Option<HeldUp>,
    /// Device time used since the start, and the share's weight.
    pub seconds: f64,
    pub weight: f64,
}

/// What keeps an owner's next sample request from beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldUp {
    Memory,
    Sequences,
}

/// Why a request is not done yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// In turn, behind so many requests of the same owner and so many owners.
    Turn { mine: u64, owners: usize },
    /// Its run waits for a number that has not come.
    Number(u64),
    /// For a save of somebody's to be written.
    Writer,
    /// For running sequences to give back what they hold, behind so many requests of the same owner.
    Room(HeldUp, u64),
}

impl Wait {
    /// True when the server lacks memory or a writer; all else is waiting for one's turn.
    pub fn is_for_capacity(&self) -> bool {
        matches!(self, Self::Room(HeldUp::Memory, _) | Self::Writer)
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = |n: u64, what: &str| if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") };
        let mine = |n: u64| format!("{} of yours", many(n, "request"));
        let others = |n: usize| many(n as u64, "tenant");
        match *self {
            Self::Turn { mine: 0, owners: 0 } => write!(f, "next in turn"),
            Self::Turn { mine: 0, owners } => write!(f, "{} ahead", others(owners)),
            Self::Turn { mine: n, owners: 0 } => write!(f, "{} ahead", mine(n)),
            Self::Turn { mine: n, owners } => write!(f, "{} and {} ahead", mine(n), others(owners)),
            Self::Number(seq) => write!(f, "waits for seq_id {seq} of its run"),
            Self::Writer => write!(f, "waits for earlier saves to be written"),
            Self::Room(what, n) => {
                let what = match what {
                    HeldUp::Memory => "key/value memory",
                    HeldUp::Sequences => "a free sequence",
                };
                write!(f, "waits for {what}")?;
                if n > 0 { write!(f, ", {} ahead", mine(n)) } else { Ok(()) }
            }
        }
    }
}

impl Load {
    /// Why a request on a run is not done; none when it is worked on, or has not been seen yet.
    pub fn of_run(&self, owner: &OwnerId, model: &ModelId, seq: u64) -> Option<Wait> {
        let place = self.runs.get(model)?;
        let mine = seq.checked_sub(place.next)?;
        if place.gap {
            return Some(Wait::Number(place.next));
        }
        if place.save && self.writers_busy && mine == 0 {
            return Some(Wait::Writer);
        }
        Some(Wait::Turn { mine, owners: self.owners.get(owner)?.ahead })
    }

    /// Why a sample request is not done; none when it is worked on, or has not been seen yet.
    pub fn of_sample(&self, owner: &OwnerId, ticket: u64) -> Option<Wait> {
        let load = self.owners.get(owner)?;
        let mine = load.samples.binary_search(&ticket).ok()? as u64;
        Some(match load.held_up {
            Some(what) => Wait::Room(what, mine),
            None => Wait::Turn { mine, owners: load.ahead },
        })
    }
}

/// Where the engine's thread leaves the picture; nobody holds the lock for longer than it takes to copy a pointer.
#[derive(Clone, Default)]
pub struct Board {
    load: Arc<RwLock<Arc<Load>>>,
    pub counters: Arc<PieceCounters>,
}

impl Board {
    pub fn publish(&self, load: Load) {
        *self.load.write().expect("nobody panics with the lock") = Arc::new(load);
    }

    pub fn current(&self) -> Arc<Load> {
        self.load.read().expect("nobody panics with the lock").clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> (Load, OwnerId, ModelId) {
        let (owner, model) = (OwnerId("me".into()), ModelId("s:train:0".into()));
        let mine = OwnerLoad { samples: vec![4, 7, 9], ahead: 2, ..OwnerLoad::default() };
        let place = Place { next: 5, waiting: 3, gap: false, save: false };
        let owners = HashMap::from([(owner.clone(), mine)]);
        (Load { owners, runs: HashMap::from([(model.clone(), place)]), ..Load::default() }, owner, model)
    }

    fn text(wait: Option<Wait>) -> String {
        wait.map(|w| w.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_run_says_position_or_the_missing_number() {
        let (mut load, owner, model) = load();
        assert_eq!(text(load.of_run(&owner, &model, 8)), "3 requests of yours and 2 tenants ahead");
        assert_eq!(text(load.of_run(&owner, &model, 5)), "2 tenants ahead");
        assert_eq!(load.of_run(&owner, &model, 4), None, "it is worked on");
        let place = load.runs.get_mut(&model).unwrap();
        (place.gap, place.next) = (true, 7);
        assert_eq!(text(load.of_run(&owner, &model, 8)), "waits for seq_id 7 of its run");
        (load.writers_busy, *load.runs.get_mut(&model).unwrap()) =
            (true, Place { next: 7, waiting: 1, gap: false, save: true });
        let wait = load.of_run(&owner, &model, 7).unwrap();
        assert!(wait.is_for_capacity() && wait.to_string().contains("saves"), "{wait}");
    }

    #[test]
    fn a_sample_says_position_or_what_is_lacking() {
        let (mut load, owner, _) = load();
        assert_eq!(text(load.of_sample(&owner, 7)), "1 request of yours and 2 tenants ahead");
        assert_eq!(load.of_sample(&owner, 5), None, "it runs");
        let mine = load.owners.get_mut(&owner).unwrap();
        (mine.ahead, mine.held_up) = (0, Some(HeldUp::Memory));
        assert_eq!(text(load.of_sample(&owner, 4)), "waits for key/value memory");
        assert_eq!(text(load.of_sample(&owner, 9)), "waits for key/value memory, 2 requests of yours ahead");
        load.owners.get_mut(&owner).unwrap().held_up = None;
        assert_eq!(text(load.of_sample(&owner, 4)), "next in turn");
    }
}
