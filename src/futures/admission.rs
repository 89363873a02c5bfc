//! How much unfinished work may wait, all together and for each owner: beyond it clients are told to slow down
//! (protocol §12.2).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::accounts::Accounts;
use crate::command::{Command, Datum, Numbers, RunCommand, SampleRequest, Stop};
use crate::ids::OwnerId;

/// Room for requests that are not finished.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Of bodies and what they expand to, all together. An owner may hold half of it.
    pub bytes: usize,
    /// Requests of one owner who has no quota of its own.
    pub requests: usize,
}

/// There is no room now, but there will be: the client should send the request again.
#[derive(Debug, PartialEq, Eq)]
pub struct Full {
    pub why: String,
    /// When it is worth another try.
    pub retry_after: Duration,
}

impl Full {
    /// Until something of what waits is finished, nobody knows how long. Clients try two to ten times.
    const SOON: Duration = Duration::from_secs(5);

    pub fn of_work(why: impl Into<String>) -> Self {
        Self { why: why.into(), retry_after: Self::SOON }
    }
}

/// Counts what is pending. Clones share the counts.
#[derive(Clone)]
pub struct Admission {
    room: Room,
    /// Whose `pending_requests` count.
    accounts: Accounts,
    counts: Arc<Mutex<Counts>>,
}

#[derive(Default)]
struct Counts {
    bytes: usize,
    owners: HashMap<OwnerId, Pending>,
}

#[derive(Default)]
struct Pending {
    bytes: usize,
    requests: usize,
}

/// A pending request's share of the room, given back when it is dropped.
pub struct Permit {
    admission: Admission,
    owner: OwnerId,
    bytes: usize,
    /// Of these, what its body takes while it is read and checked.
    reading: usize,
    /// Bytes that are still not counted, and whether the request itself is.
    free: usize,
    counted: bool,
}

/// What of a small request is not counted: it is never refused for want of room, and takes none from others.
const FREE: usize = 64 << 10;

impl Admission {
    pub fn new(room: Room, accounts: Accounts) -> Self {
        Self { room, accounts, counts: Arc::default() }
    }

    /// One more request of this owner, of no bytes yet.
    pub fn enter(&self, owner: &OwnerId) -> Result<Permit, Full> {
        let quota = self.accounts.quotas(owner).pending_requests;
        let limit = quota.map_or(self.room.requests, |n| n as usize);
        let mut counts = self.lock();
        let held = counts.owners.entry(owner.clone()).or_default();
        if held.requests >= limit {
            let used = held.requests;
            return Err(Full::of_work(format!(
                "{used} requests of this account are not finished: quota pending_requests: limit {limit}, used {used}; \
                 send this one again later"
            )));
        }
        held.requests += 1;
        drop(counts);
        Ok(self.permit(owner, 0, true))
    }

    /// For a request that starts no work: nothing of it counts until it gets large.
    pub fn aside(&self, owner: &OwnerId) -> Permit {
        self.permit(owner, FREE, false)
    }

    fn permit(&self, owner: &OwnerId, free: usize, counted: bool) -> Permit {
        Permit { admission: self.clone(), owner: owner.clone(), bytes: 0, reading: 0, free, counted }
    }

    /// How many requests of this owner have entered and are not finished.
    pub fn pending(&self, owner: &OwnerId) -> usize {
        self.lock().owners.get(owner).map_or(0, |held| held.requests)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.counts.lock().expect("no code panics while it holds the counts")
    }
}

impl Permit {
    /// Takes more room, which this request then holds until it is finished.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Full> {
        self.check(bytes)?;
        let bytes = self.take_free(bytes);
        if bytes > 0 {
            let mut counts = self.admission.lock();
            counts.bytes += bytes;
            counts.owners.entry(self.owner.clone()).or_default().bytes += bytes;
            self.bytes += bytes;
        }
        Ok(())
    }

    /// Takes room for what a body is read into, until [`Permit::was_read`].
    pub fn grow_to_read(&mut self, bytes: usize) -> Result<(), Full> {
        let before = self.bytes;
        self.grow(bytes)?;
        self.reading += self.bytes - before;
        Ok(())
    }

    /// The body has become a command, which takes room of its own.
    pub fn was_read(&mut self) {
        let read = std::mem::take(&mut self.reading);
        self.bytes -= read;
        self.admission.lock().give_back(&self.owner, read, 0);
    }

    /// What of these bytes counts.
    fn take_free(&mut self, bytes: usize) -> usize {
        let counts = bytes.saturating_sub(self.free);
        self.free -= bytes - counts;
        counts
    }

    /// Whether `more` bytes would fit now. A request that is alone always does, or it could never be served.
    pub fn check(&self, more: usize) -> Result<(), Full> {
        if more <= self.free {
            return Ok(());
        }
        let room = self.admission.room.bytes;
        let counts = self.admission.lock();
        let own = counts.owners.get(&self.owner).map_or(0, |held| held.bytes);
        let fits = |held: usize, limit: usize| held <= self.bytes || held.saturating_add(more) <= limit;
        if !fits(own, room / 2) {
            let limit = room / 2;
            return Err(Full::of_work(format!(
                "{own} bytes of this account's requests wait, of {limit} (half of TINDERBOX_PENDING_BYTES); send this one \
                 again later"
            )));
        }
        if !fits(counts.bytes, room) {
            return Err(Full::of_work(format!(
                "{} bytes of requests wait, of {room} (TINDERBOX_PENDING_BYTES); send this one again later",
                counts.bytes
            )));
        }
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission.lock().give_back(&self.owner, self.bytes, usize::from(self.counted));
    }
}

impl Counts {
    fn give_back(&mut self, owner: &OwnerId, bytes: usize, requests: usize) {
        self.bytes -= bytes;
        if let Some(held) = self.owners.get_mut(owner) {
            held.bytes -= bytes;
            held.requests -= requests;
            if held.requests == 0 && held.bytes == 0 {
                self.owners.remove(owner);
            }
        }
    }
}

/// Estimated bytes of a checked request while it waits.
pub fn size_bytes(command: &Command) -> usize {
    match command {
        Command::Run { command: RunCommand::ForwardBackward { data, .. }, .. } => data.iter().map(datum_bytes).sum(),
        Command::Run { .. } => 0,
        Command::Sample { request, .. } => sample_bytes(request),
    }
}

fn datum_bytes(d: &Datum) -> usize {
    let inputs = [&d.inputs.weights, &d.inputs.logprobs, &d.inputs.advantages, &d.inputs.sequence_ratio_mask];
    let floats: usize = inputs.into_iter().flatten().map(Vec::len).sum();
    let named: usize = d.inputs.named.iter().map(|input| 64 + numbers_bytes(&input.numbers)).sum();
    size_of::<Datum>() + 4 * (d.tokens.len() + d.targets.len() + floats) + named
}

fn numbers_bytes(numbers: &Numbers) -> usize {
    match numbers {
        Numbers::F32(v) => 4 * v.len(),
        Numbers::I64(v) => 8 * v.len(),
    }
}

fn sample_bytes(r: &SampleRequest) -> usize {
    let stop = match &r.params.stop {
        Stop::Eos | Stop::Never => 0,
        Stop::Tokens(ids) => 4 * ids.len(),
        Stop::Strings(texts) => texts.iter().map(|t| 24 + t.len()).sum(),
    };
    let targets: usize = r.prompt_targets.iter().flatten().map(|row| 24 + 8 * row.len()).sum();
    size_of::<SampleRequest>() + 4 * r.prompt.len() + stop + targets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::quotas::Quotas;

    fn owner(name: &str) -> OwnerId {
        OwnerId(name.into())
    }

    #[test]
    fn an_owner_holds_half_and_gives_it_back() {
        let admission = Admission::new(Room { bytes: 100, requests: 3 }, Accounts::default());
        let mut a = admission.enter(&owner("a")).unwrap();
        let mut b = admission.enter(&owner("a")).unwrap();
        a.grow(30).unwrap();
        assert_eq!(
            b.grow(21).unwrap_err().why,
            "30 bytes of this account's requests wait, of 50 (half of TINDERBOX_PENDING_BYTES); send this one again later"
        );
        b.grow(20).unwrap();
        let mut other = admission.enter(&owner("b")).unwrap();
        other.grow(50).unwrap();
        let mut third = admission.enter(&owner("c")).unwrap();
        assert!(third.grow(1).unwrap_err().why.starts_with("100 bytes of requests"));
        drop(a);
        third.grow(30).unwrap();
        assert!(b.grow(1).unwrap_err().why.starts_with("100 bytes of requests"));
    }

    #[test]
    fn a_request_that_is_alone_always_fits() {
        let admission = Admission::new(Room { bytes: 100, requests: 3 }, Accounts::default());
        let mut only = admission.enter(&owner("a")).unwrap();
        only.grow(80).unwrap();
        only.grow(80).unwrap();
        let mut other = admission.enter(&owner("b")).unwrap();
        assert!(other.grow(1).is_err());
        drop(only);
        other.grow(1).unwrap();
    }

    #[test]
    fn a_body_takes_room_while_it_is_read() {
        let admission = Admission::new(Room { bytes: 100, requests: 3 }, Accounts::default());
        let (mut a, mut b) = (admission.enter(&owner("a")).unwrap(), admission.enter(&owner("b")).unwrap());
        a.grow(10).unwrap();
        a.grow_to_read(80).unwrap();
        assert!(b.grow(20).is_err());
        a.was_read();
        a.was_read();
        b.grow(20).unwrap();
        drop((a, b));
        assert_eq!(admission.lock().bytes, 0);
        assert!(admission.lock().owners.is_empty());
    }

    #[test]
    fn a_small_request_counts_when_it_gets_large() {
        let admission = Admission::new(Room { bytes: 100, requests: 1 }, Accounts::default());
        let mut work = admission.enter(&owner("a")).unwrap();
        work.grow(100).unwrap();
        let mut small = admission.aside(&owner("a"));
        small.grow(FREE - 1).unwrap();
        small.grow(1).unwrap();
        assert!(small.grow(1).is_err());
        drop(work);
        small.grow(70).unwrap();
        assert_eq!(admission.lock().bytes, 70);
        assert_eq!(admission.pending(&owner("a")), 0);
        let mut other = admission.aside(&owner("b"));
        assert!(other.grow(FREE + 31).is_err());
        drop(small);
        assert!(admission.lock().owners.is_empty());
    }

    #[test]
    fn requests_are_counted_per_owner() {
        let admission = Admission::new(Room { bytes: 100, requests: 2 }, Accounts::default());
        let (first, _second) = (admission.enter(&owner("a")).unwrap(), admission.enter(&owner("a")).unwrap());
        assert!(admission.enter(&owner("a")).is_err_and(|full| full.why.starts_with("2 requests")));
        assert_eq!((admission.pending(&owner("a")), admission.pending(&owner("b"))), (2, 0));
        assert!(admission.enter(&owner("b")).is_ok());
        drop(first);
        assert_eq!(admission.pending(&owner("a")), 1);
        assert!(admission.enter(&owner("a")).is_ok());
    }

    #[test]
    fn an_accounts_quota_takes_the_place_of_the_default() {
        let accounts = Accounts::default();
        let admission = Admission::new(Room { bytes: 100, requests: 2 }, accounts.clone());
        accounts.set(owner("a"), Quotas { pending_requests: Some(3), ..Quotas::default() });
        let held: Vec<_> = (0..3).map(|_| admission.enter(&owner("a")).unwrap()).collect();
        let full = admission.enter(&owner("a")).err().unwrap().why;
        assert!(full.contains("quota pending_requests: limit 3, used 3"), "{full}");
        accounts.set(owner("a"), Quotas { pending_requests: Some(4), ..Quotas::default() });
        assert!(admission.enter(&owner("a")).is_ok() && held.len() == 3);
    }
}
