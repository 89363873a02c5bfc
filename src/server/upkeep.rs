//! What goes on between the API and the database in the background, every second: changed keys in, noted events out;
//! every few, what was counted in memory.

use std::time::Duration;

use chrono::Utc;
use tokio::sync::watch;

use crate::api::state::App;
use crate::error::Result;
use crate::store::Store;

/// A change of keys is honoured after so long.
const INTERVAL: Duration = Duration::from_secs(1);

/// When keys were last used is written once in so many rounds.
const USED: u32 = 30;

/// What was counted in memory is added to the database once in so many rounds.
const COUNTED: u32 = 5;

/// Until `stop` is true, and never in the middle of a round. While the database cannot be reached, keys stay as they
/// were; the first failure of a row is logged.
pub async fn until(app: App, mut stop: watch::Receiver<bool>) {
    let mut failing = false;
    for round in 1u32.. {
        // An error means that whoever could stop it is gone, which is a stop too.
        if tokio::time::timeout(INTERVAL, stop.wait_for(|stop| *stop)).await.is_ok() {
            return;
        }
        let done = once(&app, round.is_multiple_of(USED)).await;
        if let (Err(e), false) = (&done, failing) {
            tracing::warn!(error = %e, "keys not read or audit log not written");
        }
        failing = done.is_err();
        if round.is_multiple_of(COUNTED) {
            // What cannot be written stays in memory until the next time.
            told(app.futures().usage().flush_work(app.store()).await);
        }
    }
}

async fn once(app: &App, used: bool) -> Result<()> {
    refresh_keys(app).await?;
    app.store().write_noted().await?;
    app.futures().write_marks().await?;
    app.futures().write_owed();
    if used {
        write_used(app).await?;
    }
    Ok(())
}

/// Adds what was counted since the last time, storage too.
pub async fn count(app: &App) {
    told(app.futures().usage().flush(app.store(), Utc::now()).await);
}

fn told(written: Result<()>) {
    if let Err(e) = written {
        tracing::warn!(error = %e, "usage not written");
    }
}

/// Takes changed keys over: who may come in, what they may take, and their shares of the device.
pub async fn refresh_keys(app: &App) -> Result<()> {
    if app.keys().refresh(app.store()).await? {
        let quotas = app.keys().all_quotas();
        app.engine().set_weights(quotas.iter().map(|(owner, quotas)| (owner.clone(), quotas.weight)).collect());
        app.futures().accounts().set_all(quotas);
    }
    Ok(())
}

/// Writes when keys were last used.
pub async fn write_used(app: &App) -> Result<()> {
    let used = app.keys().take_used();
    if used.is_empty() { Ok(()) } else { app.store().touch_keys(&used).await }
}

/// Syncs what the database committed, in groups of so long. The first failure of a row is logged.
pub async fn sync_forever(store: Store, group: Duration) {
    let mut failing = false;
    loop {
        tokio::time::sleep(group).await;
        let synced = store.sync().await;
        if let (Err(e), false) = (&synced, failing) {
            tracing::warn!(error = %e, "commits are not synced");
        }
        failing = synced.is_err();
    }
}
