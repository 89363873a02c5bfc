//! Small texts of requests: `Range`, query strings, the numbers of bodies that cannot be read, versions, dates.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tinderbox::api::fuzzing::{number_of, page, query_of, ranged};
use tinderbox::validate::{billing, sdk_version};
use tinderbox_client::types::audit::AuditQuery;
use tinderbox_client::types::billing::{BillingUsageQuery, CheckpointStorageQuery};
use tinderbox_client::types::checkpoints::{CheckpointsQuery, RunsQuery, ScopeQuery};
use tinderbox_client::types::usage::UsageQuery;

fuzz_target!(|input: (u64, &str)| {
    let (size, text) = input;
    let part = ranged(text, size);
    assert!(part.start <= part.end && part.end <= size);
    assert!(part.is_empty() == (part == (0..0)), "an empty part has no place in an answer");

    number_of(text.as_bytes()).inspect(|(_, number)| assert!(*number > 0));
    let _ = sdk_version::supported(text);
    if let Ok((from, until)) = billing::day(text) {
        assert_eq!((until - from).num_hours(), 24);
    }
    if let Some((from, until)) = text.split_once(' ')
        && let Ok((from, until)) = billing::window(Some(from), Some(until), chrono_now())
    {
        assert!(from < until && (until - from).num_days() <= 14 && from <= chrono_now());
    }
    if let Some(q) = read::<RunsQuery>(text)
        && let Ok((limit, offset)) = page(q.limit, q.offset)
    {
        assert!(limit <= 1000 && offset <= i64::MAX as u64);
    }
    read::<CheckpointsQuery>(text);
    read::<ScopeQuery>(text);
    read::<AuditQuery>(text);
    read::<BillingUsageQuery>(text);
    read::<CheckpointStorageQuery>(text);
    read::<UsageQuery>(text);
});

/// A query as it was read, once it can be told again as JSON.
fn read<T: Serialize + DeserializeOwned>(text: &str) -> Option<T> {
    let query: T = query_of(text)?;
    let json = serde_json::to_string(&query).expect("a query is JSON");
    let again: T = serde_json::from_str(&json).expect("as it was written");
    assert_eq!(serde_json::to_string(&again).expect("a query is JSON"), json);
    Some(query)
}

fn chrono_now() -> chrono::DateTime<chrono::Utc> {
    chrono::DateTime::from_timestamp(1_800_000_000, 0).expect("a time in 2027")
}
