//! Directories of runs that do not go on after a restart.

use std::collections::HashSet;
use std::path::Path;

/// What the name of a damaged run's directory ends with.
const DAMAGED: &str = "damaged";

/// A damaged run's files stay, for whoever wants to look into them.
pub fn set_aside(dir: &Path) {
    let aside = dir.with_extension(DAMAGED);
    if dir.exists() && std::fs::rename(dir, &aside).is_ok() {
        tracing::error!(dir = %aside.display(), "its files are left here; delete them when they are of no use");
    }
}

/// Removes the directories of runs that do not go on.
pub fn remove_others(runs_dir: &Path, kept: &HashSet<String>) {
    for entry in std::fs::read_dir(runs_dir).into_iter().flatten().flatten() {
        let aside = entry.path().extension().is_some_and(|e| e == DAMAGED);
        if aside || entry.file_name().to_str().is_some_and(|name| kept.contains(name)) {
            continue;
        }
        if let Err(e) = std::fs::remove_dir_all(entry.path()) {
            tracing::warn!(dir = %entry.path().display(), error = %e, "files of a run that ended stay");
        }
    }
}
