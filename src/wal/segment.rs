//! Segment files: their names, and what is done to them.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::Place;
use crate::error::{Error, Result};

pub(super) fn read_at(dir: &Path, place: Place) -> Result<Vec<u8>> {
    let path = segment_path(dir, place.segment);
    let mut payload = vec![0; place.len as usize];
    let read = File::open(&path).and_then(|mut file| {
        file.seek(SeekFrom::Start(place.offset))?;
        file.read_exact(&mut payload)
    });
    read.map_err(|e| at(&path, &e))?;
    Ok(payload)
}

pub(super) fn create(dir: &Path, number: u64) -> Result<File> {
    let path = segment_path(dir, number);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(&path).map_err(|e| at(&path, &e))
}

pub(super) fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:010}.log"))
}

pub(super) fn segment_numbers(dir: &Path) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir).map_err(|e| at(dir, &e))? {
        let name = entry.map_err(|e| at(dir, &e))?.file_name();
        numbers.extend(name.to_str().and_then(|n| n.strip_suffix(".log")).and_then(|n| n.parse::<u64>().ok()));
    }
    Ok(numbers)
}

pub(super) fn at(path: &Path, e: &std::io::Error) -> Error {
    Error::server(format!("journal {}: {e}", path.display()))
}
