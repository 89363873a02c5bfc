//! The engine's errors in words for users: no paths of this machine, and a checkpoint that went away is said to.

use std::path::{Path, PathBuf};

use crate::command::{Command, RunCommand, SampleSource};
use crate::error::{Category, Error};
use crate::ids::CheckpointPath;

use super::complete::Completion;

/// The checkpoint a request reads from.
pub(super) struct Reading {
    dir: PathBuf,
    path: CheckpointPath,
}

impl Reading {
    pub fn of(command: &Command, completion: &Completion) -> Option<Self> {
        let dir = match command {
            Command::Run { command: RunCommand::Create { restore, .. }, .. } => &restore.as_ref()?.dir,
            Command::Run { command: RunCommand::Load(restore), .. } => &restore.dir,
            Command::Sample { request, .. } => match &request.source {
                SampleSource::Checkpoint(dir) => dir,
                SampleSource::Base | SampleSource::Snapshot(_) => return None,
            },
            Command::Run { .. } => return None,
        };
        let path = match completion {
            Completion::Create { path, .. } | Completion::Sample { path, .. } => path.as_ref()?,
            Completion::Load { path, .. } => path,
            _ => return None,
        };
        Some(Self { dir: dir.clone(), path: path.clone() })
    }
}

/// What the user is told of an engine's error.
pub(super) fn explain(error: Error, reading: Option<&Reading>, data_dir: &Path) -> Error {
    if let Some(Reading { dir, path }) = reading
        && error.category != Category::User
        && !dir.exists()
    {
        return Error::user(format!("{path} was deleted or replaced meanwhile"));
    }
    let mut message = error.message.clone();
    if let Some(Reading { dir, path }) = reading {
        message = without(&message, dir, &path.to_string());
    }
    message = without(&message, &data_dir.join("checkpoints"), "the checkpoint's files");
    message = without(&message, data_dir, "the server's files");
    if message != error.message {
        tracing::warn!(error = %error, "told without paths");
    }
    Error { message, ..error }
}

/// Puts `shown` in the place of every path at or below `dir`.
fn without(message: &str, dir: &Path, shown: &str) -> String {
    let dir = dir.to_string_lossy();
    // A root would match everywhere.
    if dir.len() < 2 {
        return message.into();
    }
    let mut parts = message.split(&*dir);
    let mut told = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // Below the data directory all names are made of these.
        let in_name = |c: char| c.is_ascii_alphanumeric() || "/._-~".contains(c);
        told.push_str(shown);
        told.push_str(part.trim_start_matches(in_name));
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_data_directory_are_not_told() {
        let e = Error::server("cannot open /d a/checkpoints/s-train-0/weights/x.1/optimizer.safetensors: No such file");
        let told = explain(e, None, Path::new("/d a"));
        assert_eq!(told.message, "cannot open the checkpoint's files: No such file");
        assert_eq!(told.category, Category::Server);
        let e = Error::server("cannot write /d a/snapshots/~tmp-1: disk full, /models/x stays");
        let told = explain(e, None, Path::new("/d a"));
        assert_eq!(told.message, "cannot write the server's files: disk full, /models/x stays");
        assert_eq!(explain(Error::user("a/b"), None, Path::new("/")).message, "a/b");
    }

    #[test]
    fn a_checkpoint_that_is_gone_is_said_to_be() {
        let root = tempfile::tempdir().unwrap();
        let path: CheckpointPath = "tinker://s:train:0/weights/a".parse().unwrap();
        let of = |dir: PathBuf, e: Error| explain(e, Some(&Reading { dir, path: path.clone() }), root.path());
        let gone = of(root.path().join("none"), Error::not_found("there is no such checkpoint"));
        assert_eq!(gone.message, "tinker://s:train:0/weights/a was deleted or replaced meanwhile");
        assert_eq!(gone.category, Category::User);
        let dir = root.path().to_path_buf();
        let damaged =
            of(dir.clone(), Error::server(format!("{} is damaged: short", dir.join("w.safetensors").display())));
        assert_eq!(damaged.message, "tinker://s:train:0/weights/a is damaged: short");
        let other = of(root.path().join("none"), Error::user("the rank differs"));
        assert_eq!(other.message, "the rank differs");
    }
}
