//! JSON web tokens that clients get for their key and send in its place (protocol §2.3): HS256, ours alone.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, TimeDelta, Utc};
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::ids::OwnerId;

/// The only header there is: a token that names another algorithm is none of ours.
const HEADER: &str = r#"{"alg":"HS256","typ":"JWT"}"#;

/// Clients take a token with this beginning as an identity also when it is all they have.
const ISSUER: &str = "passport-tinderbox";

/// What a token says. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claims {
    pub exp: i64,
    pub iat: i64,
    pub sub: String,
    pub org_id: String,
    /// What the key is called; an address if the key was named so.
    pub email: String,
    pub iss: String,
    /// Which key it was made for: looked up at every use.
    pub key: String,
}

/// Makes and checks tokens.
pub struct Tokens {
    secret: [u8; 32],
    lifetime: Duration,
}

impl Tokens {
    pub fn new(secret: [u8; 32], lifetime: Duration) -> Self {
        Self { secret, lifetime }
    }

    /// Good for the lifetime, but not beyond `until`.
    pub fn issue(
        &self,
        owner: &OwnerId,
        name: &str,
        key: String,
        now: DateTime<Utc>,
        until: Option<DateTime<Utc>>,
    ) -> String {
        let end = now + TimeDelta::from_std(self.lifetime).unwrap_or(TimeDelta::MAX);
        let claims = Claims {
            exp: until.map_or(end, |until| until.min(end)).timestamp(),
            iat: now.timestamp(),
            sub: format!("tml:user:{owner}"),
            org_id: owner.0.clone(),
            email: name.into(),
            iss: ISSUER.into(),
            key,
        };
        let claims = serde_json::to_vec(&claims).expect("strings and numbers have a JSON form");
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(HEADER), URL_SAFE_NO_PAD.encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(self.mac(&signed).finalize().into_bytes());
        format!("{signed}.{signature}")
    }

    /// What a token of ours says that has not expired; or why it is none, for its sender.
    pub fn verify(&self, token: &str, now: DateTime<Utc>) -> Result<Claims, &'static str> {
        self.signed(token).filter(|c| now.timestamp() < c.exp).ok_or_else(|| match self.signed(token) {
            Some(_) => "the token has expired",
            None => "the token was not made by this server",
        })
    }

    fn signed(&self, token: &str) -> Option<Claims> {
        let (signed, signature) = token.rsplit_once('.')?;
        // Compares in constant time. Only what passes is looked into.
        self.mac(signed).verify_slice(&URL_SAFE_NO_PAD.decode(signature).ok()?).ok()?;
        let (header, claims) = signed.split_once('.')?;
        if header != URL_SAFE_NO_PAD.encode(HEADER) {
            return None;
        }
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }

    fn mac(&self, signed: &str) -> Hmac<Sha256> {
        Hmac::<Sha256>::new_from_slice(&self.secret).expect("HMAC takes keys of any length").chain_update(signed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).unwrap()
    }

    fn tokens() -> Tokens {
        Tokens::new([7; 32], Duration::from_secs(100))
    }

    fn token(until: Option<i64>) -> String {
        tokens().issue(&OwnerId("o".into()), "ann", "key:1".into(), at(1000), until.map(at))
    }

    #[test]
    fn a_token_is_good_until_it_expires() {
        let claims = tokens().verify(&token(None), at(1099)).unwrap();
        assert_eq!((claims.iat, claims.exp, claims.key.as_str()), (1000, 1100, "key:1"));
        assert_eq!((claims.sub.as_str(), claims.org_id.as_str(), claims.email.as_str()), ("tml:user:o", "o", "ann"));
        assert!(claims.iss.starts_with("passport-"));
        assert_eq!(tokens().verify(&token(None), at(1100)), Err("the token has expired"));
        assert_eq!(tokens().verify(&token(Some(1050)), at(1000)).unwrap().exp, 1050);
        assert_eq!(tokens().verify(&token(Some(2000)), at(1000)).unwrap().exp, 1100);
    }

    #[test]
    fn the_signature_is_that_of_hs256() {
        // The example of RFC 7515, appendix A.1: its key, its signing input, its signature.
        let key = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
        let key = URL_SAFE_NO_PAD.decode(key).unwrap();
        let signed = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
        let mac = Hmac::<Sha256>::new_from_slice(&key).unwrap().chain_update(signed).finalize();
        assert_eq!(URL_SAFE_NO_PAD.encode(mac.into_bytes()), "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk");
    }

    #[test]
    fn any_altered_byte_fails() {
        let token = token(None);
        for i in 0..token.len() {
            for other in *b"Aa0.-" {
                let mut altered = token.clone().into_bytes();
                if altered[i] != other {
                    altered[i] = other;
                    let altered = String::from_utf8(altered).unwrap();
                    assert!(tokens().verify(&altered, at(1000)).is_err(), "byte {i}");
                }
            }
            assert!(tokens().verify(&token[..i], at(1000)).is_err());
        }
        assert!(Tokens::new([8; 32], Duration::from_secs(100)).verify(&token, at(1000)).is_err());
        let (_, rest) = token.split_once('.').unwrap();
        let none = format!("{}.{rest}", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#));
        assert!(tokens().verify(&none, at(1000)).is_err());
        let (signed, _) = none.rsplit_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.encode(tokens().mac(signed).finalize().into_bytes());
        let other_header = format!("{signed}.{signature}");
        assert_eq!(tokens().verify(&other_header, at(1000)), Err("the token was not made by this server"));
    }
}
