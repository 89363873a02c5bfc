//! What to do about a call that failed.

use tinderbox_client::Error;
use tinderbox_client::types::futures::RequestErrorCategory;

pub fn advice(e: &Error) -> &'static str {
    match e {
        Error::Connection(why) => unreachable(&why.to_lowercase()),
        Error::Status { status, .. } => of_status(*status),
        Error::RequestFailed { category: RequestErrorCategory::User, .. } => {
            "the server takes the call but not what was asked; it may serve this model for other purposes only"
        }
        Error::RequestFailed { .. } => "the server's own fault: its log says more",
        Error::PromiseLost { .. } => {
            "the server forgets accepted work: it was restarted, or several answer at this address"
        }
        Error::Timeout { .. } => SLOW,
        Error::Decode(_) => {
            "what answers there is no Tinker server, or one of another version: look at --url and at proxies in between"
        }
        Error::Usage(_) => "correct --url (http://HOST:PORT, without /api/v1) or --api-key",
    }
}

/// About a call that was given up.
pub const SLOW: &str = "the server hangs or has much to do, or something in between swallows calls: look at its log and load; \
     --timeout waits longer";

fn unreachable(why: &str) -> &'static str {
    if why.contains("refused") {
        "nothing listens there: start the server, or correct host and port of --url"
    } else if why.contains("dns") || why.contains("lookup") {
        "the name is not known: correct the host of --url, or look at the name service"
    } else if why.contains("certificate") || why.contains("tls") {
        "the certificate is not trusted: look at the proxy's certificate, or give http:// where there is none"
    } else if why.contains("timed out") {
        "nothing answers: look at the firewall and at the address of --url"
    } else {
        "the connection broke: look at --url, at proxies in between and at the server's log"
    }
}

fn of_status(status: u16) -> &'static str {
    match status {
        401 | 403 => "give a key that the server knows with --api-key; `tinderbox key create` on the server makes one",
        402 => "the account has to be paid for first",
        404 => "the address does not know this call: --url is to be the server's root, without /api/v1",
        413 => "something in between takes no bodies of this size: raise the proxy's limit",
        429 => "the account's quota is used up or the server has too much to do: try again later, or raise the quota",
        400..500 => "the server refuses the call: its version may not be that of this client",
        502..=504 => "the proxy does not reach the server behind it, or that is just starting: look there",
        _ => "the server's own fault: its log says more, and `tinderbox doctor` there",
    }
}
