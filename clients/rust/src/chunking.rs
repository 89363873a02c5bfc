//! Cuts the datums of one call into requests of bearable size (protocol §11.4).

use crate::types::datum::Datum;
use crate::types::model_input::Chunk;
use crate::types::service::ClientConfigResponse;
use crate::types::tensor_data::{TensorData, TensorDtype};

pub(crate) struct Limits {
    pub datums: usize,
    /// Estimated; a single larger datum is sent alone.
    pub bytes: usize,
}

impl From<&ClientConfigResponse> for Limits {
    fn from(config: &ClientConfigResponse) -> Self {
        Self {
            datums: config.fwdbwd_max_chunk_len.unwrap_or(1024).max(1) as usize,
            bytes: config.fwdbwd_max_chunk_bytes_count.unwrap_or(5_000_000) as usize,
        }
    }
}

/// Chunks in order, none empty.
pub(crate) fn split(data: Vec<Datum>, limits: &Limits) -> Vec<Vec<Datum>> {
    let mut chunks: Vec<Vec<Datum>> = Vec::new();
    let mut bytes = 0;
    for datum in data {
        let size = estimate(&datum);
        match chunks.last_mut() {
            Some(chunk) if chunk.len() < limits.datums && bytes + size <= limits.bytes => {
                bytes += size;
                chunk.push(datum);
            }
            _ => {
                bytes = size;
                chunks.push(vec![datum]);
            }
        }
    }
    chunks
}

/// Bytes of a datum's protobuf message, roughly.
fn estimate(datum: &Datum) -> usize {
    let chunk = |c: &Chunk| match c {
        Chunk::EncodedText(text) => 4 * text.tokens.len(),
        // Base64 holds three bytes in four characters.
        Chunk::Image(image) => image.data.len() / 4 * 3,
        Chunk::ImageAssetPointer(pointer) => pointer.location.len(),
        Chunk::Dmel(dmel) => dmel.dmel.len() / 4 * 3,
    };
    let tensor = |t: &TensorData| {
        let item = if t.dtype() == TensorDtype::Int64 { 8 } else { 4 };
        let indices = t.csr.as_ref().map_or(0, |csr| csr.crow.len() + csr.col.len());
        item * t.values.len() + 8 * indices
    };
    datum.model_input.chunks.iter().map(chunk).sum::<usize>() + datum.loss_fn_inputs.values().map(tensor).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datums(n: usize) -> Vec<Datum> {
        (0..n).map(|i| Datum::supervised(&[i as u32, 1, 2], [1.0, 1.0])).collect()
    }

    fn sizes(data: Vec<Datum>, datums: usize, bytes: usize) -> Vec<usize> {
        split(data, &Limits { datums, bytes }).iter().map(Vec::len).collect()
    }

    #[test]
    fn a_datum_counts_its_arrays() {
        // 2 tokens of 4 bytes, 2 targets of 8, 2 weights of 4.
        assert_eq!(estimate(&datums(1)[0]), 32);
    }

    #[test]
    fn both_limits_start_a_new_chunk() {
        assert_eq!(sizes(datums(5), 2, 1_000_000), [2, 2, 1]);
        assert_eq!(sizes(datums(5), 1024, 96), [3, 2]);
        assert_eq!(sizes(datums(2), 1024, 1), [1, 1]);
        assert_eq!(sizes(vec![], 1024, 1), [0usize; 0]);
    }

    #[test]
    fn order_is_kept() {
        let chunks = split(datums(7), &Limits { datums: 3, bytes: 1_000_000 });
        assert_eq!(chunks.concat(), datums(7));
    }

    #[test]
    fn the_server_may_set_the_limits() {
        let default = Limits::from(&ClientConfigResponse::default());
        assert_eq!((default.datums, default.bytes), (1024, 5_000_000));
        let set = ClientConfigResponse { fwdbwd_max_chunk_len: Some(7), ..Default::default() };
        assert_eq!(Limits::from(&set).datums, 7);
    }
}
