//! What one account may take. The server's defaults come from the environment; a key may carry quotas of its own.

use serde::{Deserialize, Serialize};

use super::env::Env;
use super::limits::{optional_bytes, ranged, whole};
use crate::error::Result;

/// `None` = as the server's default says; a default that is `None` = no limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quotas {
    /// Share of device time against other accounts that want some at the same time.
    pub weight: f64,
    /// Training runs in memory at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_runs: Option<u64>,
    /// Requests that start work. A minute's worth may come at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u64>,
    /// Tokens trained on, prompt tokens and generated tokens, together. A minute's worth may come at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_minute: Option<u64>,
    /// Requests that are not finished; without one, `TINDERBOX_PENDING_REQUESTS`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_requests: Option<u64>,
    /// Bytes of all checkpoints together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            weight: 1.0,
            max_runs: None,
            requests_per_minute: None,
            tokens_per_minute: None,
            pending_requests: None,
            disk_bytes: None,
        }
    }
}

impl Quotas {
    /// The defaults of accounts that have none of their own. Errors are the user's and name variable, value and range.
    pub fn from_env(env: &Env) -> Result<Self> {
        let range = 1..=1 << 50;
        let count = |name| whole(env, name, "", &range)?.map(|n| ranged(name, n, range.clone())).transpose();
        Ok(Self {
            max_runs: count("TINDERBOX_QUOTA_MAX_RUNS")?,
            requests_per_minute: count("TINDERBOX_QUOTA_REQUESTS_PER_MINUTE")?,
            tokens_per_minute: count("TINDERBOX_QUOTA_TOKENS_PER_MINUTE")?,
            disk_bytes: optional_bytes(env, "TINDERBOX_QUOTA_DISK_BYTES")?,
            ..Self::default()
        })
    }

    /// These, and `defaults` where they say nothing.
    pub fn or(&self, defaults: &Self) -> Self {
        Self {
            weight: self.weight,
            max_runs: self.max_runs.or(defaults.max_runs),
            requests_per_minute: self.requests_per_minute.or(defaults.requests_per_minute),
            tokens_per_minute: self.tokens_per_minute.or(defaults.tokens_per_minute),
            pending_requests: self.pending_requests.or(defaults.pending_requests),
            disk_bytes: self.disk_bytes.or(defaults.disk_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_limited_unless_a_variable_says_so() {
        assert_eq!(Quotas::from_env(&Env::empty()).unwrap(), Quotas::default());
        let env = Env::for_testing(&[
            ("TINDERBOX_QUOTA_MAX_RUNS", "2"),
            ("TINDERBOX_QUOTA_REQUESTS_PER_MINUTE", "60"),
            ("TINDERBOX_QUOTA_TOKENS_PER_MINUTE", "100000"),
            ("TINDERBOX_QUOTA_DISK_BYTES", "2GiB"),
        ]);
        let quotas = Quotas::from_env(&env).unwrap();
        assert_eq!((quotas.max_runs, quotas.requests_per_minute), (Some(2), Some(60)));
        assert_eq!((quotas.tokens_per_minute, quotas.disk_bytes), (Some(100_000), Some(2 << 30)));
        let wrong = Env::for_testing(&[("TINDERBOX_QUOTA_MAX_RUNS", "0")]);
        assert!(Quotas::from_env(&wrong).unwrap_err().message.contains("TINDERBOX_QUOTA_MAX_RUNS=0"));
    }

    #[test]
    fn an_accounts_own_quota_wins_over_the_default() {
        let own: Quotas = serde_json::from_str(r#"{"weight": 2, "max_runs": 5}"#).unwrap();
        let defaults = Quotas { max_runs: Some(1), disk_bytes: Some(9), weight: 7.0, ..Quotas::default() };
        let both = Quotas { weight: 2.0, max_runs: Some(5), disk_bytes: Some(9), ..Quotas::default() };
        assert_eq!(own.or(&defaults), both);
        assert_eq!(serde_json::to_string(&own).unwrap(), r#"{"weight":2.0,"max_runs":5}"#);
        assert!(serde_json::from_str::<Quotas>(r#"{"max_run": 5}"#).is_err());
    }
}
