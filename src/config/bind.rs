//! Where to listen.

use std::net::IpAddr;

use super::env::Env;
use super::given;
use crate::error::{Error, Result};

/// What a port is written as.
const PORT: &str = "a port, which is a whole number from 0 to 65535";

/// Reads a flag's port.
pub fn port(text: &str) -> Result<u16> {
    text.parse().map_err(|_| Error::user(format!("give {PORT}")))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// A name or an address, IPv6 without brackets.
    pub host: String,
    /// 0 = a free one.
    pub port: u16,
}

impl Bind {
    pub fn new(host: Option<String>, port: Option<u16>, env: &Env) -> Result<Self> {
        let host = given(host, env, "TINDERBOX_HOST")?.unwrap_or_else(|| "127.0.0.1".into());
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(&host);
        if host.is_empty() {
            return Err(Error::user("--host is empty; give a name or an address, as 127.0.0.1"));
        }
        let port = match port {
            Some(port) => Some(port),
            None => env.number("TINDERBOX_PORT", PORT)?,
        };
        Ok(Self { host: host.into(), port: port.unwrap_or(8000) })
    }

    /// `HOST:PORT`, as a listener or a URL wants it.
    pub fn address(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// Without keys anybody who reaches the port could use the server, so only this machine may. `keys` says whether
    /// there is one, be it a flag's or the database's.
    pub fn refuse_open_network(&self, keys: bool) -> Result<()> {
        if self.is_loopback() || keys {
            return Ok(());
        }
        Err(Error::user(format!(
            "--host {} can be reached from other machines, and there is no key: make one with tinderbox key create \
             --name NAME (with the same --data-dir or --database-url), give --api-key tml-… (or TINDERBOX_API_KEY), or \
             listen on 127.0.0.1",
            self.host
        )))
    }

    /// A name other than `localhost` may resolve to anything, so it counts as beyond this machine.
    pub fn is_loopback(&self) -> bool {
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
        for host in ["127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]"] {
            assert!(bind(host).refuse_open_network(false).is_ok(), "{host}");
        }
        for host in ["0.0.0.0", "::", "192.168.0.4", "gpu.example"] {
            let message = bind(host).refuse_open_network(false).unwrap_err().message;
            assert!(message.contains("key create") && message.contains("--api-key"), "{message}");
            assert!(bind(host).refuse_open_network(true).is_ok(), "{host}");
        }
    }

    #[test]
    fn a_wrong_port_is_told_what_one_is() {
        let wanted = "give a port, which is a whole number from 0 to 65535";
        assert_eq!(port("abc").unwrap_err().message, wanted);
        let message = Bind::new(None, None, &Env::for_testing(&[("TINDERBOX_PORT", "70000")])).unwrap_err().message;
        assert_eq!(message, format!("TINDERBOX_PORT=\"70000\": {wanted}"));
    }

    #[test]
    fn addresses() {
        assert_eq!(bind("127.0.0.1").address(), "127.0.0.1:8000");
        assert_eq!(bind("[::1]").address(), "[::1]:8000");
    }
}
