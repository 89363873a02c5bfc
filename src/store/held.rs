//! Runs that hold copied or uploaded weights (protocol §7.16).

use super::Store;
use super::columns::Columns;
use crate::error::Result;
use crate::ids::ModelId;

impl Store {
    /// The run cannot be trained; `origin` says where its weights came from.
    pub async fn hold_run(&self, run: &ModelId, origin: &str) -> Result<()> {
        let query = sqlx::query("INSERT INTO held_runs (run_id, origin) VALUES ($1, $2)");
        query.bind(&run.0).bind(origin).execute(&self.pool).await?;
        Ok(())
    }

    /// Where the weights of a run that cannot be trained came from; `None` for all other runs.
    pub async fn held_run(&self, run: &ModelId) -> Result<Option<String>> {
        let query = sqlx::query("SELECT origin FROM held_runs WHERE run_id = $1").bind(&run.0);
        query.fetch_optional(&self.pool).await?.map(|row| row.text("origin")).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn held_runs_say_where_their_weights_came_from() {
        let store = crate::store::testing::empty_store().await;
        let run = ModelId("s:train:0".into());
        assert_eq!(store.held_run(&run).await.unwrap(), None);
        store.hold_run(&run, "an upload").await.unwrap();
        assert_eq!(store.held_run(&run).await.unwrap().as_deref(), Some("an upload"));
    }
}
