//! The address under which a client sees this server: links that it is given begin with it.

use axum::http::HeaderMap;

use crate::config::public_url::{PublicUrl, is_host, is_prefix};

use super::headers::text;

/// `http(s)://HOST[:PORT][/PREFIX]`, without a slash at its end.
///
/// What was configured wins. Else the request's headers say it, as a proxy set them, or the client itself: they are
/// believed in nothing but this, where a lie spoils only the liar's own links. One that could not stand in a URL is
/// passed over.
pub fn base_url(public: Option<&PublicUrl>, headers: &HeaderMap) -> String {
    if let Some(url) = public {
        return url.as_str().to_owned();
    }
    let proto = first(headers, "x-forwarded-proto").or_else(|| forwarded(headers, "proto"));
    let scheme = proto.filter(|p| p.eq_ignore_ascii_case("https")).map_or("http", |_| "https");
    let hosts = [first(headers, "x-forwarded-host"), forwarded(headers, "host"), first(headers, "host")];
    let host = hosts.into_iter().flatten().find(|host| is_host(host)).unwrap_or("localhost");
    let prefix = first(headers, "x-forwarded-prefix").map(|p| p.trim_end_matches('/'));
    let prefix = prefix.filter(|p| is_prefix(p)).unwrap_or_default();
    format!("{scheme}://{host}{prefix}")
}

/// Each proxy on the way adds a value at the end: the first is what the client used.
fn first<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let value = text(headers, name)?;
    value.split(',').next().map(str::trim).filter(|v| !v.is_empty())
}

/// A parameter of the first element of `Forwarded` (RFC 7239).
fn forwarded<'h>(headers: &'h HeaderMap, parameter: &str) -> Option<&'h str> {
    let pairs = first(headers, "forwarded")?.split(';').filter_map(|pair| pair.split_once('='));
    let mut of_name = pairs.filter(|(name, _)| name.trim().eq_ignore_ascii_case(parameter));
    of_name.next().map(|(_, value)| value.trim().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(pairs: &[(&'static str, &'static str)]) -> String {
        let headers = pairs.iter().map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap())).collect();
        base_url(None, &headers)
    }

    #[test]
    fn a_proxys_headers_win_over_the_connection() {
        let host = ("host", "127.0.0.1:8000");
        assert_eq!(url(&[host]), "http://127.0.0.1:8000");
        assert_eq!(url(&[host, ("x-forwarded-proto", "https")]), "https://127.0.0.1:8000");
        assert_eq!(
            url(&[
                host,
                ("x-forwarded-proto", "https, http"),
                ("x-forwarded-host", "tinker.example, 10.0.0.1"),
                ("x-forwarded-prefix", "/tb/")
            ]),
            "https://tinker.example/tb"
        );
        assert_eq!(
            url(&[host, ("forwarded", "for=1.2.3.4; Proto=https;host=\"t.example:8443\", for=10.0.0.1;host=b")]),
            "https://t.example:8443"
        );
        assert_eq!(url(&[]), "http://localhost");
    }

    #[test]
    fn what_cannot_stand_in_a_url_is_passed_over() {
        let host = ("host", "a.example");
        for wrong in [
            ("x-forwarded-host", "evil.example/path"),
            ("x-forwarded-host", "user@evil.example"),
            ("x-forwarded-host", ""),
            ("x-forwarded-prefix", "//evil.example"),
            ("x-forwarded-prefix", "/a?b"),
            ("x-forwarded-prefix", "a"),
            ("x-forwarded-proto", "javascript"),
            ("forwarded", "host=\"a b\";proto"),
        ] {
            assert_eq!(url(&[host, wrong]), "http://a.example", "{wrong:?}");
        }
    }

    #[test]
    fn what_was_configured_wins_over_all() {
        let headers = [("host", "a"), ("x-forwarded-host", "b")];
        let headers = headers.iter().map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap())).collect();
        let public = "https://tinker.example/tb/".parse().unwrap();
        assert_eq!(base_url(Some(&public), &headers), "https://tinker.example/tb");
    }
}
