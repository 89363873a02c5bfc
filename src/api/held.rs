//! Runs that hold weights made elsewhere, copied or uploaded: listed like others, never trained (protocol §7.16).

use chrono::{DateTime, Utc};

use crate::error::Result;
use crate::ids::{ModelId, SessionId};
use crate::store::Metadata;
use crate::store::checkpoints::CheckpointRow;
use crate::store::runs::RunRow;
use crate::store::sessions::{Finish, SessionRow};

use super::state::App;

/// Where the run that holds a checkpoint belongs.
pub enum Place {
    /// A session of its own, finished as soon as it is there.
    Own { session: SessionId, project_id: Option<String> },
    /// A slot of a session that goes on.
    Slot { session: SessionId, model_seq: u64 },
}

impl Place {
    pub fn own(project_id: Option<String>) -> Self {
        Self::Own { session: SessionId::random(), project_id }
    }

    pub fn run(&self) -> ModelId {
        match self {
            Self::Own { session, .. } => session.model(0),
            Self::Slot { session, model_seq } => session.model(*model_seq),
        }
    }
}

/// A checkpoint whose files are in place, and the run to hold it.
pub struct Held {
    pub place: Place,
    pub checkpoint: CheckpointRow,
    /// Where the weights came from, in words.
    pub origin: String,
    pub run_metadata: Metadata,
}

impl App {
    /// Lists session, run and checkpoint, the checkpoint last: what is listed is whole.
    pub async fn list_held(&self, held: Held) -> Result<()> {
        let Held { place, checkpoint, origin, run_metadata } = held;
        let (id, now) = (place.run(), Utc::now());
        let session = match place {
            Place::Own { session, project_id } => {
                self.store().insert_session(&finished(&session, &checkpoint, project_id, now)).await?;
                session
            }
            Place::Slot { session, .. } => session,
        };
        // Marked before it can be found: nobody may take it for a run that can be trained.
        self.store().hold_run(&id, &origin).await?;
        let run = RunRow {
            id: id.clone(),
            session,
            owner: checkpoint.owner.clone(),
            base_model: checkpoint.base_model.clone(),
            kind: checkpoint.kind,
            user_metadata: run_metadata,
            created_at: now,
            last_request_at: now,
            corrupted: false,
            fault: None,
        };
        self.store().insert_run(&run).await?;
        self.store().put_checkpoint(&checkpoint).await?;
        tracing::info!(run = %id, origin, "weights are held");
        Ok(())
    }
}

fn finished(id: &SessionId, checkpoint: &CheckpointRow, project_id: Option<String>, now: DateTime<Utc>) -> SessionRow {
    SessionRow {
        id: id.clone(),
        owner: checkpoint.owner.clone(),
        created_at: now,
        last_heartbeat_at: now,
        tags: vec![],
        user_metadata: Metadata::new(),
        sdk_version: String::new(),
        project_id,
        display_name: None,
        finished: Some(Finish { at: now, reason: "success".into(), detail: None }),
    }
}
