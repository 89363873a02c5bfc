//! Encrypts exported files for age recipients: binary age v1 (age-encryption.org/v1).

use std::io::{self, Read, Write};

use crate::error::{Error, Result};

/// Most recipients of one export (protocol §7.10).
const RECIPIENTS_MAX: usize = 10;

/// Who can decrypt: any one of them. At least one.
pub struct Recipients(Vec<Box<dyn ::age::Recipient + Send + Sync>>);

/// Reads `age1…` X25519 recipients and `ssh-ed25519 …` or `ssh-rsa …` public keys.
///
/// An empty or over-long list and an unreadable recipient, which is named, are user errors.
pub fn recipients(list: &[String]) -> Result<Recipients> {
    if list.is_empty() || list.len() > RECIPIENTS_MAX {
        return Err(Error::user(format!(
            "age_encryption_recipients has {} entries: 1 to {RECIPIENTS_MAX} are allowed",
            list.len()
        )));
    }
    let parsed = list.iter().enumerate().map(|(i, text)| recipient(text).map_err(|why| bad(i, text, &why)));
    parsed.collect::<Result<_>>().map(Recipients)
}

/// Writes the age file that holds what `plain` yields. The output is whole only when this returns `Ok`.
pub fn encrypt(recipients: &Recipients, mut plain: impl Read, encrypted: impl Write) -> Result<()> {
    let keys = recipients.0.iter().map(|r| r.as_ref() as &dyn ::age::Recipient);
    let encryptor =
        ::age::Encryptor::with_recipients(keys).map_err(|e| Error::server(format!("age encryption: {e}")))?;
    let mut stream = encryptor.wrap_output(encrypted)?;
    io::copy(&mut plain, &mut stream)?;
    // The last chunk carries the mark that the file was not cut off.
    stream.finish()?.flush()?;
    Ok(())
}

fn recipient(text: &str) -> Result<Box<dyn ::age::Recipient + Send + Sync>, String> {
    use ::age::ssh::ParseRecipientKeyError as Ssh;
    let text = text.trim();
    if text.starts_with("ssh-") {
        return match text.parse::<::age::ssh::Recipient>() {
            Ok(key) => Ok(Box::new(key)),
            Err(Ssh::RsaModulusTooLarge) => Err("the RSA key is longer than 4096 bits".into()),
            Err(Ssh::RsaModulusTooSmall) => Err("the RSA key is shorter than 2048 bits".into()),
            Err(Ssh::Unsupported(kind)) => Err(format!("{kind} keys cannot be encrypted to")),
            Err(Ssh::Ignore | Ssh::Invalid(_)) => Err("it is no ssh-ed25519 or ssh-rsa public key".into()),
        };
    }
    match text.parse::<::age::x25519::Recipient>() {
        Ok(key) => Ok(Box::new(key)),
        Err(why) => Err(format!("it is neither an age1… recipient ({why}) nor an SSH public key")),
    }
}

/// Shows only the beginning: somebody may have pasted a secret key.
fn bad(index: usize, text: &str, why: &str) -> Error {
    let start: String = text.chars().take(12).collect();
    Error::user(format!("age_encryption_recipients[{index}] ({start:?}…): {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Category;

    const SSH_PUBLIC: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHdZZJF/9SR6HK8kdXugFacOYeUGdf1nfeobvoMwh43u comment";

    fn decrypt(file: &[u8], identity: &dyn ::age::Identity) -> Result<Vec<u8>, ::age::DecryptError> {
        let mut plain = Vec::new();
        ::age::Decryptor::new(file)?.decrypt(std::iter::once(identity))?.read_to_end(&mut plain)?;
        Ok(plain)
    }

    #[test]
    fn any_recipient_decrypts_and_nobody_else() {
        let [x25519, second] = [0; 2].map(|_| ::age::x25519::Identity::generate());
        let recipients =
            recipients(&[x25519.to_public().to_string(), SSH_PUBLIC.into(), second.to_public().to_string()]).unwrap();
        // Several chunks of 64 KiB, the last one partial; also an empty file.
        for length in [0, 200_001] {
            let plain: Vec<u8> = (0..length).map(|i: u32| (i % 251) as u8).collect();
            let mut file = Vec::new();
            encrypt(&recipients, plain.as_slice(), &mut file).unwrap();
            assert!(file.starts_with(b"age-encryption.org/v1\n"));
            assert_eq!(decrypt(&file, &x25519).unwrap(), plain);
            assert_eq!(decrypt(&file, &second).unwrap(), plain);
            assert!(file.windows(15).any(|w| w == b"-> ssh-ed25519 "));
            assert!(decrypt(&file, &::age::x25519::Identity::generate()).is_err());
            assert!(decrypt(&file[..file.len() - 1], &x25519).is_err());
        }
    }

    #[test]
    fn a_wrong_recipient_is_named() {
        let good = ::age::x25519::Identity::generate().to_public().to_string();
        for wrong in ["", "age1", "age1qqqq", "ssh-dss AAAA x", "ssh-ed25519 AAAA", "AGE-SECRET-KEY-1QQQ"] {
            let error = recipients(&[good.clone(), wrong.into()]).err().unwrap();
            assert_eq!(error.category, Category::User);
            assert!(error.message.starts_with("age_encryption_recipients[1] ("), "{}", error.message);
        }
        assert!(recipients(&[]).err().unwrap().message.contains("1 to 10"));
        assert!(recipients(&vec![good.clone(); 11]).err().unwrap().message.contains("has 11 entries"));
        assert!(recipients(&vec![good; 10]).is_ok());
    }
}
