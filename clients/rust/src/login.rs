//! Exchanges the key for a token where the server wants that, and keeps the token fresh (protocol §2.3).

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::transport::Transport;
use crate::types::service::AuthTokenResponse;

/// After a renewal that failed; the old token is used as long as it lasts.
const PAUSE: Duration = Duration::from_secs(60);

pub(crate) struct Login {
    api_key: String,
    renew_at: Instant,
}

#[derive(Deserialize)]
struct Claims {
    /// Seconds since 1970.
    iat: f64,
    exp: f64,
}

impl Login {
    /// The transport presents the token from now on.
    pub async fn new(transport: &Transport, api_key: &str) -> Result<Self> {
        let renew_at = exchange(transport).await?;
        Ok(Self { api_key: api_key.into(), renew_at })
    }

    /// Takes a new token when half of the old one's life is over.
    pub async fn renew(&mut self, transport: &Transport) {
        if Instant::now() < self.renew_at {
            return;
        }
        let renewed = match transport.sibling(&self.api_key) {
            Ok(other) => token(&other).await.and_then(|token| accept(transport, &token)),
            Err(e) => Err(e),
        };
        self.renew_at = renewed.unwrap_or_else(|error| {
            tracing::warn!(%error, "the token was not renewed");
            Instant::now() + PAUSE
        });
    }
}

async fn exchange(transport: &Transport) -> Result<Instant> {
    accept(transport, &token(transport).await?)
}

async fn token(transport: &Transport) -> Result<String> {
    Ok(transport.post::<AuthTokenResponse>("/auth/token", &serde_json::json!({})).await?.jwt)
}

/// Presents the token; says when to take the next.
fn accept(transport: &Transport, token: &str) -> Result<Instant> {
    let life = life(token)?;
    transport.present(token)?;
    Ok(Instant::now() + life / 2)
}

/// How long a token lives. It is read, not verified: that is the server's part.
fn life(token: &str) -> Result<Duration> {
    let bad = |why: &str| Error::Decode(format!("/auth/token: {why}"));
    let payload = token.split('.').nth(1).ok_or_else(|| bad("no JWT"))?;
    let payload = URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).map_err(|_| bad("no JWT"))?;
    let claims: Claims = serde_json::from_slice(&payload).map_err(|e| bad(&e.to_string()))?;
    Duration::try_from_secs_f64(claims.exp - claims.iat).map_err(|_| bad("exp lies before iat"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.x", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn a_tokens_life_is_between_its_times() {
        assert_eq!(
            life(&token(r#"{"iat": 1000, "exp": 1600.5, "sub": "u"}"#)).unwrap(),
            Duration::from_secs_f64(600.5)
        );
        for bad in ["", "a.b", &token("{}"), &token(r#"{"iat": 2, "exp": 1}"#)] {
            assert!(matches!(life(bad), Err(Error::Decode(_))), "{bad}");
        }
    }
}
