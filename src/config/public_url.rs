//! The address under which clients reach the server, where that is not the one they connect to.

use std::str::FromStr;

use crate::error::{Error, Result};

/// `http(s)://HOST[:PORT][/PREFIX]`, without a slash at its end. Links that the server hands out begin with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicUrl(String);

impl PublicUrl {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PublicUrl {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let url = s.trim_end_matches('/');
        let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        let (host, prefix) = rest.map_or(("", ""), |rest| rest.split_at(rest.find('/').unwrap_or(rest.len())));
        if is_host(host) && (prefix.is_empty() || is_prefix(prefix)) {
            return Ok(Self(url.into()));
        }
        Err(Error::user(format!(
            "{s:?} is not of the form https://HOST[:PORT][/PREFIX], without login, query or fragment"
        )))
    }
}

/// A name or an address, IPv6 in brackets, with or without a port.
pub fn is_host(host: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b".-_:[]".contains(&b);
    (1..=255).contains(&host.len()) && host.bytes().all(allowed) && !host.starts_with(':')
}

/// Begins with one slash and ends without, of characters that need no escaping.
pub fn is_prefix(prefix: &str) -> bool {
    let segment = |s: &str| {
        !s.is_empty() && s != "." && s != ".." && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"._~-".contains(&b))
    };
    prefix.len() <= 255 && prefix.strip_prefix('/').is_some_and(|rest| rest.split('/').all(segment))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_and_without_port_and_prefix() {
        for (given, kept) in [
            ("https://tinker.example", "https://tinker.example"),
            ("https://tinker.example:8443/", "https://tinker.example:8443"),
            ("http://10.0.0.1/a/b_c/", "http://10.0.0.1/a/b_c"),
            ("https://[::1]:8000", "https://[::1]:8000"),
        ] {
            assert_eq!(given.parse::<PublicUrl>().unwrap().as_str(), kept);
        }
    }

    #[test]
    fn anything_else_is_refused_with_the_form() {
        for wrong in [
            "",
            "tinker.example",
            "ftp://a",
            "https://",
            "https:///a",
            "https://u:p@a",
            "https://a/b?c",
            "https://a#b",
            "https://a//b",
            "https://a/../b",
            "https://a b",
            "https://:80",
        ] {
            assert!(wrong.parse::<PublicUrl>().unwrap_err().message.contains("https://HOST"), "{wrong}");
        }
    }
}
