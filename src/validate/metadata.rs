//! What users attach to their things: any strings, of bounded size.

use serde::Serialize;

use crate::error::{Error, Result};

/// JSON bytes of one field.
const MAX_BYTES: usize = 64 << 10;

/// A user error when the field's JSON form is larger than 64 KiB.
pub fn bounded(field: &str, value: &impl Serialize) -> Result<()> {
    let size = serde_json::to_vec(value).map_err(|e| Error::server(format!("{field}: {e}")))?.len();
    if size <= MAX_BYTES {
        return Ok(());
    }
    Err(Error::user(format!("{field} takes {size} bytes as JSON; the limit is {MAX_BYTES}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_json_form_counts() {
        assert!(bounded("tags", &["x".repeat(MAX_BYTES - 4)]).is_ok());
        let e = bounded("tags", &["x".repeat(MAX_BYTES - 3)]).unwrap_err().message;
        assert_eq!(e, "tags takes 65537 bytes as JSON; the limit is 65536");
        assert!(bounded("user_metadata", &None::<BTreeMap<String, String>>).is_ok());
    }
}
