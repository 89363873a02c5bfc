//! What a server keeps is its own user's alone: hashes of keys, the secret of download links, uploads, checkpoints.

use std::path::Path;

use crate::error::{Error, Result};

/// Files and directories that this process makes from now on are nobody else's to read, whoever makes them: SQLite's
/// journals and half-written checkpoints too. Not before models are fetched, whose cache may be shared.
pub fn keep_files_private() {
    #[cfg(unix)]
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}

/// Makes the data directory if need be, closed to others. One that exists keeps its mode, which somebody may have chosen
/// (or it is a directory with other things in it); what is open to others there is said.
///
/// # Errors
/// User errors: it cannot be made or read.
pub fn make_dir(dir: &Path) -> Result<()> {
    let failed = |e| Error::user(format!("data directory {}: {e}", dir.display()));
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir).map_err(failed)?;
    if let Some(file) = open_to_others(dir).map_err(failed)? {
        let dir = dir.display();
        tracing::warn!("others on this machine can read {file} in the data directory; chmod -R go= {dir} closes it");
    }
    Ok(())
}

/// A file right in this directory that another user can read.
#[cfg(unix)]
fn open_to_others(dir: &Path) -> std::io::Result<Option<String>> {
    use std::os::unix::fs::PermissionsExt;
    const GROUP_OR_OTHERS_READ: u32 = 0o044;
    const GROUP_OR_OTHERS_ENTER: u32 = 0o011;
    if std::fs::metadata(dir)?.permissions().mode() & GROUP_OR_OTHERS_ENTER == 0 {
        return Ok(None);
    }
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let about = entry.metadata()?;
        if about.is_file() && about.permissions().mode() & GROUP_OR_OTHERS_READ != 0 {
            return Ok(Some(entry.file_name().to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

#[cfg(not(unix))]
fn open_to_others(_: &Path) -> std::io::Result<Option<String>> {
    Ok(None)
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_new_directory_is_closed_and_an_open_one_keeps_its_mode_and_is_told() {
        let parent = tempfile::tempdir().unwrap();
        let data = parent.path().join("a/data");
        make_dir(&data).unwrap();
        assert_eq!(mode(&data), 0o700);
        let file = data.join("tinderbox.db");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(open_to_others(&data).unwrap(), None, "nobody gets at it");
        fs::set_permissions(&data, Permissions::from_mode(0o755)).unwrap();
        make_dir(&data).unwrap();
        assert_eq!(mode(&data), 0o755);
        assert_eq!(open_to_others(&data).unwrap().as_deref(), Some("tinderbox.db"));
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(open_to_others(&data).unwrap(), None);
    }
}
