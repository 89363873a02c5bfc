//! Joins the results of a call's chunks into one (protocol §11.5).

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::types::training::ForwardBackwardOutput;

/// Outputs in chunk order; metrics by what follows their `:`. A metric without exactly one `:` is an error, one with
/// an unknown ending is dropped, and so is one that some chunk lacks.
pub(crate) fn combine(chunks: Vec<ForwardBackwardOutput>) -> Result<ForwardBackwardOutput> {
    let Some(first) = chunks.first() else { return Err(Error::Decode("no chunk has a result".into())) };
    let datums: Vec<f64> = chunks.iter().map(|c| c.loss_fn_outputs.len() as f64).collect();
    let mut metrics = BTreeMap::new();
    for name in first.metrics.keys() {
        let (_, ending) = name
            .split_once(':')
            .filter(|(_, ending)| !ending.contains(':'))
            .ok_or_else(|| Error::Decode(format!("metric {name:?} does not say how chunks combine")))?;
        if let Some(values) = chunks.iter().map(|c| c.metrics.get(name).copied()).collect::<Option<Vec<f64>>>() {
            metrics.extend(reduce(name, ending, &values, &datums));
        }
    }
    let loss_fn_output_type = first.loss_fn_output_type.clone();
    let loss_fn_outputs = chunks.into_iter().flat_map(|c| c.loss_fn_outputs).collect();
    Ok(ForwardBackwardOutput { loss_fn_output_type, loss_fn_outputs, metrics })
}

/// `values` has one entry per chunk and is not empty.
fn reduce(name: &str, ending: &str, values: &[f64], datums: &[f64]) -> Vec<(String, f64)> {
    let mean = || values.iter().zip(datums).map(|(v, n)| v * n).sum::<f64>() / datums.iter().sum::<f64>();
    let max = || values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let one = |value| vec![(name.to_owned(), value)];
    match ending {
        "sum" => one(values.iter().sum()),
        "mean" => one(mean()),
        "min" => one(values.iter().copied().fold(f64::INFINITY, f64::min)),
        "max" => one(max()),
        "slack" => one(max() - mean()),
        "hash2" => one(values.iter().fold(0u64, |sum, &v| sum.wrapping_add(v as u64)) as f64),
        "unique" => {
            let key = |i| if i == 0 { name.to_owned() } else { format!("{name}_{i}") };
            values.iter().enumerate().map(|(i, &v)| (key(i), v)).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::datum::LossFnInputs;

    fn chunk(datums: usize, metrics: &[(&str, f64)]) -> ForwardBackwardOutput {
        ForwardBackwardOutput {
            loss_fn_output_type: "ArrayRecord".into(),
            loss_fn_outputs: vec![LossFnInputs::new(); datums],
            metrics: metrics.iter().map(|(k, v)| ((*k).into(), *v)).collect(),
        }
    }

    #[test]
    fn each_ending_has_its_rule() {
        let names = ["a:sum", "a:mean", "a:min", "a:max", "a:slack", "a:hash2", "a:unique", "a:else"];
        let with = |value: f64| names.map(|n| (n, value));
        let out = combine(vec![chunk(1, &with(1.0)), chunk(3, &with(5.0))]).unwrap();
        assert_eq!(out.loss_fn_outputs.len(), 4);
        let expected = [
            ("a:hash2", 6.0),
            ("a:max", 5.0),
            ("a:mean", 4.0),
            ("a:min", 1.0),
            ("a:slack", 1.0),
            ("a:sum", 6.0),
            ("a:unique", 1.0),
            ("a:unique_1", 5.0),
        ];
        assert_eq!(out.metrics, expected.map(|(k, v)| (k.to_owned(), v)).into());
    }

    #[test]
    fn only_what_every_chunk_has_survives() {
        let out =
            combine(vec![chunk(1, &[("a:sum", 1.0), ("b:sum", 1.0)]), chunk(1, &[("a:sum", 1.0), ("c:sum", 1.0)])])
                .unwrap();
        assert_eq!(out.metrics.into_keys().collect::<Vec<_>>(), ["a:sum"]);
    }

    #[test]
    fn a_name_without_a_rule_is_an_error() {
        assert!(combine(vec![chunk(1, &[("loss", 1.0)])]).is_err());
        assert!(combine(vec![chunk(1, &[("a:b:sum", 1.0)])]).is_err());
        assert!(combine(vec![]).is_err());
    }
}
