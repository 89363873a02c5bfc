//! What one account may take of the server.

use serde::{Deserialize, Serialize};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_optional() {
        assert_eq!(serde_json::from_str::<Quotas>("{}").unwrap(), Quotas::default());
        let some = Quotas { weight: 2.5, max_runs: Some(3), ..Quotas::default() };
        assert_eq!(serde_json::to_string(&some).unwrap(), r#"{"weight":2.5,"max_runs":3}"#);
        assert_eq!(serde_json::from_str::<Quotas>(r#"{"weight":2.5,"max_runs":3}"#).unwrap(), some);
    }
}
