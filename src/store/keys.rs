//! API keys by their hashes (protocol chapter 2). Rows are never removed: they say who a key was.

use chrono::{DateTime, Utc};
use sqlx::any::AnyRow;
use sqlx::{Any, Transaction};

use super::columns::{Columns, corrupt, json, micros};
use super::{Store, taken};
use crate::config::quotas::Quotas;
use crate::error::{Error, Result};
use crate::ids::OwnerId;

#[derive(Clone, Debug, PartialEq)]
pub struct KeyRow {
    pub id: i64,
    pub name: String,
    pub owner: OwnerId,
    /// SHA-256 of the key.
    pub hash: [u8; 32],
    pub created_at: DateTime<Utc>,
    pub last_used_at: Option<DateTime<Utc>>,
    /// When it was, or will be, withdrawn.
    pub revoked_at: Option<DateTime<Utc>>,
    pub expires_at: Option<DateTime<Utc>>,
    pub quotas: Quotas,
}

impl KeyRow {
    /// Why it is of no use at this time; `None` while it is.
    pub fn ended(&self, now: DateTime<Utc>) -> Option<&'static str> {
        match (self.revoked_at, self.expires_at) {
            (Some(at), _) if at <= now => Some("revoked"),
            (_, Some(at)) if at <= now => Some("expired"),
            _ => None,
        }
    }
}

/// A key to be.
pub struct NewKey {
    pub name: String,
    pub owner: OwnerId,
    pub hash: [u8; 32],
    pub expires_at: Option<DateTime<Utc>>,
    pub quotas: Quotas,
}

impl Store {
    /// A user error when a usable key has this name.
    pub async fn insert_key(&self, key: NewKey) -> Result<KeyRow> {
        let now = Utc::now();
        let mut change = self.change_keys().await?;
        let row = insert(&mut change, key, now).await?;
        change.commit().await?;
        Ok(row)
    }

    /// A new secret for the newest key of this name that is in use: same account, quotas and expiry. The old one is
    /// withdrawn at `old_ends`. Not found when there is none; returns the new row.
    pub async fn rotate_key(&self, name: &str, hash: [u8; 32], old_ends: DateTime<Utc>) -> Result<KeyRow> {
        let now = Utc::now();
        let mut change = self.change_keys().await?;
        let old = sqlx::query("SELECT * FROM keys WHERE name = $1 AND revoked_at IS NULL")
            .bind(name)
            .fetch_optional(&mut *change)
            .await?;
        let old = old.as_ref().map(read).transpose()?.filter(|key| key.ended(now).is_none());
        let old = old.ok_or_else(|| Error::not_found(format!("there is no usable key named {name:?}")))?;
        withdraw(&mut change, old.id, old_ends).await?;
        let KeyRow { name, owner, expires_at, quotas, .. } = old;
        let row = insert(&mut change, NewKey { name, owner, hash, expires_at, quotas }, now).await?;
        change.commit().await?;
        Ok(row)
    }

    /// Withdraws these keys at `time`, unless they end earlier.
    pub async fn revoke_keys(&self, ids: &[i64], time: DateTime<Utc>) -> Result<()> {
        let mut change = self.change_keys().await?;
        for id in ids {
            withdraw(&mut change, *id, time).await?;
        }
        change.commit().await?;
        Ok(())
    }

    /// All keys there ever were, oldest first.
    pub async fn keys(&self) -> Result<Vec<KeyRow>> {
        let rows = sqlx::query("SELECT * FROM keys ORDER BY id").fetch_all(&self.pool).await?;
        rows.iter().map(read).collect()
    }

    /// Another number than before whenever something was done to keys (other than using them).
    pub async fn key_changes(&self) -> Result<i64> {
        Ok(sqlx::query_scalar("SELECT n FROM key_changes").fetch_one(&self.pool).await?)
    }

    /// Notes when keys were last used.
    pub async fn touch_keys(&self, used: &[(i64, DateTime<Utc>)]) -> Result<()> {
        let mut transaction = self.pool.begin().await?;
        for (id, at) in used {
            let query = sqlx::query("UPDATE keys SET last_used_at = $2 WHERE id = $1").bind(id).bind(micros(*at));
            query.execute(&mut *transaction).await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    /// Counts the change first, so that of several processes one at a time changes keys.
    async fn change_keys(&self) -> Result<Transaction<'_, Any>> {
        let mut transaction = self.pool.begin().await?;
        sqlx::query("UPDATE key_changes SET n = n + 1").execute(&mut *transaction).await?;
        Ok(transaction)
    }
}

async fn insert(change: &mut Transaction<'_, Any>, key: NewKey, now: DateTime<Utc>) -> Result<KeyRow> {
    // An expired key's name is free again.
    let free = "UPDATE keys SET revoked_at = expires_at WHERE name = $1 AND revoked_at IS NULL AND expires_at <= $2";
    sqlx::query(free).bind(&key.name).bind(micros(now)).execute(&mut **change).await?;
    let last: i64 = sqlx::query_scalar("SELECT COALESCE(MAX(id), 0) FROM keys").fetch_one(&mut **change).await?;
    let NewKey { name, owner, hash, expires_at, quotas } = key;
    let id = last + 1;
    sqlx::query(
        "INSERT INTO keys (id, name, owner, hash, created_at, expires_at, quotas) VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(id)
    .bind(&name)
    .bind(&owner.0)
    .bind(hex::encode(hash))
    .bind(micros(now))
    .bind(expires_at.map(micros))
    .bind(json(&quotas))
    .execute(&mut **change)
    .await
    .map_err(taken(format_args!("a usable key named {name:?}")))?;
    Ok(KeyRow { id, name, owner, hash, created_at: now, last_used_at: None, revoked_at: None, expires_at, quotas })
}

async fn withdraw(change: &mut Transaction<'_, Any>, id: i64, time: DateTime<Utc>) -> Result<()> {
    sqlx::query("UPDATE keys SET revoked_at = $2 WHERE id = $1 AND (revoked_at IS NULL OR revoked_at > $2)")
        .bind(id)
        .bind(micros(time))
        .execute(&mut **change)
        .await?;
    Ok(())
}

fn read(row: &AnyRow) -> Result<KeyRow> {
    let mut hash = [0; 32];
    hex::decode_to_slice(row.text("hash")?, &mut hash).map_err(|_| corrupt("hash"))?;
    Ok(KeyRow {
        id: row.column("id")?,
        name: row.text("name")?,
        owner: OwnerId(row.text("owner")?),
        hash,
        created_at: row.time("created_at")?,
        last_used_at: row.optional_time("last_used_at")?,
        revoked_at: row.optional_time("revoked_at")?,
        expires_at: row.optional_time("expires_at")?,
        quotas: row.json("quotas")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Category;
    use chrono::TimeDelta;

    fn key(name: &str, hash: u8) -> NewKey {
        let quotas = Quotas { weight: 2.0, max_runs: Some(3), ..Quotas::default() };
        NewKey { name: name.into(), owner: OwnerId(format!("o{hash}")), hash: [hash; 32], expires_at: None, quotas }
    }

    async fn store() -> Store {
        crate::store::testing::empty_store().await
    }

    #[tokio::test]
    async fn a_key_is_read_as_it_was_written_and_counted() {
        let store = store().await;
        assert_eq!((store.keys().await.unwrap(), store.key_changes().await.unwrap()), (vec![], 0));
        let a = store.insert_key(key("a", 1)).await.unwrap();
        let b = store.insert_key(NewKey { expires_at: Some(Utc::now()), ..key("b", 2) }).await.unwrap();
        assert_eq!((a.id, b.id, store.key_changes().await.unwrap()), (1, 2, 2));
        let read = store.keys().await.unwrap();
        assert_eq!(read.iter().map(|k| (k.id, &*k.name, k.hash[0])).collect::<Vec<_>>(), [(1, "a", 1), (2, "b", 2)]);
        assert_eq!((&read[0].quotas, read[0].last_used_at), (&a.quotas, None));
        let hash: String =
            sqlx::query_scalar("SELECT hash FROM keys WHERE id = 1").fetch_one(&store.pool).await.unwrap();
        assert_eq!(hash, "01".repeat(32));
        store.touch_keys(&[(1, a.created_at)]).await.unwrap();
        let used = store.keys().await.unwrap()[0].last_used_at.unwrap();
        assert_eq!(micros(used), micros(a.created_at));
        assert_eq!(store.key_changes().await.unwrap(), 2, "use is no change");
    }

    #[tokio::test]
    async fn a_name_is_taken_while_its_key_is_in_use() {
        let store = store().await;
        let a = store.insert_key(key("a", 1)).await.unwrap();
        let e = store.insert_key(key("a", 2)).await.unwrap_err();
        assert!(e.category == Category::User && e.message.contains("\"a\" exists"), "{e}");
        store.revoke_keys(&[a.id], Utc::now()).await.unwrap();
        let expired = NewKey { expires_at: Some(Utc::now() - TimeDelta::seconds(1)), ..key("a", 2) };
        store.insert_key(expired).await.unwrap();
        store.insert_key(key("a", 3)).await.unwrap();
        let now = Utc::now();
        let ended: Vec<_> = store.keys().await.unwrap().iter().map(|k| k.ended(now)).collect();
        assert_eq!(ended, [Some("revoked"), Some("revoked"), None]);
    }

    #[tokio::test]
    async fn a_rotated_key_keeps_its_account_and_ends_when_told() {
        let store = store().await;
        let a = store.insert_key(key("a", 1)).await.unwrap();
        let soon = Utc::now() + TimeDelta::hours(1);
        let b = store.rotate_key("a", [2; 32], soon).await.unwrap();
        assert_eq!((&b.name, &b.owner, &b.quotas), (&a.name, &a.owner, &a.quotas));
        let ended = async |at| store.keys().await.unwrap().iter().map(|k| k.ended(at).is_some()).collect::<Vec<_>>();
        assert_eq!(ended(soon - TimeDelta::seconds(1)).await, [false, false]);
        assert_eq!(ended(soon).await, [true, false]);
        // Withdrawing it again later does not bring it back.
        store.revoke_keys(&[a.id], soon + TimeDelta::hours(1)).await.unwrap();
        assert_eq!(ended(soon).await, [true, false]);
        store.rotate_key("a", [3; 32], Utc::now()).await.unwrap();
        assert_eq!(ended(Utc::now()).await, [false, true, false]);
        assert_eq!(store.rotate_key("b", [4; 32], soon).await.unwrap_err().category, Category::NotFound);
    }
}
