//! Links that work without credentials (protocol §13.4): a token that names a checkpoint, an upload or an export, expires
//! and cannot be made up.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;

use chrono::{DateTime, Utc};
use hmac::{Hmac, Mac};
use rand::TryRngCore;
use sha2::Sha256;

use crate::error::{Error, Result};
use crate::ids::{CheckpointKind, CheckpointPath, ModelId, check_name};

const KEY_FILE: &str = "links.key";
const KEY_BYTES: usize = 32;

/// Set before what is signed, so that this key never signs the same bytes for another purpose.
const PURPOSE: &[u8] = b"tinderbox transfer link v1\0";

/// The kind of links to checkpoints.
const CHECKPOINT: &str = "checkpoint";

/// The last word of what a checkpoint's token seals: for whom it was made.
const FOR_ITS_OWNER: &str = "own";
const FOR_ANYONE: &str = "published";

/// What a link to a checkpoint's files names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointLink {
    pub path: CheckpointPath,
    /// Which save of that path, so that the link ends when the path is overwritten. Characters of file names, no `~`.
    pub save: String,
    /// Given to someone else than the owner: it works only while the checkpoint is published.
    pub while_published: bool,
}

/// Makes and checks tokens with the data directory's secret key.
#[derive(Clone)]
pub struct Links {
    key: [u8; KEY_BYTES],
}

impl Links {
    /// Reads the key of this data directory, or makes one that only this user can read.
    pub fn open(data_dir: &Path) -> Result<Self> {
        let path = data_dir.join(KEY_FILE);
        let context = |e: std::io::Error| Error::server(format!("{}: {e}", path.display()));
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => make_key(data_dir, &path).map_err(context)?,
            Err(e) => return Err(context(e)),
        };
        let key = bytes.try_into().map_err(|bytes: Vec<u8>| {
            Error::server(format!(
                "{}: {} bytes instead of {KEY_BYTES}; remove it, and links and tokens given so far end",
                path.display(),
                bytes.len()
            ))
        })?;
        Ok(Self { key })
    }

    /// A path segment of a URL that names a thing of this kind: `KIND~ID~EXPIRES~SIGNATURE`, of characters that need no
    /// escaping there if `id` is. A kind holds no `~`.
    pub fn seal(&self, kind: &str, id: &str, expires: DateTime<Utc>) -> String {
        let signed = format!("{kind}~{id}~{}", expires.timestamp());
        let signature = hex::encode(self.mac(&signed).finalize().into_bytes());
        format!("{signed}~{signature}")
    }

    /// The id that was sealed as this kind; `None` when a byte was altered or its time is over.
    pub fn unseal(&self, kind: &str, token: &str, now: DateTime<Utc>) -> Option<String> {
        let (signed, signature) = token.rsplit_once('~')?;
        // Compares in constant time. Only what passes is looked into.
        self.mac(signed).verify_slice(&unhex(signature)?).ok()?;
        let (sealed_kind, rest) = signed.split_once('~')?;
        let (id, expires) = rest.rsplit_once('~')?;
        (sealed_kind == kind && now.timestamp() < expires.parse().ok()?).then(|| id.to_owned())
    }

    /// A checkpoint, sealed as `RUN~KIND~NAME~SAVE~WHOSE`: the slashes of its path would need escaping.
    pub fn seal_checkpoint(&self, link: &CheckpointLink, expires: DateTime<Utc>) -> String {
        let CheckpointLink { path: CheckpointPath { run, kind, name }, save, while_published } = link;
        let whose = if *while_published { FOR_ANYONE } else { FOR_ITS_OWNER };
        self.seal(CHECKPOINT, &format!("{run}~{}~{name}~{save}~{whose}", kind.segment()), expires)
    }

    pub fn unseal_checkpoint(&self, token: &str, now: DateTime<Utc>) -> Option<CheckpointLink> {
        let id = self.unseal(CHECKPOINT, token, now)?;
        let [run, kind, name, save, whose] = id.split('~').collect::<Vec<_>>().try_into().ok()?;
        check_name(name).ok()?;
        let (run, kind, name) = (ModelId(run.into()), CheckpointKind::from_segment(kind)?, name.into());
        let path = CheckpointPath { run, kind, name };
        Some(CheckpointLink { path, save: save.into(), while_published: whose != FOR_ITS_OWNER })
    }

    /// A secret for another purpose, the same as long as the data directory's key is.
    pub fn secret_for(&self, purpose: &[u8]) -> [u8; KEY_BYTES] {
        let mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes keys of any length");
        mac.chain_update(purpose).finalize().into_bytes().into()
    }

    fn mac(&self, signed: &str) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes keys of any length");
        mac.chain_update(PURPOSE).chain_update(signed)
    }
}

/// Written under another name first, so that a killed process leaves no half of a key.
fn make_key(data_dir: &Path, path: &Path) -> std::io::Result<Vec<u8>> {
    fs::create_dir_all(data_dir)?;
    let mut key = vec![0; KEY_BYTES];
    rand::rngs::OsRng.try_fill_bytes(&mut key).map_err(std::io::Error::other)?;
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&temporary)?;
    file.write_all(&key)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    Ok(key)
}

/// Lower case only: each signature has one spelling.
fn unhex(text: &str) -> Option<Vec<u8>> {
    hex::decode(text).ok().filter(|_| !text.bytes().any(|b| b.is_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).unwrap()
    }

    fn link() -> CheckpointLink {
        let path = "tinker://11111111-2222-4333-8444-555555555555:train:0/external_weights/a.b_c-1".parse().unwrap();
        CheckpointLink { path, save: "a.b_c-1.0f".into(), while_published: true }
    }

    fn links() -> Links {
        Links { key: [7; KEY_BYTES] }
    }

    #[test]
    fn a_token_names_its_checkpoint_until_it_expires() {
        let own = CheckpointLink { while_published: false, ..link() };
        assert_eq!(links().unseal_checkpoint(&links().seal_checkpoint(&own, at(1000)), at(999)), Some(own));
        let token = links().seal_checkpoint(&link(), at(1000));
        assert_eq!(links().unseal_checkpoint(&token, at(999)), Some(link()));
        assert_eq!(links().unseal_checkpoint(&token, at(1000)), None);
        assert!(token.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~:".contains(&b)), "{token}");
    }

    #[test]
    fn the_signature_is_hmac_sha256() {
        let path = "tinker://r/weights/n".parse().unwrap();
        let token =
            links().seal_checkpoint(&CheckpointLink { path, save: "n.1".into(), while_published: false }, at(1000));
        assert_eq!(
            token,
            "checkpoint~r~weights~n~n.1~own~1000~78f0d632c7eb72b441463653c69ea9ff9dc4e688af10888d17143b239762fda5"
        );
    }

    #[test]
    fn any_altered_byte_fails() {
        let token = links().seal_checkpoint(&link(), at(1000));
        for i in 0..token.len() {
            for other in [b'0', b'a', b'A', b'~', b'9'] {
                let mut altered = token.clone().into_bytes();
                if altered[i] != other {
                    altered[i] = other;
                    assert_eq!(
                        links().unseal_checkpoint(&String::from_utf8(altered).unwrap(), at(0)),
                        None,
                        "byte {i}"
                    );
                }
            }
        }
        for cut in 0..token.len() {
            assert_eq!(links().unseal_checkpoint(&token[..cut], at(0)), None);
        }
        assert_eq!(links().unseal_checkpoint(&format!("{token}0"), at(0)), None);
        assert_eq!(links().unseal_checkpoint(&token.replace("~1000~", "~9000~"), at(0)), None);
        assert_eq!(Links { key: [8; KEY_BYTES] }.unseal_checkpoint(&token, at(0)), None);
    }

    #[test]
    fn a_seal_opens_as_its_own_kind_until_it_expires() {
        let token = links().seal("upload", "1-2", at(1000));
        assert_eq!(links().unseal("upload", &token, at(999)).as_deref(), Some("1-2"));
        assert_eq!(links().unseal("upload", &token, at(1000)), None);
        assert_eq!(links().unseal("export", &token, at(999)), None);
        assert_eq!(links().unseal("upload", &token.replace("1-2", "1-3"), at(999)), None);
        assert_eq!(links().unseal_checkpoint(&token, at(999)), None);
        assert_eq!(links().unseal("upload", &links().seal_checkpoint(&link(), at(1000)), at(999)), None);
    }

    #[test]
    fn the_key_survives_a_restart_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("new");
        let token = Links::open(&data).unwrap().seal_checkpoint(&link(), at(1000));
        assert_eq!(Links::open(&data).unwrap().unseal_checkpoint(&token, at(0)), Some(link()));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(data.join(KEY_FILE)).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let names: Vec<_> = fs::read_dir(&data).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, [KEY_FILE]);
        let secret = Links::open(&data).unwrap().secret_for(b"a");
        assert_eq!(Links::open(&data).unwrap().secret_for(b"a"), secret);
        assert_ne!(Links::open(&data).unwrap().secret_for(b"b"), secret);
        let other = tempfile::tempdir().unwrap();
        assert_eq!(Links::open(other.path()).unwrap().unseal_checkpoint(&token, at(0)), None);
        fs::write(data.join(KEY_FILE), b"short").unwrap();
        assert!(Links::open(&data).err().unwrap().message.contains("5 bytes instead of 32"));
    }
}
