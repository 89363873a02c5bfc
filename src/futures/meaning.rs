//! A fingerprint of what a request means, to tell a repeat from another request under a used number.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;

use serde::Serialize;

use crate::command::{Datum, Loss, Numbers};

/// Of a request whose wire form lists its fields in a fixed order. `kind` keeps different endpoints apart.
pub fn of_request(kind: &str, request: &impl Serialize) -> u64 {
    let mut sink = Sink(DefaultHasher::new());
    kind.hash(&mut sink.0);
    // Only a float that JSON cannot express could fail here, and serde_json writes those as null.
    let _ = serde_json::to_writer(&mut sink, request);
    sink.0.finish()
}

/// Of a forward_backward: the checked data, since protobuf and JSON bodies of one meaning differ in bytes.
pub fn of_data(data: &[Datum], loss: &Loss, forward_only: bool) -> u64 {
    let mut h = DefaultHasher::new();
    ("forward_backward", format!("{loss:?}"), forward_only, data.len()).hash(&mut h);
    for d in data {
        (&d.tokens, &d.targets, d.k, d.two_dimensional).hash(&mut h);
        let inputs = &d.inputs;
        for column in [&inputs.weights, &inputs.logprobs, &inputs.advantages, &inputs.sequence_ratio_mask] {
            column.is_some().hash(&mut h);
            for x in column.iter().flatten() {
                h.write_u32(x.to_bits());
            }
        }
        for input in &inputs.named {
            input.shape.hash(&mut h);
            match &input.numbers {
                Numbers::F32(v) => v.iter().for_each(|x| h.write_u32(x.to_bits())),
                Numbers::I64(v) => v.hash(&mut h),
            }
        }
    }
    h.finish()
}

struct Sink(DefaultHasher);

impl io::Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::LossInputs;

    fn datum(w: f32) -> Datum {
        let inputs = LossInputs { weights: Some(vec![w]), ..LossInputs::default() };
        Datum { tokens: vec![1], targets: vec![2], k: 1, two_dimensional: false, inputs }
    }

    #[test]
    fn equal_data_have_equal_meaning_and_other_data_another() {
        let of = |w, loss: Loss, forward| of_data(&[datum(w)], &loss, forward);
        let base = of(1.0, Loss::CrossEntropy, false);
        assert_eq!(base, of(1.0, Loss::CrossEntropy, false));
        assert_ne!(base, of(1.5, Loss::CrossEntropy, false));
        assert_ne!(base, of(1.0, Loss::ImportanceSampling, false));
        assert_ne!(base, of(1.0, Loss::CrossEntropy, true));
    }

    #[test]
    fn the_kind_of_request_counts() {
        assert_ne!(of_request("save_weights", &["x"]), of_request("save_weights_external", &["x"]));
        assert_eq!(of_request("save_weights", &["x"]), of_request("save_weights", &["x"]));
    }
}
