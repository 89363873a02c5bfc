//! A checkpoint directory as a tar file (ustar), made while it is sent.

use std::path::Path;

use crate::error::{Error, Result};

use super::content::{Content, Part};

const BLOCK: u64 = 512;

/// Says that the archive is whole; clients look for it.
const COMPLETE: &str = "checkpoint_complete";

/// A directory's files with their sizes, by name.
pub async fn files(dir: &Path) -> Result<Vec<(String, u64)>> {
    let mut entries = tokio::fs::read_dir(dir).await.map_err(|e| {
        tracing::warn!(dir = %dir.display(), error = %e, "checkpoint directory not read");
        Error::server("the checkpoint's files cannot be read")
    })?;
    let mut files = Vec::new();
    while let Some(entry) = entries.next_entry().await? {
        let meta = entry.metadata().await?;
        if let (true, Some(name)) = (meta.is_file(), entry.file_name().to_str()) {
            files.push((name.to_owned(), meta.len()));
        }
    }
    files.sort();
    Ok(files)
}

/// What belongs into an archive: the weights, not the optimiser, and the end mark.
pub fn contents(files: Vec<(String, u64)>) -> Vec<(String, u64)> {
    let weights = files.into_iter().filter(|(name, _)| !name.starts_with("optimizer."));
    weights.chain([(COMPLETE.to_owned(), 0)]).collect()
}

/// The whole tar file: the same bytes each time, so that a part of it can be fetched later.
pub fn tar(dir: &Path, files: &[(String, u64)]) -> Content {
    let mut parts = Vec::new();
    for (name, size) in files {
        parts.push(Part::Bytes(head(name, *size).to_vec()));
        if *size > 0 {
            parts.push(Part::File(dir.join(name), *size));
        }
        parts.push(Part::Bytes(vec![0; (size.next_multiple_of(BLOCK) - size) as usize]));
    }
    parts.push(Part::Bytes(vec![0; 2 * BLOCK as usize]));
    Content(parts)
}

/// One ustar header. Names of checkpoint files are short; sizes beyond 8 GiB take the base-256 form.
fn head(name: &str, size: u64) -> [u8; BLOCK as usize] {
    let mut h = [0u8; BLOCK as usize];
    let mut put = |at: usize, bytes: &[u8]| h[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &name.as_bytes()[..name.len().min(100)]);
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    if size < 1 << 33 {
        put(124, format!("{size:011o}\0").as_bytes());
    } else {
        put(124, &[0x80]);
        put(128, &size.to_be_bytes());
    }
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = h.iter().map(|b| u32::from(*b)).sum();
    h[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    h
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    #[tokio::test]
    async fn a_tar_of_two_files() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("b.bin"), [7u8; 600]).unwrap();
        std::fs::write(dir.path().join("a.json"), b"{}").unwrap();
        std::fs::write(dir.path().join("optimizer.safetensors"), b"x").unwrap();
        let listed = contents(files(dir.path()).await.unwrap());
        let names: Vec<&str> = listed.iter().map(|f| f.0.as_str()).collect();
        assert_eq!(names, ["a.json", "b.bin", "checkpoint_complete"]);

        let content = super::tar(dir.path(), &listed);
        let (mut reader, mut writer) = tokio::io::duplex(1 << 16);
        let size = content.size();
        content.write(0..size, &mut writer).await.unwrap();
        drop(writer);
        let mut tar = Vec::new();
        reader.read_to_end(&mut tar).await.unwrap();
        assert_eq!(tar.len() as u64, size);
        assert_eq!(&tar[..6], b"a.json");
        assert_eq!(&tar[124..136], b"00000000002\0");
        assert_eq!(&tar[512..514], b"{}");
        assert_eq!(&tar[1024..1029], b"b.bin");
        assert_eq!(tar[1536..2136], [7u8; 600]);
    }

    #[test]
    fn the_checksum_counts_itself_as_spaces() {
        let h = head("a", 0);
        let mut blank = h;
        blank[148..156].copy_from_slice(b"        ");
        let sum: u32 = blank.iter().map(|b| u32::from(*b)).sum();
        assert_eq!(&h[148..155], format!("{sum:06o}\0").as_bytes());
        assert_eq!(head("a", 1 << 40)[124], 0x80);
    }
}
