//! What each account may take, and what it took.

pub mod bucket;
pub mod runs;
pub mod speed;
pub mod tally;
pub mod usage;

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use crate::config::quotas::Quotas;
use crate::ids::OwnerId;

/// The quotas of every account. Clones share them.
#[derive(Clone, Default)]
pub struct Accounts {
    defaults: Arc<Quotas>,
    own: Arc<RwLock<HashMap<OwnerId, Quotas>>>,
}

impl Accounts {
    /// `defaults` hold for accounts that have none of their own, and where those say nothing.
    pub fn new(defaults: Quotas) -> Self {
        Self { defaults: Arc::new(defaults), own: Arc::default() }
    }

    pub fn quotas(&self, owner: &OwnerId) -> Quotas {
        let own = self.own.read().expect("no code panics while it holds the quotas");
        own.get(owner).map_or_else(|| (*self.defaults).clone(), |quotas| quotas.or(&self.defaults))
    }

    /// Takes the place of all accounts' own quotas; effective at once.
    pub fn set_all(&self, own: HashMap<OwnerId, Quotas>) {
        *self.own.write().expect("no code panics while it holds the quotas") = own;
    }

    /// One account's own quotas; effective at once.
    pub fn set(&self, owner: OwnerId, quotas: Quotas) {
        self.own.write().expect("no code panics while it holds the quotas").insert(owner, quotas);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_without_quotas_has_the_defaults() {
        let accounts = Accounts::new(Quotas { max_runs: Some(3), ..Quotas::default() });
        let (a, b) = (OwnerId("a".into()), OwnerId("b".into()));
        accounts.clone().set(a.clone(), Quotas { disk_bytes: Some(7), weight: 2.0, ..Quotas::default() });
        let a = accounts.quotas(&a);
        assert_eq!((a.max_runs, a.disk_bytes, a.weight), (Some(3), Some(7), 2.0));
        assert_eq!(accounts.quotas(&b), Quotas { max_runs: Some(3), ..Quotas::default() });
        accounts.set_all(HashMap::new());
        assert_eq!(accounts.quotas(&OwnerId("a".into())).disk_bytes, None);
    }
}
