//! Losses that clients uploaded (protocol ch. 15).

use chrono::{DateTime, Utc};
use sqlx::any::AnyRow;

use super::Store;
use super::columns::{Columns, int, micros};
use crate::error::{Error, Result};
use crate::ids::{LossId, OwnerId, SessionId};

#[derive(Clone, Debug, PartialEq)]
pub struct CustomLossRow {
    pub id: LossId,
    pub owner: OwnerId,
    pub session: SessionId,
    /// Its number in the session.
    pub seq: u64,
    /// The request that made it, as JSON.
    pub body: String,
    pub created_at: DateTime<Utc>,
}

impl Store {
    /// The row of this number in the session: the new one, or the one that was there before.
    pub async fn put_custom_loss(&self, row: &CustomLossRow) -> Result<CustomLossRow> {
        sqlx::query(
            "INSERT INTO custom_losses (id, owner, session_id, seq, body, created_at) VALUES ($1, $2, $3, $4, $5, $6) \
             ON CONFLICT (session_id, seq) DO NOTHING",
        )
        .bind(&row.id.0)
        .bind(&row.owner.0)
        .bind(&row.session.0)
        .bind(int(row.seq))
        .bind(&row.body)
        .bind(micros(row.created_at))
        .execute(&self.pool)
        .await?;
        let query = sqlx::query("SELECT * FROM custom_losses WHERE session_id = $1 AND seq = $2");
        let found = query.bind(&row.session.0).bind(int(row.seq)).fetch_optional(&self.pool).await?;
        found.as_ref().map(read).transpose()?.ok_or_else(|| Error::server("database: a custom loss was not kept"))
    }

    pub async fn custom_loss(&self, id: &LossId) -> Result<Option<CustomLossRow>> {
        let query = sqlx::query("SELECT * FROM custom_losses WHERE id = $1").bind(&id.0);
        query.fetch_optional(&self.pool).await?.as_ref().map(read).transpose()
    }

    /// A session's under other numbers than `seq`.
    pub async fn count_custom_losses(&self, session: &SessionId, seq: u64) -> Result<u64> {
        let query = sqlx::query("SELECT COUNT(*) AS n FROM custom_losses WHERE session_id = $1 AND seq <> $2");
        query.bind(&session.0).bind(int(seq)).fetch_one(&self.pool).await?.number("n")
    }

    /// All of a session's.
    pub async fn delete_custom_losses(&self, session: &SessionId) -> Result<()> {
        sqlx::query("DELETE FROM custom_losses WHERE session_id = $1").bind(&session.0).execute(&self.pool).await?;
        Ok(())
    }
}

fn read(row: &AnyRow) -> Result<CustomLossRow> {
    Ok(CustomLossRow {
        id: LossId(row.text("id")?),
        owner: OwnerId(row.text("owner")?),
        session: SessionId(row.text("session_id")?),
        seq: row.number("seq")?,
        body: row.text("body")?,
        created_at: row.time("created_at")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::empty_store;

    #[tokio::test]
    async fn the_first_of_a_number_stays_until_its_session_ends() {
        let store = empty_store().await;
        let row = |id: &str, seq, body: &str| CustomLossRow {
            id: LossId(id.into()),
            owner: OwnerId("o".into()),
            session: SessionId("s".into()),
            seq,
            body: body.into(),
            created_at: DateTime::from_timestamp_micros(1_700_000_000_000_000).unwrap(),
        };
        let first = row("a", 0, "{}");
        assert_eq!(store.put_custom_loss(&first).await.unwrap(), first);
        assert_eq!(store.put_custom_loss(&row("b", 0, "[]")).await.unwrap(), first);
        assert_eq!(store.put_custom_loss(&row("c", 1, "[]")).await.unwrap().id.0, "c");
        assert_eq!(store.custom_loss(&first.id).await.unwrap(), Some(first.clone()));
        let session = SessionId("s".into());
        assert_eq!(store.count_custom_losses(&session, 0).await.unwrap(), 1);
        store.delete_custom_losses(&session).await.unwrap();
        assert_eq!(store.custom_loss(&first.id).await.unwrap(), None);
    }
}
