//! The port: free, or who answers there.

use std::io::ErrorKind;
use std::time::Duration;

use tinderbox_client::{ClientOptions, RestClient};

use super::line::Line;
use crate::config::bind::Bind;

const AREA: &str = "port";
const CHECK: &str = "is free";
/// Who is on this machine answers sooner.
pub const PATIENCE: Duration = Duration::from_secs(5);

pub async fn check(bind: &Bind, limit: Duration) -> Vec<Line> {
    let address = bind.address();
    let line = match tokio::net::TcpListener::bind(&address).await {
        Ok(_) => Line::pass(AREA, CHECK, format!("{address} can be listened on")),
        Err(e) if e.kind() == ErrorKind::AddrInUse => match is_tinker(bind, limit).await {
            true => Line::pass(AREA, CHECK, format!("a Tinker server answers on {address}")).better(
                true,
                format!("tinderbox doctor --url http://{address} checks that one; a second takes another --port"),
            ),
            false => Line::fail(
                AREA,
                CHECK,
                format!("{address} is taken by another program, which is no Tinker server"),
                "take another port with --port, or end that program (ss -ltnp shows it)",
            ),
        },
        Err(e) if e.kind() == ErrorKind::AddrNotAvailable => {
            let advice = "give an address of this machine with --host; 0.0.0.0 stands for all of them";
            Line::fail(AREA, CHECK, format!("{} is no address of this machine", bind.host), advice)
        }
        Err(e) => Line::fail(AREA, CHECK, format!("{address}: {e}"), "take another port with --port, above 1023"),
    };
    vec![line]
}

async fn is_tinker(bind: &Bind, limit: Duration) -> bool {
    // What listens on all addresses answers on this one too.
    let host = match bind.host.as_str() {
        "0.0.0.0" => "127.0.0.1",
        "::" => "::1",
        host => host,
    };
    let url = format!("http://{}", Bind { host: host.into(), port: bind.port }.address());
    let options = ClientOptions { retry_for: Some(Duration::ZERO), ..ClientOptions::new(url, "tml-doctor") };
    let Ok(rest) = RestClient::connect_with(&options) else { return false };
    tokio::time::timeout(limit, rest.healthz()).await.is_ok_and(|answer| answer.is_ok())
}
