//! Where to listen.

use std::net::IpAddr;

use super::auth::Auth;
use super::env::Env;
use super::given;
use crate::error::{Error, Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// A name or an address, IPv6 without brackets.
    pub host: String,
    /// 0 = a free one.
    pub port: u16,
    /// Where clients reach the server when that is not where it listens, as behind a TLS proxy; no slash at its end.
    pub public_url: Option<String>,
}

impl Bind {
    pub fn new(host: Option<String>, port: Option<u16>, env: &Env) -> Result<Self> {
        let host = given(host, env, "TINDERBOX_HOST")?.unwrap_or_else(|| "127.0.0.1".into());
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(&host);
        if host.is_empty() {
            return Err(Error::user("--host is empty; give a name or an address, as 127.0.0.1"));
        }
        let port = given(port, env, "TINDERBOX_PORT")?.unwrap_or(8000);
        Ok(Self { host: host.into(), port, public_url: None })
    }

    /// # Errors
    /// A user error for what is no plain `http://` or `https://` address.
    pub fn with_public_url(self, url: Option<String>, env: &Env) -> Result<Self> {
        let Some(url) = given(url, env, "TINDERBOX_PUBLIC_URL")? else { return Ok(self) };
        let place = url.strip_prefix("https://").or(url.strip_prefix("http://")).map(|rest| rest.trim_end_matches('/'));
        let plain = |c: char| c.is_ascii_graphic() && !"?#\\\"<>".contains(c);
        match place {
            Some(place) if !place.is_empty() && !place.starts_with('/') && place.chars().all(plain) => {
                Ok(Self { public_url: Some(url.trim_end_matches('/').into()), ..self })
            }
            _ => Err(Error::user(format!("--public-url {url:?}: give it as https://HOST or https://HOST:PORT/PREFIX"))),
        }
    }

    /// `HOST:PORT`, as a listener or a URL wants it.
    pub fn address(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// Without keys anybody who reaches the port could use the server, so only this machine may.
    pub fn refuse_open_network(&self, auth: &Auth) -> Result<()> {
        if self.is_loopback() || !auth.keys.is_empty() {
            return Ok(());
        }
        Err(Error::user(format!(
            "--host {} can be reached from other machines, and no key is set: give --api-key tml-… \
             (or TINDERBOX_API_KEY), or listen on 127.0.0.1",
            self.host
        )))
    }

    /// A name other than `localhost` may resolve to anything, so it counts as beyond this machine.
    fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(host: &str) -> Bind {
        Bind::new(Some(host.into()), None, &Env::for_testing(&[])).unwrap()
    }

    #[test]
    fn only_loopback_may_be_open() {
        let open = Auth::default();
        for host in ["127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"] {
            assert!(bind(host).refuse_open_network(&open).is_ok(), "{host}");
        }
        for host in ["0.0.0.0", "::", "192.168.0.4", "gpu.example"] {
            assert!(bind(host).refuse_open_network(&open).is_err(), "{host}");
            assert!(bind(host).refuse_open_network(&Auth { keys: vec!["tml-a".into()] }).is_ok(), "{host}");
        }
    }

    #[test]
    fn public_urls() {
        let with = |url: &str| bind("127.0.0.1").with_public_url(Some(url.into()), &Env::for_testing(&[]));
        assert_eq!(with("https://t.example/a/").unwrap().public_url.as_deref(), Some("https://t.example/a"));
        assert_eq!(with("http://t.example:81").unwrap().public_url.as_deref(), Some("http://t.example:81"));
        for bad in ["t.example", "ftp://t.example", "https://", "https:///x", "https://a b", "https://a?x=1"] {
            assert!(with(bad).unwrap_err().message.contains("--public-url"), "{bad}");
        }
        let env = Env::for_testing(&[("TINDERBOX_PUBLIC_URL", "https://e")]);
        assert_eq!(bind("::1").with_public_url(None, &env).unwrap().public_url.as_deref(), Some("https://e"));
    }

    #[test]
    fn addresses() {
        assert_eq!(bind("127.0.0.1").address(), "127.0.0.1:8000");
        assert_eq!(bind("[::1]").address(), "[::1]:8000");
    }
}
