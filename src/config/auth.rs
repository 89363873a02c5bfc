//! API keys: those given as flags and whose they are, and what every key is.

use std::fmt;

use sha2::{Digest, Sha256};

use super::env::Env;
use crate::error::{Error, Result};
use crate::ids::OwnerId;

/// What every key of the Tinker SDK begins with (protocol §2.1).
pub const PREFIX: &str = "tml-";

/// The keys given as flags.
#[derive(Clone, Default)]
pub struct Auth {
    pub keys: Vec<String>,
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

    /// The SHA-256 of each key and the account it opens.
    pub fn accounts(&self) -> impl Iterator<Item = ([u8; 32], OwnerId)> {
        self.keys.iter().map(|key| (sha256(key), owner_of(key)))
    }
}

/// What is kept of a key. How long a look-up by it takes says nothing about how much of a guess was right.
pub fn sha256(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Stable over restarts and not to be turned back into the key.
fn owner_of(key: &str) -> OwnerId {
    let digest = sha256(&format!("owner:{key}"));
    OwnerId(hex::encode(&digest[..8]))
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
    fn each_key_is_an_account_that_stays_the_same() {
        let auth = auth(&["tml-a", "tml-b"]).unwrap();
        let [a, b] = auth.accounts().map(|(_, owner)| owner).collect::<Vec<_>>().try_into().unwrap();
        // The start of sha256("owner:tml-a").
        assert_eq!(a, OwnerId("49c53c113efba56c".into()));
        assert_ne!(a, b);
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
