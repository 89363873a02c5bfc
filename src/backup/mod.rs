//! `tinderbox backup`: a consistent copy of a data directory, whether a server runs on it or not.
//!
//! What was taken at different moments must fit together, so the order is: journal, states of runs, journal again,
//! database, files that the database lists.
//!
//! * A state makes requests superfluous, and the journal drops those: a journal taken only after a newer state replaced
//!   the taken one may lack requests between the two. A journal taken only before may lack answers that the state counts
//!   on. So its files are held before the states are taken, and what was added since afterwards. A request that the
//!   states hold already is skipped by its number; half a record at the end fails its checksum and is left out.
//! * Weights of samplers come after the states: those that a state counts on were written before it.
//! * A row is written before its answer is, so a database that is ahead of the journal is what a crash leaves too; one
//!   behind would lack rows that clients were told of.
//! * Directories of checkpoints never change, and outlive their row. They are held before the database is copied, newer
//!   ones of its list afterwards. When one of the list is gone nevertheless, the database is copied again; in the end such
//!   a row is left out, and told.
//!
//! Files are held as hard links where the disk allows it. The backup gets its name when all of it is on the disk.

mod files;
mod gather;
mod progress;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use crate::config::backup::BackupArgs;
use crate::config::env::Env;
use crate::config::store::Store as Place;
use crate::server::data_dir;
use files::How;
use gather::{Found, Gathering};
use progress::Progress;

/// Where links are held when the backup is on another disk; a server that starts removes directories of such names.
const HELD: &str = "~tmp-backup";

/// Does what was asked; tells on `out` what it is doing.
pub fn run(args: BackupArgs, env: &Env, out: &mut dyn Write) -> anyhow::Result<()> {
    let place = Place::new(args.place.data_dir, args.place.database_url, env)?;
    let target = std::path::absolute(&args.target).with_context(|| args.target.display().to_string())?;
    check(&place, &target)?;
    let partial = Temporary::beside(&target)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = runtime.block_on(take(&place, &partial.0, &mut Progress::new(out)))?;
    files::sync_dir(&partial.0)?;
    fs::rename(&partial.0, &target).with_context(|| format!("putting the backup at {}", target.display()))?;
    files::sync_dir(target.parent().unwrap_or(&target))?;
    tell(&place, &target, &found, out)
}

/// Into `partial`, by way of links in the data directory when that is on another disk.
async fn take(place: &Place, partial: &Path, progress: &mut Progress<'_>) -> anyhow::Result<Found> {
    if links(&place.data_dir, partial) {
        return Gathering { place, to: partial, how: How::Link, progress }.all().await;
    }
    let held = place.data_dir.join(format!("{HELD}-{}", std::process::id()));
    if fs::create_dir(&held).is_ok() {
        let held = Temporary(held);
        if links(&place.data_dir, &held.0) {
            let found = Gathering { place, to: &held.0, how: How::Link, progress }.all().await?;
            progress.says("all of it is held; copying it to another disk");
            files::tree(&held.0, partial, How::Copy, progress)?;
            return Ok(found);
        }
    }
    Gathering { place, to: partial, how: How::Copy, progress }.all().await
}

/// Before anything is written.
fn check(place: &Place, target: &Path) -> anyhow::Result<()> {
    let data = &place.data_dir;
    ensure!(data.is_dir(), "there is no data directory {}; give the server's --data-dir", data.display());
    data_dir::format(data)?;
    let own = *place == Place::in_dir(data);
    let database = place.database_file();
    ensure!(!own || database.is_file(), "{} holds no database; is it the server's --data-dir?", data.display());
    ensure!(!target.starts_with(data), "{} lies in the data directory; take another place", target.display());
    match fs::read_dir(target).map(|mut entries| entries.next().is_some()) {
        Ok(true) => bail!("{} is there and not empty", target.display()),
        Ok(false) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => bail!("{}: {e}", target.display()),
    }
}

/// Whether a file of the one directory can have a further name in the other.
fn links(from: &Path, to: &Path) -> bool {
    let probe = to.join("~link");
    let entries = fs::read_dir(from).into_iter().flatten().flatten();
    let file = entries.into_iter().find(|e| e.file_type().is_ok_and(|kind| kind.is_file()));
    let linked = file.is_some_and(|file| fs::hard_link(file.path(), &probe).is_ok());
    let _ = fs::remove_file(probe);
    linked
}

fn tell(place: &Place, target: &Path, found: &Found, out: &mut dyn Write) -> anyhow::Result<()> {
    for path in &found.left_out {
        writeln!(out, "left out: {path} was deleted or overwritten meanwhile")?;
    }
    let (count, mib) = (found.checkpoints, found.bytes >> 20);
    let what = if place.is_embedded() { "checkpoints" } else { "directories of checkpoints" };
    writeln!(out, "done: {} ({count} {what}, {mib} MiB)", target.display())?;
    if !place.is_embedded() {
        writeln!(
            out,
            "the database {} is not in it: run pg_dump for that now. What is saved or deleted between the two is in one of \
             them only",
            place.database()
        )?;
        writeln!(out, "to restore: pg_restore the database, then")?;
    } else {
        writeln!(out, "to restore:")?;
    }
    let database = if place.is_embedded() { "" } else { " --database-url postgres://…" };
    writeln!(out, "  tinderbox serve --data-dir {}{database} --model …", target.display())?;
    Ok(())
}

/// A directory that goes unless it was given another name.
struct Temporary(PathBuf);

impl Temporary {
    fn beside(target: &Path) -> anyhow::Result<Self> {
        let name = target.file_name().with_context(|| format!("{} has no name", target.display()))?;
        let dir = target.with_file_name(format!("{}.partial-{}", name.to_string_lossy(), std::process::id()));
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        }
        ensure!(!dir.exists(), "{} is there; remove it", dir.display());
        files::make_dir(&dir).with_context(|| dir.display().to_string())?;
        Ok(Self(dir))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = files::remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys::PlaceArgs;
    use crate::store::Store;
    use crate::store::checkpoints::CheckpointRow;
    use crate::store::testing::checkpoint;

    fn backup(data: &Path, target: &Path) -> (anyhow::Result<()>, String) {
        let place = PlaceArgs { data_dir: Some(data.into()), database_url: None };
        let mut out = Vec::new();
        let done = run(BackupArgs { target: target.into(), place }, &Env::empty(), &mut out);
        (done, String::from_utf8(out).unwrap())
    }

    /// A checkpoint on disk and in the database, whose file says its name and number.
    async fn save(store: &Store, data: &Path, name: &str, number: u32) -> Option<PathBuf> {
        let dir = data.join(format!("checkpoints/s-train-0/weights/{name}.{number}"));
        files::make_dir(&dir).unwrap();
        fs::write(dir.join("weights"), format!("{name} {number}")).unwrap();
        let path = format!("tinker://s:train:0/weights/{name}");
        store.put_checkpoint(&CheckpointRow { dir, ..checkpoint(&path, "o") }).await.unwrap()
    }

    fn partials(beside: &Path) -> usize {
        let names = fs::read_dir(beside).unwrap().map(|e| e.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().contains("partial")).count()
    }

    #[test]
    fn what_a_copy_lists_is_there_although_saves_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        drop(data_dir::open(&data).unwrap());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let store = runtime.block_on(Store::open(&Place::in_dir(&data).url)).unwrap();
        for (file, text) in [("links.key", "secret"), ("journal/0000000001.log", "records"), ("uploads/x", "")] {
            fs::create_dir_all(data.join(file).parent().unwrap()).unwrap();
            fs::write(data.join(file), text).unwrap();
        }
        runtime.block_on(save(&store, &data, "kept", 0));
        let (saving, from) = (store.clone(), data.clone());
        let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
        let saves = runtime.spawn(async move {
            for number in 1.. {
                // As the server does it: a replaced directory goes as a whole, somewhat later.
                if let Some(old) = save(&saving, &from, "latest", number).await {
                    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                    let gone = old.with_file_name(format!("~gone-{number}"));
                    fs::rename(&old, &gone).unwrap();
                    fs::remove_dir_all(gone).unwrap();
                }
                if stopped.try_recv().is_ok() {
                    return number;
                }
            }
            0
        });
        for n in 0..5 {
            let target = dir.path().join(format!("backup{n}"));
            let (done, said) = backup(&data, &target);
            done.unwrap();
            assert!(said.contains(&format!("tinderbox serve --data-dir {}", target.display())), "{said}");
            let text = |file: &str| fs::read_to_string(target.join(file)).unwrap();
            assert_eq!((text("links.key").as_str(), text("journal/0000000001.log").as_str()), ("secret", "records"));
            assert!(!target.join("uploads").exists() && !target.join("lock").exists());
            let rows = runtime.block_on(listed(&target));
            assert!(rows.iter().any(|row| row.path.name == "kept"));
            for row in rows {
                let number = row.dir.extension().unwrap().to_str().unwrap();
                assert!(row.dir.starts_with(&target), "{:?}", row.dir);
                assert_eq!(fs::read_to_string(row.dir.join("weights")).unwrap(), format!("{} {number}", row.path.name));
            }
        }
        stop.send(()).unwrap();
        assert!(runtime.block_on(saves).unwrap() > 5, "saves went on meanwhile");
        assert_eq!(partials(dir.path()), 0);
    }

    /// Its checkpoints as a server on the backup sees them.
    async fn listed(target: &Path) -> Vec<CheckpointRow> {
        let store = Store::open(&Place::in_dir(target).url).await.unwrap();
        store.follow_move(&target.join("checkpoints")).await.unwrap();
        let rows = store.run_checkpoints(&crate::ids::ModelId("s:train:0".into())).await.unwrap();
        store.close().await;
        rows
    }

    #[test]
    fn a_row_without_files_is_left_out_and_told() {
        let dir = tempfile::tempdir().unwrap();
        let (data, target) = (dir.path().join("data"), dir.path().join("backup"));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let store = runtime.block_on(Store::open(&Place::in_dir(&data).url)).unwrap();
        for name in ["kept", "lost"] {
            runtime.block_on(save(&store, &data, name, 0));
        }
        fs::remove_dir_all(data.join("checkpoints/s-train-0/weights/lost.0")).unwrap();
        let (done, said) = backup(&data, &target);
        done.unwrap();
        assert!(said.contains("left out: tinker://s:train:0/weights/lost was deleted"), "{said}");
        let names: Vec<_> = runtime.block_on(listed(&target)).into_iter().map(|row| row.path.name).collect();
        assert_eq!(names, ["kept"]);
    }

    #[test]
    fn a_backup_that_cannot_be_made_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let refused = |data: &Path, target: &Path, why: &str| {
            let message = format!("{:#}", backup(data, target).0.unwrap_err());
            assert!(message.contains(why), "{message}");
            assert_eq!(partials(dir.path()), 0, "{why}");
        };
        refused(&data, &dir.path().join("b"), "there is no data directory");
        fs::create_dir(&data).unwrap();
        refused(&data, &dir.path().join("b"), "holds no database");
        fs::write(data.join("tinderbox.db"), "no database at all, only text").unwrap();
        refused(&data, &dir.path().join("b"), "not a database");
        assert!(!dir.path().join("b").exists());
        refused(&data, &data.join("inside"), "lies in the data directory");
        refused(&data, dir.path(), "is there and not empty");
        fs::write(data.join("format.json"), r#"{"version": 9}"#).unwrap();
        refused(&data, &dir.path().join("b"), "written by a newer tinderbox (format 9");
    }
}
