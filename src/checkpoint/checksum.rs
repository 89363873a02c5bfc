//! CRC-32 of a checkpoint's arrays: what a disk has changed is not loaded.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};

/// Bytes read at a time.
const BLOCK: usize = 1 << 20;

/// By file name, as eight hexadecimal digits.
pub type Checksums = BTreeMap<String, String>;

/// Of every safetensors file in this directory.
pub fn of_arrays(dir: &Path) -> Result<Checksums> {
    let mut sums = Checksums::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).filter(|n| n.ends_with(".safetensors"));
        if let Some(name) = name {
            sums.insert(name.to_owned(), sum(&path)?);
        }
    }
    Ok(sums)
}

/// # Errors
/// Server errors that name the file that is not what it was.
pub fn verify(dir: &Path, sums: &Checksums) -> Result<()> {
    for (name, expected) in sums {
        let path = dir.join(name);
        if sum(&path)? != *expected {
            return Err(Error::server(format!("{} is damaged: its checksum", path.display())));
        }
    }
    Ok(())
}

fn sum(path: &Path) -> Result<String> {
    let failed = |e: std::io::Error| Error::server(format!("cannot read {}: {e}", path.display()));
    let mut file = File::open(path).map_err(failed)?;
    let (mut crc, mut block) = (crc32fast::Hasher::new(), vec![0; BLOCK]);
    loop {
        match file.read(&mut block).map_err(failed)? {
            0 => return Ok(format!("{:08x}", crc.finalize())),
            n => crc.update(&block[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_noticed_and_its_file_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.safetensors");
        fs::write(&path, b"123456789").unwrap();
        fs::write(dir.path().join("config.json"), "{}").unwrap();
        let sums = of_arrays(dir.path()).unwrap();
        // The check value of CRC-32 (ISO-HDLC).
        assert_eq!(sums, Checksums::from([("a.safetensors".into(), "cbf43926".into())]));
        verify(dir.path(), &sums).unwrap();
        fs::write(&path, b"123456780").unwrap();
        let e = verify(dir.path(), &sums).unwrap_err();
        assert!(e.message.contains("a.safetensors is damaged"), "{e}");
    }
}
