//! Whom a key or token stands for: the flags' keys and the database's, in memory, so that no request asks the database.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, RwLock};

use chrono::{DateTime, Utc};

use crate::config::auth::{Auth, PREFIX, sha256};
use crate::config::quotas::Quotas;
use crate::error::Result;
use crate::ids::OwnerId;
use crate::store::Store;
use crate::store::keys::KeyRow;

use super::tokens::{Claims, Tokens};

/// The account of those who need no key.
const LOCAL: &str = "local";

const MISSING: &str = "the header X-API-Key is missing; send a key that begins with tml-";
const UNKNOWN: &str = "the API key is not known to this server";
const NO_KEY_OF_OURS: &str = "that is no API key of this server: its keys begin with tml-";

/// The owner of every request: which key is presented, and whose it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Caller {
    pub owner: OwnerId,
    /// What the key is called.
    pub name: String,
    pub key: KeyRef,
    /// The end of the token that was presented instead of the key.
    pub until: Option<DateTime<Utc>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRef {
    /// None is needed.
    Open,
    /// The flag's number, from 1.
    Flag(usize),
    /// The row's id.
    Row(i64),
}

/// Why a request is not let in; for its sender, so it names no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub why: &'static str,
    /// A new token may help: the client exchanges its key again (protocol §2.4).
    pub token: bool,
    /// Whose key it was, where that is known.
    pub owner: Option<OwnerId>,
}

/// Looks keys up. The database's are as of the last [`Keys::refresh`].
pub struct Keys {
    flags: HashMap<[u8; 32], (usize, OwnerId)>,
    rows: RwLock<Arc<Rows>>,
    /// Held during a refresh, so that an older state never takes the place of a newer one.
    refreshing: tokio::sync::Mutex<()>,
    tokens: Tokens,
    /// Without any key, whoever reaches the server may use it; so only where that is this machine.
    loopback: bool,
}

#[derive(Default)]
struct Rows {
    by_hash: HashMap<[u8; 32], Arc<Row>>,
    by_id: HashMap<i64, Arc<Row>>,
    quotas: HashMap<OwnerId, Quotas>,
    changes: i64,
}

struct Row {
    key: KeyRow,
    /// Microseconds since 1970; 0 = not since it was last written.
    used: AtomicI64,
}

impl Keys {
    /// The flags' keys; the database's come with the first refresh.
    pub fn new(auth: &Auth, tokens: Tokens, loopback: bool) -> Self {
        let flags = auth.accounts().enumerate().map(|(i, (hash, owner))| (hash, (i + 1, owner))).collect();
        // The first refresh finds another number.
        let rows = Rows { changes: -1, ..Rows::default() };
        Self { flags, rows: RwLock::new(Arc::new(rows)), refreshing: tokio::sync::Mutex::default(), tokens, loopback }
    }

    /// Who presents this key or token.
    pub fn caller(&self, presented: Option<&str>, now: DateTime<Utc>) -> Result<Caller, Refused> {
        let presented = presented.ok_or_else(|| Refused::key(MISSING, None))?;
        match presented.starts_with("eyJ") {
            true => self.of_token(presented, now),
            false => self.of_key(presented, now),
        }
    }

    /// A token for this caller, which ends no later than the one that was presented for it.
    pub fn token(&self, caller: &Caller, now: DateTime<Utc>) -> String {
        let key = match caller.key {
            KeyRef::Open => LOCAL.into(),
            KeyRef::Flag(_) => format!("flag:{}", caller.owner),
            KeyRef::Row(id) => format!("key:{id}"),
        };
        self.tokens.issue(&caller.owner, &caller.name, key, now, caller.until)
    }

    /// Refuses a caller whose key has ended since it came in. A token that has expired meanwhile is no reason: whoever
    /// came in with it in time has its answer.
    pub fn still_good(&self, key: KeyRef, now: DateTime<Utc>) -> Result<(), Refused> {
        let rows = self.rows();
        let gone = || Refused::key("the API key is not known any more", None);
        match key {
            KeyRef::Open => self.is_open(&rows).then_some(()).ok_or_else(gone),
            KeyRef::Flag(_) => Ok(()),
            KeyRef::Row(id) => rows.by_id.get(&id).ok_or_else(gone)?.usable(now),
        }
    }

    /// What each account may take, as its newest usable key says.
    pub fn all_quotas(&self) -> HashMap<OwnerId, Quotas> {
        self.rows().quotas.clone()
    }

    /// Takes over what was done to the database's keys since the last time. A key that expires changes no row: its
    /// quotas stay until the next change, and matter to the requests it left alone. True when anything changed.
    pub async fn refresh(&self, store: &Store) -> Result<bool> {
        let _one_at_a_time = self.refreshing.lock().await;
        let changes = store.key_changes().await?;
        let old = self.rows();
        if changes == old.changes {
            return Ok(false);
        }
        let fresh = Rows::new(store.keys().await?, &old, changes, Utc::now());
        *self.rows.write().expect("no code panics while it holds the keys") = Arc::new(fresh);
        Ok(true)
    }

    /// Keys used since the last call, with the time of their last use.
    pub fn take_used(&self) -> Vec<(i64, DateTime<Utc>)> {
        let take = |row: &Arc<Row>| match row.used.swap(0, Ordering::Relaxed) {
            0 => None,
            micros => Some((row.key.id, DateTime::from_timestamp_micros(micros)?)),
        };
        self.rows().by_id.values().filter_map(take).collect()
    }

    /// How many keys are usable.
    pub fn usable(&self, now: DateTime<Utc>) -> usize {
        self.flags.len() + self.rows().by_id.values().filter(|row| row.key.ended(now).is_none()).count()
    }

    fn of_key(&self, key: &str, now: DateTime<Utc>) -> Result<Caller, Refused> {
        let rows = self.rows();
        if self.is_open(&rows) && key.starts_with(PREFIX) {
            return Ok(open_caller());
        }
        let hash = sha256(key);
        if let Some((number, owner)) = self.flags.get(&hash) {
            return Ok(flag_caller(*number, owner));
        }
        let unknown = || Refused::key(if key.starts_with(PREFIX) { UNKNOWN } else { NO_KEY_OF_OURS }, None);
        rows.by_hash.get(&hash).ok_or_else(unknown)?.caller(now)
    }

    /// The token is ours and young enough, and its key still good.
    fn of_token(&self, token: &str, now: DateTime<Utc>) -> Result<Caller, Refused> {
        let claims = self.tokens.verify(token, now).map_err(|why| Refused { why, token: true, owner: None })?;
        let until = DateTime::from_timestamp(claims.exp, 0);
        let caller = self.of_claims(&claims, now).map_err(|refused| Refused { token: true, ..refused })?;
        Ok(Caller { until, ..caller })
    }

    fn of_claims(&self, claims: &Claims, now: DateTime<Utc>) -> Result<Caller, Refused> {
        let gone = || Refused::key("the API key that the token was made for is not known any more", None);
        let rows = self.rows();
        if claims.key == LOCAL && self.is_open(&rows) {
            return Ok(open_caller());
        }
        if let Some(owner) = claims.key.strip_prefix("flag:") {
            let flag = self.flags.values().find(|(_, flag)| flag.0 == owner).ok_or_else(gone)?;
            return Ok(flag_caller(flag.0, &flag.1));
        }
        let id = claims.key.strip_prefix("key:").and_then(|id| id.parse().ok());
        id.and_then(|id: i64| rows.by_id.get(&id)).ok_or_else(gone)?.caller(now)
    }

    /// A key that has ended counts too: to withdraw the last one must not open the server to all.
    fn is_open(&self, rows: &Rows) -> bool {
        self.loopback && self.flags.is_empty() && rows.by_id.is_empty()
    }

    fn rows(&self) -> Arc<Rows> {
        self.rows.read().expect("no code panics while it holds the keys").clone()
    }
}

impl Rows {
    fn new(keys: Vec<KeyRow>, old: &Self, changes: i64, now: DateTime<Utc>) -> Self {
        let mut rows = Self { changes, ..Self::default() };
        for key in keys {
            if key.ended(now).is_none() {
                rows.quotas.insert(key.owner.clone(), key.quotas.clone());
            }
            let used = old.by_id.get(&key.id).map_or(0, |old| old.used.load(Ordering::Relaxed));
            let row = Arc::new(Row { key, used: AtomicI64::new(used) });
            rows.by_hash.insert(row.key.hash, row.clone());
            rows.by_id.insert(row.key.id, row);
        }
        rows
    }
}

impl Row {
    fn caller(&self, now: DateTime<Utc>) -> Result<Caller, Refused> {
        self.usable(now)?;
        self.used.store(now.timestamp_micros(), Ordering::Relaxed);
        let KeyRow { id, name, owner, .. } = &self.key;
        Ok(Caller { owner: owner.clone(), name: name.clone(), key: KeyRef::Row(*id), until: None })
    }

    fn usable(&self, now: DateTime<Utc>) -> Result<(), Refused> {
        match self.key.ended(now) {
            None => Ok(()),
            Some("expired") => Err(Refused::key("the API key has expired", Some(&self.key.owner))),
            Some(_) => Err(Refused::key("the API key was revoked", Some(&self.key.owner))),
        }
    }
}

impl Refused {
    fn key(why: &'static str, owner: Option<&OwnerId>) -> Self {
        Self { why, token: false, owner: owner.cloned() }
    }
}

fn open_caller() -> Caller {
    Caller { owner: OwnerId(LOCAL.into()), name: LOCAL.into(), key: KeyRef::Open, until: None }
}

fn flag_caller(number: usize, owner: &OwnerId) -> Caller {
    Caller { owner: owner.clone(), name: format!("api-key-{number}"), key: KeyRef::Flag(number), until: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::keys::NewKey;
    use crate::store::testing::{empty_store, key};
    use chrono::TimeDelta;
    use std::time::Duration;

    fn keys(flags: &[&str], loopback: bool) -> Keys {
        let auth = Auth { keys: flags.iter().map(|k| k.to_string()).collect() };
        Keys::new(&auth, Tokens::new([1; 32], Duration::from_secs(100)), loopback)
    }

    fn why(keys: &Keys, key: &str) -> &'static str {
        keys.caller(Some(key), Utc::now()).unwrap_err().why
    }

    #[test]
    fn each_flag_is_an_account_and_other_keys_are_none() {
        let keys = keys(&["tml-a", "tml-b"], true);
        let a = keys.caller(Some("tml-a"), Utc::now()).unwrap();
        // The start of sha256("owner:tml-a").
        assert_eq!((a.owner, a.key), (OwnerId("49c53c113efba56c".into()), KeyRef::Flag(1)));
        assert_eq!(keys.caller(Some("tml-b"), Utc::now()).unwrap().key, KeyRef::Flag(2));
        for key in [None, Some(""), Some("tml-"), Some("tml-c"), Some("tml-ab")] {
            assert!(!keys.caller(key, Utc::now()).unwrap_err().token, "{key:?}");
        }
    }

    #[test]
    fn without_keys_this_machine_alone_needs_none() {
        let open = keys(&[], true);
        let local = open.caller(Some("tml-anything"), Utc::now()).unwrap();
        assert_eq!((local.owner, local.key), (OwnerId("local".into()), KeyRef::Open));
        assert!(open.caller(Some("sk-other"), Utc::now()).is_err() && open.caller(None, Utc::now()).is_err());
        assert!(keys(&[], false).caller(Some("tml-anything"), Utc::now()).is_err());
    }

    #[tokio::test]
    async fn a_key_in_the_database_closes_the_server_for_good() {
        let store = empty_store().await;
        let keys = keys(&[], true);
        keys.refresh(&store).await.unwrap();
        let local = keys.token(&keys.caller(Some("tml-x"), Utc::now()).unwrap(), Utc::now());
        let quotas = Quotas { weight: 3.0, ..Quotas::default() };
        let ann = store.insert_key(NewKey { quotas, ..key("ann", "tml-1") }).await.unwrap();
        assert!(keys.caller(Some("tml-x"), Utc::now()).is_ok(), "as of the last refresh");
        keys.refresh(&store).await.unwrap();
        assert_eq!(why(&keys, "tml-x"), "the API key is not known to this server");
        assert!(keys.caller(Some(&local), Utc::now()).unwrap_err().token);
        let caller = keys.caller(Some("tml-1"), Utc::now()).unwrap();
        assert_eq!((caller.owner, caller.key), (ann.owner.clone(), KeyRef::Row(1)));
        assert!(keys.still_good(KeyRef::Open, Utc::now()).is_err() && keys.still_good(caller.key, Utc::now()).is_ok());
        assert_eq!(keys.all_quotas()[&ann.owner].weight, 3.0);
        store.revoke_keys(&[1], Utc::now()).await.unwrap();
        keys.refresh(&store).await.unwrap();
        let refused = keys.caller(Some("tml-1"), Utc::now()).unwrap_err();
        assert_eq!(keys.still_good(KeyRef::Row(1), Utc::now()), Err(refused.clone()));
        assert_eq!((refused.why, refused.owner), ("the API key was revoked", Some(ann.owner)));
        assert!(keys.caller(Some("tml-x"), Utc::now()).is_err(), "still closed");
    }

    #[tokio::test]
    async fn keys_end_at_their_time_without_a_refresh() {
        let store = empty_store().await;
        let keys = keys(&[], true);
        let end = Utc::now() + TimeDelta::hours(1);
        store.insert_key(NewKey { expires_at: Some(end), ..key("ann", "tml-1") }).await.unwrap();
        store.insert_key(key("bob", "tml-2")).await.unwrap();
        store.rotate_key("bob", sha256("tml-3"), end).await.unwrap();
        keys.refresh(&store).await.unwrap();
        let token = keys.token(&keys.caller(Some("tml-2"), Utc::now()).unwrap(), end);
        for key in ["tml-1", "tml-2", "tml-3"] {
            assert!(keys.caller(Some(key), end - TimeDelta::seconds(1)).is_ok(), "{key}");
        }
        assert_eq!(keys.caller(Some("tml-1"), end).unwrap_err().why, "the API key has expired");
        assert_eq!(keys.caller(Some("tml-2"), end).unwrap_err().why, "the API key was revoked");
        assert_eq!(keys.caller(Some("tml-3"), end).unwrap().owner, OwnerId("bob".into()));
        let refused = keys.caller(Some(&token), end).unwrap_err();
        assert!(refused.token && refused.why == "the API key was revoked");
    }

    #[tokio::test]
    async fn a_token_stands_for_its_key() {
        let store = empty_store().await;
        let keys = keys(&["tml-a"], true);
        store.insert_key(key("ann", "tml-1")).await.unwrap();
        keys.refresh(&store).await.unwrap();
        let now = Utc::now();
        for key in ["tml-a", "tml-1"] {
            let caller = keys.caller(Some(key), now).unwrap();
            let token = keys.token(&caller, now);
            let by_token = keys.caller(Some(&token), now).unwrap();
            assert_eq!(Caller { until: None, ..by_token.clone() }, caller);
            // A token got with a token ends with it.
            let later = now + TimeDelta::seconds(60);
            let second = keys.token(&by_token, later);
            assert!(keys.caller(Some(&second), now + TimeDelta::seconds(99)).is_ok());
            assert!(keys.caller(Some(&second), now + TimeDelta::seconds(100)).unwrap_err().token);
        }
    }

    #[test]
    fn who_shows_something_else_is_told_how_keys_begin() {
        for keys in [keys(&[], true), keys(&["tml-a"], true)] {
            for foreign in ["foo", "sk-1", ""] {
                let refused = keys.caller(Some(foreign), Utc::now()).unwrap_err();
                assert_eq!(refused.why, "that is no API key of this server: its keys begin with tml-", "{foreign}");
            }
        }
        let refused = keys(&["tml-a"], true).caller(Some("tml-b"), Utc::now()).unwrap_err();
        assert_eq!(refused.why, "the API key is not known to this server");
    }

    #[tokio::test]
    async fn uses_are_taken_once_and_outlive_a_refresh() {
        let store = empty_store().await;
        let keys = keys(&[], true);
        store.insert_key(key("ann", "tml-1")).await.unwrap();
        keys.refresh(&store).await.unwrap();
        assert_eq!(keys.take_used(), []);
        keys.caller(Some("tml-1"), Utc::now()).unwrap();
        store.insert_key(key("bob", "tml-2")).await.unwrap();
        keys.refresh(&store).await.unwrap();
        assert_eq!(keys.take_used().iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1]);
        assert_eq!(keys.take_used(), []);
    }
}
