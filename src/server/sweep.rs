//! What is cleaned up: at the start what a killed process left, later what expired or fell silent.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{TimeDelta, Utc};

use crate::api::state::App;
use crate::engine::snapshots::Files;
use crate::error::Result;
use crate::ids::ModelId;
use crate::store::Store;
use crate::store::moved::last_three;

use super::upkeep;

/// How often things are looked at.
const INTERVAL: Duration = Duration::from_secs(60);

/// How long the clients' reports of faults are kept.
const TELEMETRY: TimeDelta = TimeDelta::days(30);

/// And how many bytes of them for each account, the newest.
const TELEMETRY_BYTES: u64 = 64 << 20;

/// How long the key of a copy is remembered; clients repeat one for minutes.
const COPIES: TimeDelta = TimeDelta::days(1);

/// How long it is known what each account took in each hour.
const USAGE: TimeDelta = TimeDelta::days(90);

/// The audit log is counted through once in so many rounds: it may be long.
const AUDIT_ROUNDS: u32 = 60;

/// Never ends. A sweep that fails is logged, and done again the next time.
pub async fn forever(app: App) {
    for round in 0u32.. {
        tokio::time::sleep(INTERVAL).await;
        app.futures().forget_expired();
        if let Err(e) = app.end_silent_sessions().await {
            tracing::warn!(error = %e, "silent sessions not ended");
        }
        if let Err(e) = app.store().purge_usage(Utc::now() - USAGE).await {
            tracing::warn!(error = %e, "old usage not removed");
        }
        // The last of their storage is counted before their rows go.
        upkeep::count(&app).await;
        if let Err(e) = expired_checkpoints(&app).await {
            tracing::warn!(error = %e, "expired checkpoints not removed");
        }
        if let Err(e) = app.store().purge_telemetry(Utc::now() - TELEMETRY, TELEMETRY_BYTES).await {
            tracing::warn!(error = %e, "old telemetry not removed");
        }
        if round.is_multiple_of(AUDIT_ROUNDS)
            && let Err(e) = old_events(&app).await
        {
            tracing::warn!(error = %e, "old audit events not removed");
        }
        if let Err(e) = app.store().purge_copies(Utc::now() - COPIES).await {
            tracing::warn!(error = %e, "keys of old copies not removed");
        }
        app.uploads().forget_expired();
        app.exports().forget_old();
    }
}

async fn old_events(app: &App) -> Result<()> {
    let limits = app.limits();
    let before = Utc::now() - TimeDelta::from_std(limits.audit_retention).unwrap_or(TimeDelta::MAX);
    app.store().purge_audit(before, limits.audit_rows as u64).await
}

async fn expired_checkpoints(app: &App) -> Result<()> {
    for dir in app.store().take_expired_checkpoints(Utc::now()).await? {
        tracing::info!(dir = %dir.display(), "checkpoint expired");
        app.futures().discard(dir);
    }
    Ok(())
}

/// Removes the snapshots of samplers that are gone or whose session has ended.
pub async fn snapshots(dir: &Path, store: &Store) -> Result<()> {
    let files = Files::new(dir.into());
    for (origin, _) in files.found() {
        let mut wanted = false;
        for id in &origin.samplers {
            let session = match store.sampler(id).await? {
                Some(sampler) => store.session(&sampler.session).await?,
                None => None,
            };
            wanted |= session.is_some_and(|s| s.finished.is_none());
        }
        if !wanted {
            files.remove(&origin);
        }
    }
    Ok(())
}

/// Deletes the directories `RUN/KIND/NAME` below `checkpoints` that belong to a run of this database but to none of its
/// checkpoints and samplers: a killed process had written or was about to remove them. Runs that the database does not know are
/// another database's, and all else is not ours. To be called before the first write.
pub async fn orphans(checkpoints: &Path, store: &Store) -> Result<()> {
    let runs: HashSet<String> = store.run_ids().await?.iter().map(ModelId::dir_name).collect();
    // The data directory may have been moved since: only what is below it counts.
    let (listed, sampled) = (store.checkpoint_dirs().await?, store.sampled_dirs().await?);
    let kept: HashSet<PathBuf> = listed.iter().chain(&sampled).map(|dir| last_three(dir)).collect();
    let root = checkpoints.to_owned();
    let orphans = tokio::task::spawn_blocking(move || {
        let known = |dir: &PathBuf| dir.file_name().and_then(|n| n.to_str()).is_some_and(|n| runs.contains(n));
        let kinds = dirs_in(&root).into_iter().filter(known).flat_map(|run| dirs_in(&run));
        let leaves = kinds.flat_map(|kind| dirs_in(&kind));
        leaves.filter(|leaf| !kept.contains(&last_three(leaf))).collect::<Vec<_>>()
    });
    let orphans = orphans.await.unwrap_or_else(|e| {
        tracing::error!(error = %e, "looking for files of no checkpoint broke off: they stay");
        Vec::new()
    });
    for dir in orphans {
        tracing::info!(dir = %dir.display(), "removing files of no checkpoint");
        if let Err(e) = tokio::fs::remove_dir_all(&dir).await {
            tracing::warn!(dir = %dir.display(), error = %e, "checkpoint directory not removed");
        }
    }
    Ok(())
}

/// Real directories only: nobody's links are followed.
fn dirs_in(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::checkpoints::CheckpointRow;
    use crate::store::testing::{checkpoint, empty_store, run};

    #[tokio::test]
    async fn only_a_known_runs_directories_without_a_row_go() {
        let store = empty_store().await;
        store.insert_run(&run("s:train:0", "o")).await.unwrap();
        let row = CheckpointRow {
            dir: "/before/the/move/s-train-0/weights/a.1".into(),
            expires_at: Some(Utc::now() - TimeDelta::hours(1)),
            ..checkpoint("tinker://s:train:0/weights/a", "o")
        };
        store.put_checkpoint(&row).await.unwrap();
        let root = tempfile::tempdir().unwrap();
        let orphan = "s-train-0/weights/a.2";
        let kept = ["s-train-0/weights/a.1", "other-train-0/weights/a.2", "s-train-0/weights/a.1/inner"];
        for dir in kept.iter().chain([&orphan]) {
            std::fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        std::fs::write(root.path().join("s-train-0/weights/file"), "").unwrap();
        orphans(root.path(), &store).await.unwrap();
        assert!(!root.path().join(orphan).exists());
        assert!(kept.iter().all(|dir| root.path().join(dir).exists()));
        assert!(root.path().join("s-train-0/weights/file").exists());
        orphans(&root.path().join("none"), &store).await.unwrap();
    }
}
