//! Requests and tokens per minute. A sample beyond the quota is refused, and its client sends it again (protocol §12.2).
//! A run's request is taken and waits here, since its client would give up after some repeats; `retrieve_future` says why.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::accounts::Accounts;
use crate::accounts::bucket::Bucket;
use crate::config::quotas::Quotas;
use crate::ids::{ModelId, OwnerId, RequestId};

use super::admission::Full;

/// Quotas may change while something waits, so they are looked at this often at least.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A request that may have to wait for its account's rate.
pub(super) struct Paused {
    pub id: RequestId,
    /// Its place in its run's order.
    pub run: ModelId,
    pub seq: u64,
    pub tokens: u64,
    /// Gives it to the engine. Dropped, its promise fails.
    pub submit: Box<dyn FnOnce() + Send>,
}

/// The rates of all accounts, and what waits for them. Clones share them.
#[derive(Clone)]
pub struct Pace {
    accounts: Accounts,
    owners: Arc<Mutex<HashMap<OwnerId, Owner>>>,
    start: Instant,
}

struct Owner {
    requests: Bucket,
    tokens: Bucket,
    /// In the order in which they may go.
    held: VecDeque<Paused>,
    /// Somebody is letting them go as time passes.
    watched: bool,
    /// The highest number of each run that has gone.
    gone: HashMap<ModelId, u64>,
}

/// What an account has used of its rates. `None` = not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub requests: Option<u64>,
    pub tokens: Option<u64>,
}

impl Pace {
    pub fn new(accounts: Accounts) -> Self {
        Self { accounts, owners: Arc::default(), start: Instant::now() }
    }

    /// Takes so many requests, of so many tokens together, out of the account's rates: all of them, or it says when to
    /// send them again.
    pub fn admit(&self, owner: &OwnerId, requests: u64, tokens: u64) -> Result<(), Full> {
        let quotas = self.accounts.quotas(owner);
        if !limited(&quotas) {
            return Ok(());
        }
        let (now, mut owners) = (self.now(), self.lock());
        let rates = entry(&mut owners, owner, &quotas, now);
        match rates.missing(&quotas, requests, tokens, now) {
            None => {
                rates.take(&quotas, requests, tokens, now);
                Ok(())
            }
            Some(missing) => Err(Full {
                why: format!("{}; send this request again {}", missing.quota, missing.when()),
                retry_after: Duration::try_from_secs_f64(missing.seconds).unwrap_or(Duration::MAX),
            }),
        }
    }

    /// A request of so many tokens was admitted, but makes no work.
    pub fn take_back(&self, owner: &OwnerId, tokens: u64) {
        let quotas = self.accounts.quotas(owner);
        let (now, mut owners) = (self.now(), self.lock());
        let Some(rates) = owners.get_mut(owner) else { return };
        if let Some(limit) = quotas.requests_per_minute {
            rates.requests.give_back(limit, 1, now);
        }
        if let Some(limit) = quotas.tokens_per_minute {
            rates.tokens.give_back(limit, tokens, now);
        }
    }

    /// A request that was admitted with `reserved` tokens to generate has ended and generated so many.
    pub fn settle(&self, owner: &OwnerId, reserved: u64, generated: u64) {
        let quotas = self.accounts.quotas(owner);
        if let Some(limit) = quotas.tokens_per_minute.filter(|_| reserved > 0 || generated > 0) {
            let (now, mut owners) = (self.now(), self.lock());
            let tokens = &mut entry(&mut owners, owner, &quotas, now).tokens;
            tokens.give_back(limit, reserved.saturating_sub(generated), now);
            tokens.take(limit, generated.saturating_sub(reserved), now);
        }
    }

    pub fn used(&self, owner: &OwnerId) -> Used {
        let quotas = self.accounts.quotas(owner);
        let (now, mut owners) = (self.now(), self.lock());
        let mut rates = owners.get_mut(owner);
        let mut used = |limit: Option<u64>, of: fn(&mut Owner) -> &mut Bucket| {
            limit.map(|limit| rates.as_deref_mut().map_or(0, |rates| of(rates).used(limit, now)))
        };
        Used {
            requests: used(quotas.requests_per_minute, |rates| &mut rates.requests),
            tokens: used(quotas.tokens_per_minute, |rates| &mut rates.tokens),
        }
    }

    /// Why this request of the owner has not gone to the engine yet; `None` when it has.
    pub fn reason(&self, owner: &OwnerId, id: &RequestId) -> Option<String> {
        let quotas = self.accounts.quotas(owner);
        let (now, mut owners) = (self.now(), self.lock());
        let rates = owners.get_mut(owner)?;
        let before = rates.held.iter().position(|held| held.id == *id)?;
        let first = rates.held.front()?.tokens;
        let missing = rates.missing(&quotas, 1, first, now)?;
        Some(match before {
            0 => format!("{}; this request goes on {}", missing.quota, missing.when()),
            n => format!(
                "{}; {n} of your requests wait before this one, the first goes on {}",
                missing.quota,
                missing.when()
            ),
        })
    }

    /// Gives the request to the engine: now if the account's rates allow it, else when they do. Requests of one account
    /// go in the order they came, those of one run by their numbers.
    pub(super) fn pass(&self, owner: &OwnerId, held: Paused, runtime: &tokio::runtime::Handle) {
        let quotas = self.accounts.quotas(owner);
        let now = self.now();
        let mut owners = self.lock();
        if !limited(&quotas) && !owners.contains_key(owner) {
            drop(owners);
            return (held.submit)();
        }
        let rates = entry(&mut owners, owner, &quotas, now);
        // The engine waits for this number already, and would not for ever.
        let awaited = rates.gone.get(&held.run).is_some_and(|gone| held.seq < *gone);
        if awaited || (rates.held.is_empty() && rates.missing(&quotas, 1, held.tokens, now).is_none()) {
            rates.let_go(&quotas, &held, now);
            drop(owners);
            return (held.submit)();
        }
        let later = rates.held.iter().position(|h| h.run == held.run && h.seq > held.seq);
        rates.held.insert(later.unwrap_or(rates.held.len()), held);
        if !std::mem::replace(&mut rates.watched, true) {
            runtime.spawn(self.clone().watch(owner.clone()));
        }
    }

    /// Nothing of this run waits any longer: the engine shall know all of it before the run ends.
    pub(super) fn release(&self, run: &ModelId) {
        let mut released = Vec::new();
        for rates in self.lock().values_mut() {
            rates.gone.remove(run);
            let (of_run, others): (VecDeque<_>, _) =
                std::mem::take(&mut rates.held).into_iter().partition(|held| held.run == *run);
            rates.held = others;
            released.extend(of_run);
        }
        released.into_iter().for_each(|held| (held.submit)());
    }

    /// Fails all that waits: the server ends.
    pub(super) fn close(&self) {
        let waiting: Vec<_> = self.lock().values_mut().map(|rates| std::mem::take(&mut rates.held)).collect();
        drop(waiting);
    }

    /// Lets an account's requests go as its rates allow, until none waits.
    async fn watch(self, owner: OwnerId) {
        loop {
            let (ready, wait) = self.take_ready(&owner);
            ready.into_iter().for_each(|held| (held.submit)());
            let Some(wait) = wait else { return };
            tokio::time::sleep(wait).await;
        }
    }

    /// What may go now, and after which time to ask again.
    fn take_ready(&self, owner: &OwnerId) -> (Vec<Paused>, Option<Duration>) {
        let quotas = self.accounts.quotas(owner);
        let (now, mut owners) = (self.now(), self.lock());
        let Some(rates) = owners.get_mut(owner) else { return (Vec::new(), None) };
        let mut ready = Vec::new();
        while let Some(first) = rates.held.pop_front() {
            if let Some(missing) = rates.missing(&quotas, 1, first.tokens, now) {
                rates.held.push_front(first);
                let wait = Duration::try_from_secs_f64(missing.seconds).unwrap_or(LOOK_AGAIN);
                return (ready, Some(wait.clamp(Duration::from_millis(5), LOOK_AGAIN)));
            }
            rates.let_go(&quotas, &first, now);
            ready.push(first);
        }
        rates.watched = false;
        (ready, None)
    }

    fn now(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<OwnerId, Owner>> {
        self.owners.lock().expect("no code panics while it holds the rates")
    }
}

/// What a request waits for.
struct Missing {
    /// Its name, limit and use.
    quota: String,
    seconds: f64,
}

impl Missing {
    fn when(&self) -> String {
        match self.seconds.is_finite() {
            true => format!("in {} s", self.seconds.ceil()),
            false => "when the quota is raised".into(),
        }
    }
}

impl Owner {
    fn take(&mut self, quotas: &Quotas, requests: u64, tokens: u64, now: f64) {
        if let Some(limit) = quotas.requests_per_minute {
            self.requests.take(limit, requests, now);
        }
        if let Some(limit) = quotas.tokens_per_minute {
            self.tokens.take(limit, tokens, now);
        }
    }

    fn let_go(&mut self, quotas: &Quotas, held: &Paused, now: f64) {
        self.take(quotas, 1, held.tokens, now);
        let gone = self.gone.entry(held.run.clone()).or_default();
        *gone = held.seq.max(*gone);
    }

    /// The quota that so many requests have to wait for longest, or `None` when they may go.
    fn missing(&mut self, quotas: &Quotas, requests: u64, tokens: u64, now: f64) -> Option<Missing> {
        let of = |name: &str, limit: Option<u64>, bucket: &mut Bucket, amount: u64| {
            let limit = limit?;
            let seconds = bucket.wait(limit, amount, now);
            let used = bucket.used(limit, now);
            let quota = || format!("quota {name}: limit {limit}, used {used} and this request takes {amount}");
            (seconds > 0.0).then(|| Missing { quota: quota(), seconds })
        };
        let requests = of("requests_per_minute", quotas.requests_per_minute, &mut self.requests, requests);
        let tokens = of("tokens_per_minute", quotas.tokens_per_minute, &mut self.tokens, tokens);
        requests.into_iter().chain(tokens).max_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }
}

fn limited(quotas: &Quotas) -> bool {
    quotas.requests_per_minute.is_some() || quotas.tokens_per_minute.is_some()
}

fn entry<'a>(owners: &'a mut HashMap<OwnerId, Owner>, owner: &OwnerId, quotas: &Quotas, now: f64) -> &'a mut Owner {
    owners.entry(owner.clone()).or_insert_with(|| Owner {
        requests: Bucket::new(quotas.requests_per_minute.unwrap_or_default(), now),
        tokens: Bucket::new(quotas.tokens_per_minute.unwrap_or_default(), now),
        held: VecDeque::new(),
        watched: false,
        gone: HashMap::new(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::futures::testing::owner;

    fn pace(requests: Option<u64>, tokens: Option<u64>) -> Pace {
        let quotas = Quotas { requests_per_minute: requests, tokens_per_minute: tokens, ..Quotas::default() };
        Pace::new(Accounts::new(quotas))
    }

    fn held(tx: &Sender<(String, u64)>, run: &str, seq: u64, tokens: u64) -> Paused {
        let (tx, what) = (tx.clone(), (run.to_owned(), seq));
        let submit = Box::new(move || tx.send(what).unwrap());
        Paused { id: RequestId(format!("{run}{seq}")), run: ModelId(run.into()), seq, tokens, submit }
    }

    fn gone(rx: &Receiver<(String, u64)>) -> Vec<u64> {
        rx.try_iter().map(|(_, seq)| seq).collect()
    }

    #[test]
    fn samples_beyond_a_quota_are_told_which() {
        let pace = pace(Some(2), Some(100));
        assert_eq!(pace.admit(&owner(), 1, 50), Ok(()));
        assert_eq!(pace.admit(&owner(), 1, 500).unwrap_err().why.split(';').next(), {
            Some("quota tokens_per_minute: limit 100, used 50 and this request takes 500")
        });
        assert_eq!(pace.admit(&owner(), 1, 1), Ok(()));
        let told = pace.admit(&owner(), 1, 1).unwrap_err();
        assert_eq!(told.retry_after.as_secs_f64().ceil(), 30.0);
        assert_eq!(
            told.why,
            "quota requests_per_minute: limit 2, used 2 and this request takes 1; send this request again in 30 s"
        );
        assert_eq!(pace.admit(&OwnerId("other".into()), 1, 100), Ok(()), "each account has rates of its own");
        pace.settle(&owner(), 0, 300);
        assert_eq!(pace.used(&owner()), Used { requests: Some(2), tokens: Some(351) });
        pace.settle(&owner(), 300, 20);
        assert_eq!(pace.used(&owner()).tokens, Some(71));
        assert_eq!(Pace::new(Accounts::default()).admit(&owner(), 1, 1 << 60), Ok(()));
    }

    #[test]
    fn requests_that_come_together_go_together_or_not_at_all() {
        let pace = pace(Some(2), Some(100));
        assert_eq!(pace.admit(&owner(), 1, 10), Ok(()));
        assert!(pace.admit(&owner(), 2, 20).unwrap_err().why.contains("limit 2, used 1 and this request takes 2"));
        assert_eq!(pace.used(&owner()), Used { requests: Some(1), tokens: Some(10) }, "nothing was taken");
        pace.take_back(&owner(), 10);
        assert_eq!(pace.used(&owner()), Used { requests: Some(0), tokens: Some(0) });
        assert_eq!(pace.admit(&owner(), 3, 20), Ok(()), "more than a minute's worth, while all of it is there");
        assert_eq!(pace.used(&owner()), Used { requests: Some(3), tokens: Some(20) });
    }

    #[tokio::test]
    async fn a_runs_requests_wait_in_order_and_say_why() {
        let (pace, (tx, rx)) = (pace(None, Some(60_000)), channel());
        let runtime = tokio::runtime::Handle::current();
        let pass = |seq, tokens| pace.pass(&owner(), held(&tx, "r", seq, tokens), &runtime);
        pass(1, 60_000);
        pass(4, 100);
        pass(3, 0);
        assert_eq!(gone(&rx), [1], "3 is of no tokens, but comes behind what waits");
        let why = |id: &str| pace.reason(&owner(), &RequestId(id.into()));
        let first = "quota tokens_per_minute: limit 60000, used ";
        assert!(why("r3").is_none(), "first of what waits, and no tokens are missing for it");
        assert_eq!(why("r1"), None);
        pass(2, 500);
        assert!(why("r2").unwrap().starts_with(first), "{:?}", why("r2"));
        assert!(why("r4").unwrap().contains("2 of your requests wait before this one"), "{:?}", why("r4"));
        let mut went = Vec::new();
        let all = async {
            while went.len() < 3 {
                tokio::time::sleep(Duration::from_millis(5)).await;
                went.extend(gone(&rx));
            }
        };
        tokio::time::timeout(Duration::from_secs(10), all).await.unwrap();
        assert_eq!(went, [2, 3, 4]);
        assert_eq!(why("r4"), None);
    }

    #[tokio::test]
    async fn a_number_the_engine_waits_for_goes_at_once_and_a_run_that_ends_waits_no_more() {
        let (pace, (tx, rx)) = (pace(Some(1), None), channel());
        let runtime = tokio::runtime::Handle::current();
        let pass = |run: &str, seq| pace.pass(&owner(), held(&tx, run, seq, 1), &runtime);
        pass("r", 2);
        pass("r", 1);
        assert_eq!(gone(&rx), [2, 1]);
        pass("r", 3);
        pass("q", 1);
        assert_eq!(gone(&rx), [0; 0]);
        pace.release(&ModelId("r".into()));
        assert_eq!(gone(&rx), [3]);
        pace.close();
        assert_eq!(pace.reason(&owner(), &RequestId("q1".into())), None);
        assert_eq!(gone(&rx), [0; 0], "what waited was dropped");
    }
}
