//! A prompt or training input: chunks whose concatenation is the token sequence (protocol §8.1).

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ModelInput {
    pub chunks: Vec<Chunk>,
}

/// One piece of the input. `type` may be missing in requests of old SDKs and is then read off the fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Chunk {
    EncodedText(EncodedTextChunk),
    Image(ImageChunk),
    ImageAssetPointer(ImageAssetPointerChunk),
    Dmel(DmelChunk),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EncodedTextChunk {
    /// Token ids.
    // Signed so that a wrong one can be named instead of failing to parse.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<u32>))]
    pub tokens: Vec<i64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ImageChunk {
    /// The file, base64.
    pub data: String,
    /// `png` or `jpeg`.
    pub format: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_tokens: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ImageAssetPointerChunk {
    /// Path or URL.
    pub location: String,
    pub format: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_tokens: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DmelChunk {
    /// A serialised tensor container, base64.
    pub dmel: String,
}

impl ModelInput {
    /// One text chunk holding `tokens`.
    pub fn from_ints<T: Into<i64>>(tokens: impl IntoIterator<Item = T>) -> Self {
        let tokens = tokens.into_iter().map(Into::into).collect();
        Self { chunks: vec![Chunk::EncodedText(EncodedTextChunk { tokens })] }
    }

    /// All token ids in order; `None` when a chunk is not text.
    pub fn to_ints(&self) -> Option<Vec<i64>> {
        let mut all = Vec::new();
        for chunk in &self.chunks {
            let Chunk::EncodedText(text) = chunk else { return None };
            all.extend_from_slice(&text.tokens);
        }
        Some(all)
    }
}

impl Chunk {
    /// The `type` on the wire.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::EncodedText(_) => "encoded_text",
            Self::Image(_) => "image",
            Self::ImageAssetPointer(_) => "image_asset_pointer",
            Self::Dmel(_) => "dmel",
        }
    }
}

impl<'de> Deserialize<'de> for Chunk {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let raw = RawChunk::deserialize(d)?;
        let kind = raw.infer_kind().ok_or_else(|| D::Error::custom("chunk without `type` and without known fields"))?;
        raw.into_chunk(&kind).map_err(D::Error::custom)
    }
}

/// Every field of every chunk; token lists are parsed directly, without a detour through `Value`.
#[derive(Deserialize)]
struct RawChunk {
    r#type: Option<String>,
    tokens: Option<Vec<i64>>,
    data: Option<String>,
    location: Option<String>,
    format: Option<String>,
    dmel: Option<String>,
    expected_tokens: Option<i64>,
}

impl RawChunk {
    fn infer_kind(&self) -> Option<String> {
        let inferred = if self.location.is_some() {
            "image_asset_pointer"
        } else if self.data.is_some() {
            "image"
        } else if self.tokens.is_some() {
            "encoded_text"
        } else if self.dmel.is_some() {
            "dmel"
        } else {
            return self.r#type.clone();
        };
        self.r#type.clone().or_else(|| Some(inferred.into()))
    }

    fn into_chunk(self, kind: &str) -> Result<Chunk, String> {
        let missing = |field: &str| format!("chunk of type {kind:?}: missing field `{field}`");
        let expected_tokens = self.expected_tokens;
        Ok(match kind {
            "encoded_text" => {
                Chunk::EncodedText(EncodedTextChunk { tokens: self.tokens.ok_or_else(|| missing("tokens"))? })
            }
            "image" => Chunk::Image(ImageChunk {
                data: self.data.ok_or_else(|| missing("data"))?,
                format: self.format.ok_or_else(|| missing("format"))?,
                expected_tokens,
            }),
            "image_asset_pointer" => Chunk::ImageAssetPointer(ImageAssetPointerChunk {
                location: self.location.ok_or_else(|| missing("location"))?,
                format: self.format.ok_or_else(|| missing("format"))?,
                expected_tokens,
            }),
            "dmel" => Chunk::Dmel(DmelChunk { dmel: self.dmel.ok_or_else(|| missing("dmel"))? }),
            other => {
                return Err(format!(
                    "chunk type {} is unknown: encoded_text, image, image_asset_pointer or dmel",
                    Value::from(other)
                ));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Chunk, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn the_type_is_inferred_for_old_clients() {
        assert_eq!(
            parse(r#"{"tokens": [1, 2]}"#).unwrap(),
            Chunk::EncodedText(EncodedTextChunk { tokens: vec![1, 2] })
        );
        assert_eq!(parse(r#"{"location": "a.png", "format": "png"}"#).unwrap().kind(), "image_asset_pointer");
        assert_eq!(parse(r#"{"data": "AA==", "format": "png", "type": null}"#).unwrap().kind(), "image");
    }

    #[test]
    fn what_is_no_chunk_is_refused() {
        for json in [
            r#"{"type": "martian"}"#,
            "{}",
            r#"{"type": "encoded_text", "tokens": ["a"]}"#,
            r#"{"type": "encoded_text"}"#,
        ] {
            assert!(parse(json).is_err(), "{json}");
        }
    }

    #[test]
    fn text_survives_a_round_trip() {
        let input = ModelInput::from_ints([1u32, 2, 3]);
        let json = serde_json::to_string(&input).unwrap();
        assert_eq!(json, r#"{"chunks":[{"type":"encoded_text","tokens":[1,2,3]}]}"#);
        assert_eq!(serde_json::from_str::<ModelInput>(&json).unwrap().to_ints(), Some(vec![1, 2, 3]));
    }
}
