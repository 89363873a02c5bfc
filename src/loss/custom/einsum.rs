//! Products and sums by index letters.

use super::args::Args;
use super::binary::mul;
use super::eval::Eval;
use super::layout::permuted;
use super::ops::{Op, Run};
use super::reduce::sum;
use super::shape::MAX_RANK;
use super::value::{Tensor, Value, refuse};
use crate::error::Result;

pub const OPS: &[Op] = &[Op { name: "einsum", params: "equation *operands", run: Run::Call(einsum) }];

fn einsum(ev: &mut Eval, a: &Args) -> Result<Value> {
    let equation: String = a.text(0)?.unwrap_or_default().chars().filter(|c| *c != ' ').collect();
    let operands = a.tensors(1)?;
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left.to_owned(), Some(right.to_owned())),
        None => (equation.clone(), None),
    };
    let terms: Vec<Vec<char>> = left.split(',').map(|t| t.chars().collect()).collect();
    let letters = |term: &[char]| term.iter().all(char::is_ascii_alphabetic);
    let fits =
        terms.len() == operands.len() && terms.iter().zip(&operands).all(|(t, x)| letters(t) && t.len() == x.rank());
    if !fits {
        return refuse(format!("equation {equation:?} must have a letter for each dimension of each operand"));
    }
    let mut seen: Vec<char> = terms.concat();
    seen.sort_unstable();
    let implied = || seen.iter().copied().filter(|c| seen.iter().filter(|d| *d == c).count() == 1).collect();
    let output: Vec<char> = right.map_or_else(implied, |r| r.chars().collect());
    seen.dedup();
    let twice = |term: &[char]| (1..term.len()).any(|i| term[..i].contains(&term[i]));
    if terms.iter().chain([&output]).any(|t| twice(t)) || !output.iter().all(|c| seen.contains(c)) {
        return refuse(format!(
            "equation {equation:?}: no letter twice in a term, and none in the result that is in no operand"
        ));
    }
    let summed: Vec<char> = seen.into_iter().filter(|c| !output.contains(c)).collect();
    let order = [output.clone(), summed].concat();
    if order.len() > MAX_RANK {
        return refuse(format!("equation {equation:?} has {} letters; at most {MAX_RANK}", order.len()));
    }
    let mut product: Option<Tensor> = None;
    for (term, x) in terms.iter().zip(&operands) {
        let x = aligned(ev, x, term, &order)?;
        product = Some(match product {
            Some(before) => mul(ev, &before, &x)?,
            None => x,
        });
    }
    let Some(product) = product else { return refuse("einsum needs operands") };
    let axes: Vec<usize> = (output.len()..order.len()).collect();
    if axes.is_empty() { Ok(product.into()) } else { Ok(sum(ev, &product, &axes, false)?.into()) }
}

/// `x` with its letters in this order; a dimension of one for each that it lacks.
fn aligned(ev: &mut Eval, x: &Tensor, term: &[char], order: &[char]) -> Result<Tensor> {
    let at = |c: &char| term.iter().position(|t| t == c);
    let dims: Vec<usize> = order.iter().filter_map(at).collect();
    let turned = permuted(ev, x, &dims)?;
    let shape = order.iter().map(|c| at(c).map_or(1, |d| x.shape[d])).collect();
    ev.reshaped(&turned, shape)
}
