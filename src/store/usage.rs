//! What each account took, by hour (protocol §7.19). Counts are added up here and never taken back.

use std::collections::HashMap;
use std::ops::AddAssign;

use chrono::{DateTime, Utc};
use sqlx::any::AnyRow;

use super::Store;
use super::columns::{Columns, int, micros};
use crate::error::Result;
use crate::ids::{ModelId, OwnerId, SamplerId, SessionId};

/// Whose, when and for what.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UsageKey {
    pub owner: OwnerId,
    /// The beginning of the hour, in UTC.
    pub hour: DateTime<Utc>,
    /// `None` for storage.
    pub session: Option<SessionId>,
    /// The run trained, or whose weights were sampled or stored.
    pub run: Option<ModelId>,
    /// Only where no run is known.
    pub sampler: Option<SamplerId>,
    pub base_model: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Of `forward`.
    pub forward_tokens: u64,
    /// Of `forward_backward`.
    pub train_tokens: u64,
    /// Prompt tokens that were run.
    pub prefill_tokens: u64,
    /// Prompt tokens whose keys and values were there already.
    pub cached_prefill_tokens: u64,
    pub sampled_tokens: u64,
    /// Checkpoints written, of any kind.
    pub checkpoints: u64,
    pub storage_byte_seconds: u64,
    pub device_micros: u64,
}

/// Rows to read: `from` inclusive, `until` exclusive.
#[derive(Clone, Debug)]
pub struct UsageFilter {
    pub owner: OwnerId,
    pub from: DateTime<Utc>,
    pub until: DateTime<Utc>,
    pub session: Option<SessionId>,
    pub run: Option<ModelId>,
}

impl Store {
    /// Adds to what is there: all rows or none.
    pub async fn add_usage(&self, rows: &HashMap<UsageKey, Counters>) -> Result<()> {
        let columns = Counters::default().columns().map(|(name, _)| name);
        let sums = columns.map(|c| format!("{c} = usage.{c} + excluded.{c}")).join(", ");
        let sql = format!(
            "INSERT INTO usage (owner, hour, session_id, run_id, sampler_id, base_model, {}) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) \
             ON CONFLICT (owner, hour, session_id, run_id, sampler_id, base_model) DO UPDATE SET {sums}",
            columns.join(", ")
        );
        let mut transaction = self.pool.begin().await?;
        for (key, mut counters) in rows.iter().map(|(key, counters)| (key, *counters)) {
            let mut query = sqlx::query(&sql)
                .bind(&key.owner.0)
                .bind(micros(key.hour))
                .bind(key.session.as_ref().map_or("", |s| &s.0))
                .bind(key.run.as_ref().map_or("", |r| &r.0))
                .bind(key.sampler.as_ref().map_or("", |s| &s.0))
                .bind(&key.base_model);
            for (_, value) in counters.columns() {
                query = query.bind(int(*value));
            }
            query.execute(&mut *transaction).await?;
        }
        Ok(transaction.commit().await?)
    }

    /// An account's sums by hour, session and base model, oldest hour first.
    pub async fn usage_by_hour(&self, filter: &UsageFilter) -> Result<Vec<(UsageKey, Counters)>> {
        self.usage_sums(filter, "hour", "'' AS run_id, '' AS sampler_id", "session_id, base_model").await
    }

    /// An account's sums by day, session, run or sampler, and base model, oldest day first; each key's hour is the
    /// beginning of the day.
    pub async fn usage_by_day(&self, filter: &UsageFilter) -> Result<Vec<(UsageKey, Counters)>> {
        let day = "(hour / 86400000000) * 86400000000";
        self.usage_sums(filter, day, "run_id, sampler_id", "session_id, run_id, sampler_id, base_model").await
    }

    async fn usage_sums(
        &self,
        filter: &UsageFilter,
        bucket: &str,
        work: &str,
        group: &str,
    ) -> Result<Vec<(UsageKey, Counters)>> {
        let sum = |(c, _): (&str, &mut u64)| format!("CAST(SUM({c}) AS BIGINT) AS {c}");
        let sums = Counters::default().columns().map(sum).join(", ");
        let sql = format!(
            "SELECT owner, {bucket} AS bucket, session_id, {work}, base_model, {sums} FROM usage \
             WHERE owner = $1 AND hour >= $2 AND hour < $3 \
             AND ($4 = '' OR session_id = $4) AND ($5 = '' OR run_id = $5) \
             GROUP BY owner, {bucket}, {group} ORDER BY bucket, {group}"
        );
        let rows = sqlx::query(&sql)
            .bind(&filter.owner.0)
            .bind(micros(filter.from))
            .bind(micros(filter.until))
            .bind(filter.session.as_ref().map_or("", |s| &s.0))
            .bind(filter.run.as_ref().map_or("", |r| &r.0))
            .fetch_all(&self.pool)
            .await?;
        rows.iter().map(read).collect()
    }

    /// The sweep: removes hours before `time`; returns how many rows.
    pub async fn purge_usage(&self, time: DateTime<Utc>) -> Result<u64> {
        let query = sqlx::query("DELETE FROM usage WHERE hour < $1").bind(micros(time));
        Ok(query.execute(&self.pool).await?.rows_affected())
    }
}

impl UsageFilter {
    /// Of all sessions and runs.
    pub fn all(owner: &OwnerId, from: DateTime<Utc>, until: DateTime<Utc>) -> Self {
        Self { owner: owner.clone(), from, until, session: None, run: None }
    }
}

impl Counters {
    /// Each with the name of its column.
    fn columns(&mut self) -> [(&'static str, &mut u64); 8] {
        [
            ("forward_tokens", &mut self.forward_tokens),
            ("train_tokens", &mut self.train_tokens),
            ("prefill_tokens", &mut self.prefill_tokens),
            ("cached_prefill_tokens", &mut self.cached_prefill_tokens),
            ("sampled_tokens", &mut self.sampled_tokens),
            ("checkpoints", &mut self.checkpoints),
            ("storage_byte_seconds", &mut self.storage_byte_seconds),
            ("device_micros", &mut self.device_micros),
        ]
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, mut other: Self) {
        for ((_, sum), (_, more)) in self.columns().into_iter().zip(other.columns()) {
            *sum += *more;
        }
    }
}

fn read(row: &AnyRow) -> Result<(UsageKey, Counters)> {
    let named = |column| Ok::<_, crate::error::Error>(Some(row.text(column)?).filter(|text| !text.is_empty()));
    let key = UsageKey {
        owner: OwnerId(row.text("owner")?),
        hour: row.time("bucket")?,
        session: named("session_id")?.map(SessionId),
        run: named("run_id")?.map(ModelId),
        sampler: named("sampler_id")?.map(SamplerId),
        base_model: row.text("base_model")?,
    };
    let mut counters = Counters::default();
    for (name, value) in counters.columns() {
        *value = row.number(name)?;
    }
    Ok((key, counters))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::{DurationRound, TimeDelta};

    fn key(owner: &str, hour: i64, run: Option<&str>) -> UsageKey {
        UsageKey {
            owner: OwnerId(owner.into()),
            // From 2023-11-14T10:00:00Z.
            hour: DateTime::from_timestamp(1_699_956_000 + hour * 3600, 0).unwrap(),
            session: run.map(|_| SessionId("s".into())),
            run: run.map(|r| ModelId(r.into())),
            sampler: run.is_none().then(|| SamplerId("s:sample:0".into())),
            base_model: "m".into(),
        }
    }

    #[tokio::test]
    async fn counts_add_up_and_read_back() {
        let store = crate::store::testing::empty_store().await;
        let each = Counters {
            forward_tokens: 1,
            train_tokens: 2,
            prefill_tokens: 3,
            cached_prefill_tokens: 4,
            sampled_tokens: 5,
            checkpoints: 6,
            storage_byte_seconds: 1 << 52,
            device_micros: 8,
        };
        let (run, none) = (key("o", 0, Some("r")), key("o", 1, None));
        for _ in 0..2 {
            let rows = [run.clone(), none.clone(), key("other", 0, Some("r"))].map(|key| (key, each));
            store.add_usage(&HashMap::from(rows)).await.unwrap();
        }
        let twice = Counters {
            forward_tokens: 2,
            train_tokens: 4,
            prefill_tokens: 6,
            cached_prefill_tokens: 8,
            sampled_tokens: 10,
            checkpoints: 12,
            storage_byte_seconds: 1 << 53,
            device_micros: 16,
        };
        let mut sum = each;
        sum += each;
        assert_eq!(sum, twice);
        let mut filter = UsageFilter::all(&run.owner, run.hour, none.hour + TimeDelta::hours(1));
        let day =
            |key: &UsageKey| UsageKey { hour: key.hour.duration_trunc(TimeDelta::days(1)).unwrap(), ..key.clone() };
        assert_eq!(store.usage_by_day(&filter).await.unwrap(), [(day(&none), twice), (day(&run), twice)]);
        let hour = |key: &UsageKey| UsageKey { run: None, sampler: None, ..key.clone() };
        assert_eq!(store.usage_by_hour(&filter).await.unwrap(), [(hour(&run), twice), (hour(&none), twice)]);
        filter.run = run.run.clone();
        assert_eq!(store.usage_by_day(&filter).await.unwrap(), [(day(&run), twice)]);
        (filter.run, filter.session) = (None, Some(SessionId("t".into())));
        assert!(store.usage_by_day(&filter).await.unwrap().is_empty());
        let until = UsageFilter::all(&run.owner, run.hour, none.hour);
        assert_eq!(store.usage_by_hour(&until).await.unwrap().len(), 1, "the end is exclusive");
        assert_eq!(store.purge_usage(none.hour).await.unwrap(), 2);
        assert_eq!(store.purge_usage(none.hour).await.unwrap(), 0);
    }
}
