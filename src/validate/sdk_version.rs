//! Which clients are too old to be served (protocol ch. 20).

use crate::error::{Error, Result};

/// The oldest SDK that every part of the wire is served to.
const OLDEST: (u32, u32) = (0, 16);

/// A user error for `MAJOR.MINOR…` below the oldest one. Anything that is no such number is another client's own name for
/// itself, and welcome.
pub fn supported(version: &str) -> Result<()> {
    if number(version).is_none_or(|number| number >= OLDEST) {
        return Ok(());
    }
    Err(Error::user(format!(
        "sdk_version {version:?} is too old for this server: please upgrade tinker to {}.{}.0 or newer",
        OLDEST.0, OLDEST.1
    )))
}

/// Major and minor number of `MAJOR.MINOR…`.
pub fn number(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(|part| part.parse().ok());
    numbers.next().flatten().zip(numbers.next().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_below_the_oldest_are_told_what_to_upgrade_to() {
        for served in ["0.16.0", "0.38.0", "0.100.1", "1.0.0", "0.16", "0.17.0rc1", "my-client/3", "", "0.x"] {
            assert!(supported(served).is_ok(), "{served}");
        }
        for old in ["0.15.9", "0.3.0", "0.0.1-alpha.1"] {
            let message = supported(old).unwrap_err().message;
            assert!(message.contains(old) && message.contains("upgrade tinker to 0.16.0"), "{message}");
        }
    }
}
