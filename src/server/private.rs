//! What a server keeps is its own user's alone: hashes of keys, the secret of download links, uploads, checkpoints.

use std::path::Path;

#[cfg(unix)]
use rustix::{fs::Mode, process::umask};

use super::data_dir;
use crate::error::Result;

/// How open the user wants the files that its processes make.
pub struct UsersMask(#[cfg(unix)] Mode);

/// Files and directories that this process makes from now on are nobody else's to read, whoever makes them: SQLite's
/// journals and half-written checkpoints too.
pub fn keep_files_private() -> UsersMask {
    UsersMask(
        #[cfg(unix)]
        umask(Mode::RWXG | Mode::RWXO),
    )
}

impl UsersMask {
    /// What `work` makes is as open as the user wants it, such as models in a cache that may be shared. Nobody else may
    /// make files meanwhile: the mask is the whole process's.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        #[cfg(unix)]
        let private = umask(self.0);
        let done = work();
        #[cfg(unix)]
        umask(private);
        done
    }
}

/// Makes the data directory if need be, closed to others. One that exists keeps its mode, which somebody may have chosen
/// (or it is a directory with other things in it); what is open to others there is said.
///
/// # Errors
/// User errors: it cannot be made or read.
pub fn make_dir(dir: &Path) -> Result<()> {
    let failed = |e| data_dir::refused(dir, &e);
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir).map_err(failed)?;
    if let Some(name) = open_to_others(dir).map_err(failed)? {
        let dir = dir.display();
        tracing::warn!("others on this machine can read {name} in the data directory; chmod -R go= {dir} closes it");
    }
    Ok(())
}

/// A file right in this directory that another user can read, or a directory that another user can enter.
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
        let open = match about.is_dir() {
            true => GROUP_OR_OTHERS_ENTER,
            // What a link leads to has a mode of its own.
            false if about.is_file() => GROUP_OR_OTHERS_READ,
            false => 0,
        };
        if about.permissions().mode() & open != 0 {
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
        let inner = data.join("checkpoints");
        fs::create_dir(&inner).unwrap();
        fs::set_permissions(&inner, Permissions::from_mode(0o710)).unwrap();
        assert_eq!(open_to_others(&data).unwrap().as_deref(), Some("checkpoints"));
        fs::set_permissions(&inner, Permissions::from_mode(0o700)).unwrap();
        assert_eq!(open_to_others(&data).unwrap(), None);
    }
}
