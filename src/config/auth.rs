//! API keys and whose they are.

use std::collections::HashMap;
use std::fmt;

use sha2::{Digest, Sha256};

use super::env::Env;
use crate::error::{Error, Result};
use crate::ids::OwnerId;

/// What every key of the Tinker SDK begins with (protocol §2.1).
const PREFIX: &str = "tml-";

/// The accepted keys; none = any `tml-` key.
#[derive(Clone, Default)]
pub struct Auth {
    pub keys: Vec<String>,
}

/// Looks up the owner of a presented key.
#[derive(Clone)]
pub struct Keys {
    /// By SHA-256 of the key: how long a look-up takes says nothing about how much of a guess was right.
    owners: HashMap<[u8; 32], OwnerId>,
}

impl Auth {
    pub fn new(flags: Vec<String>, env: &Env) -> Result<Self> {
        let keys = if flags.is_empty() { env.list("TINDERBOX_API_KEY") } else { flags };
        for (i, key) in keys.iter().enumerate() {
            let visible = key.bytes().all(|b| b.is_ascii_graphic());
            if !key.starts_with(PREFIX) || key.len() == PREFIX.len() || !visible {
                return Err(Error::user(format!(
                    "--api-key number {}: a key is {PREFIX} and at least one further visible ASCII character; \
                     clients refuse any other",
                    i + 1
                )));
            }
        }
        Ok(Self { keys })
    }

    pub fn table(&self) -> Keys {
        Keys { owners: self.keys.iter().map(|key| (sha256(key), owner_of(key))).collect() }
    }
}

impl Keys {
    /// The owner, or `None` when the key is missing or unknown.
    pub fn owner(&self, key: Option<&str>) -> Option<OwnerId> {
        let key = key?;
        if self.owners.is_empty() {
            return key.starts_with(PREFIX).then(|| OwnerId("local".into()));
        }
        self.owners.get(&sha256(key)).cloned()
    }
}

/// Stable over restarts and not to be turned back into the key.
fn owner_of(key: &str) -> OwnerId {
    let digest = sha256(&format!("owner:{key}"));
    OwnerId(digest[..8].iter().map(|b| format!("{b:02x}")).collect())
}

fn sha256(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Auth {{ {} keys }}", self.keys.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auth(keys: &[&str]) -> Result<Auth> {
        Auth::new(keys.iter().map(|k| k.to_string()).collect(), &Env::for_testing(&[]))
    }

    #[test]
    fn each_key_is_an_owner_and_others_are_none() {
        let table = auth(&["tml-a", "tml-b"]).unwrap().table();
        let a = table.owner(Some("tml-a")).unwrap();
        // The start of sha256("owner:tml-a").
        assert_eq!(a, OwnerId("49c53c113efba56c".into()));
        assert_ne!(Some(a), table.owner(Some("tml-b")));
        for key in [None, Some(""), Some("tml-"), Some("tml-c"), Some("tml-ab")] {
            assert_eq!(table.owner(key), None, "{key:?}");
        }
    }

    #[test]
    fn without_keys_any_of_the_right_form_is_the_local_owner() {
        let table = Auth::default().table();
        assert_eq!(table.owner(Some("tml-anything")), Some(OwnerId("local".into())));
        assert_eq!(table.owner(Some("sk-other")), None);
        assert_eq!(table.owner(None), None);
    }

    #[test]
    fn keys_that_no_client_could_send_are_refused_without_repeating_them() {
        for key in ["", "secret", "tml-", "tml-a b"] {
            let message = auth(&["tml-ok", key]).unwrap_err().message;
            assert!(message.contains("number 2") && !message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn the_variable_is_comma_separated() {
        let env = Env::for_testing(&[("TINDERBOX_API_KEY", "tml-a,tml-b")]);
        assert_eq!(Auth::new(vec![], &env).unwrap().keys, ["tml-a", "tml-b"]);
    }
}
