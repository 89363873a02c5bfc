//! Where the Hugging Face hub's local cache is and whether the hub may be asked, by the hub's own variables.

use std::path::PathBuf;

use super::env::Env;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hub {
    /// The folder that holds `models--ORG--NAME` folders.
    pub cache_dir: PathBuf,
    /// Never download.
    pub offline: bool,
}

impl Hub {
    pub fn from_env(env: &Env) -> Self {
        let home = || PathBuf::from(env.get("HOME").unwrap_or("."));
        let cache = || env.get("XDG_CACHE_HOME").map_or_else(|| home().join(".cache"), PathBuf::from);
        let hub_home = || env.get("HF_HOME").map_or_else(|| cache().join("huggingface"), PathBuf::from);
        let offline = env.get("HF_HUB_OFFLINE").unwrap_or_default().to_ascii_uppercase();
        Self {
            cache_dir: env.get("HF_HUB_CACHE").map_or_else(|| hub_home().join("hub"), PathBuf::from),
            offline: matches!(offline.as_str(), "1" | "ON" | "YES" | "TRUE"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_specific_variable_wins() {
        let dir = |pairs: &[(&str, &str)]| Hub::from_env(&Env::for_testing(pairs)).cache_dir;
        let mut pairs = vec![("HOME", "/home/u")];
        assert_eq!(dir(&pairs), PathBuf::from("/home/u/.cache/huggingface/hub"));
        pairs.push(("XDG_CACHE_HOME", "/c"));
        assert_eq!(dir(&pairs), PathBuf::from("/c/huggingface/hub"));
        pairs.push(("HF_HOME", "/hf"));
        assert_eq!(dir(&pairs), PathBuf::from("/hf/hub"));
        pairs.push(("HF_HUB_CACHE", "/hub"));
        assert_eq!(dir(&pairs), PathBuf::from("/hub"));
    }

    #[test]
    fn offline_is_read_as_the_hub_reads_it() {
        for (value, offline) in [("1", true), ("true", true), ("0", false), ("", false)] {
            assert_eq!(Hub::from_env(&Env::for_testing(&[("HF_HUB_OFFLINE", value)])).offline, offline, "{value}");
        }
    }
}
