//! A data directory that was moved, or made from a backup: what the journal holds reads and writes files where they are now.

use std::path::{Path, PathBuf};

use crate::command::{Command, RunCommand, SampleSource, Save};
use crate::store::moved::last_three;

use super::complete::Completion;
use super::records::Accepted;
use super::restored::Restored;

impl Restored {
    /// Every directory that a request names is the one of the same run, kind and name below `checkpoints`, where all of
    /// them lie. To be called before anything is done again: a copy must not write into its original.
    pub fn follow_move(&mut self, checkpoints: &Path) {
        let of_runs = self.runs.values_mut().flat_map(|run| run.requests.values_mut());
        for accepted in of_runs.chain(self.open.values_mut()).chain(&mut self.orphans) {
            dirs(accepted).into_iter().for_each(|dir| *dir = checkpoints.join(last_three(dir)));
        }
    }
}

fn dirs(accepted: &mut Accepted) -> Vec<&mut PathBuf> {
    let of_command = match &mut accepted.command {
        Command::Sample { request, .. } => match &mut request.source {
            SampleSource::Checkpoint(dir) => Some(dir),
            SampleSource::Base | SampleSource::Snapshot(_) => None,
        },
        Command::Run { command, .. } => match command {
            RunCommand::Create { restore, .. } => restore.as_mut().map(|restore| &mut restore.dir),
            RunCommand::Load(restore) => Some(&mut restore.dir),
            RunCommand::Save(Save::Training { dir } | Save::Sampler { dir } | Save::External { dir, .. }) => Some(dir),
            RunCommand::Save(Save::Snapshot { .. } | Save::Inflight { .. })
            | RunCommand::Revive { .. }
            | RunCommand::ForwardBackward { .. }
            | RunCommand::OptimStep(_)
            | RunCommand::RollBack
            | RunCommand::DropGradient
            | RunCommand::Unload => None,
        },
    };
    let listed = match &mut accepted.completion {
        Completion::Save { row, .. } => Some(&mut row.dir),
        _ => None,
    };
    of_command.into_iter().chain(listed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Restore;
    use crate::futures::issue::Key;
    use crate::futures::restored::RestoredRun;
    use crate::ids::{ModelId, OwnerId, RequestId};
    use crate::store::checkpoints::CheckpointRow;
    use crate::store::testing::checkpoint;

    const WAS: &str = "/was/checkpoints/s-train-0/weights/a.1";

    fn accepted(command: RunCommand) -> Accepted {
        let (owner, model) = (OwnerId("o".into()), ModelId("s:train:0".into()));
        let row = CheckpointRow { dir: WAS.into(), ..checkpoint("tinker://s:train:0/weights/a", "o") };
        Accepted {
            id: RequestId::random(),
            owner: owner.clone(),
            key: Key::Run { model: model.clone(), seq: 1 },
            meaning: 0,
            command: Command::Run { owner, model, seq: 1, command },
            completion: Completion::Save { row, ttl: None, overwrite: false },
        }
    }

    #[test]
    fn requests_name_their_files_where_these_are_now() {
        let commands = [
            RunCommand::Save(Save::Training { dir: WAS.into() }),
            RunCommand::Load(Restore { dir: WAS.into(), optimizer: true }),
            RunCommand::Unload,
        ];
        let requests = (1..).zip(commands.map(accepted)).collect();
        let mut restored = Restored::default();
        restored.runs.insert(ModelId("s:train:0".into()), RestoredRun { requests, ..RestoredRun::default() });
        restored.follow_move(Path::new("/now/checkpoints"));
        let run = restored.runs.values_mut().next().unwrap();
        let now = Path::new("/now/checkpoints/s-train-0/weights/a.1");
        let found: Vec<usize> = run
            .requests
            .values_mut()
            .map(|accepted| {
                let dirs = dirs(accepted);
                assert!(dirs.iter().all(|dir| **dir == now), "{dirs:?}");
                dirs.len()
            })
            .collect();
        assert_eq!(found, [2, 2, 1]);
    }
}
