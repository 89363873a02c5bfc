//! Products of vectors and matrices, made of a broadcast product and a sum.

use super::args::Args;
use super::binary::mul;
use super::eval::Eval;
use super::layout::permuted;
use super::ops::{Op, call};
use super::reduce::sum;
use super::value::{Tensor, Value, refuse};
use crate::error::Result;

pub const OPS: &[Op] = &[
    call("matmul", "input other", |ev, a| product(ev, &a.tensor(0)?, &a.tensor(1)?)),
    call("mm", "input mat2", |ev, a| ranks(ev, a, 2, 2)),
    call("mv", "input vec", |ev, a| ranks(ev, a, 2, 1)),
    call("dot", "input other", |ev, a| ranks(ev, a, 1, 1)),
    call("vdot", "input other", |ev, a| ranks(ev, a, 1, 1)),
    call("bmm", "input mat2", |ev, a| ranks(ev, a, 3, 3)),
    call("inner", "input other", |ev, a| {
        let (x, y) = (a.tensor(0)?, a.tensor(1)?);
        match (x.rank(), y.rank()) {
            (0, _) | (_, 0) => Ok(mul(ev, &x, &y)?.into()),
            (_, 1) => product(ev, &x, &y),
            (1, 2) => product(ev, &y, &x),
            (2, 2) => {
                let turned = permuted(ev, &y, &[1, 0])?;
                product(ev, &x, &turned)
            }
            _ => refuse(format!("inner takes at most matrices, not {:?} and {:?}", x.shape, y.shape)),
        }
    }),
    call("outer", "input vec2", outer),
    call("ger", "input vec2", outer),
];

fn ranks(ev: &mut Eval, a: &Args, p: usize, q: usize) -> Result<Value> {
    let (x, y) = (a.tensor(0)?, a.tensor(1)?);
    if (x.rank(), y.rank()) != (p, q) {
        return refuse(format!("operands must have rank {p} and {q}, not shapes {:?} and {:?}", x.shape, y.shape));
    }
    product(ev, &x, &y)
}

fn outer(ev: &mut Eval, a: &Args) -> Result<Value> {
    let (x, y) = (a.tensor(0)?, a.tensor(1)?);
    if (x.rank(), y.rank()) != (1, 1) {
        return refuse(format!("outer takes two vectors, not shapes {:?} and {:?}", x.shape, y.shape));
    }
    let column = ev.reshaped(&x, vec![x.len(), 1])?;
    Ok(mul(ev, &column, &y)?.into())
}

/// As torch.matmul, up to batches of matrices of one batch dimension.
fn product(ev: &mut Eval, x: &Tensor, y: &Tensor) -> Result<Value> {
    let inner = |t: &Tensor, second: bool| match t.rank() {
        0 => None,
        n => Some(t.shape[if second && n > 1 { n - 2 } else { n - 1 }]),
    };
    if inner(x, false).is_none() || inner(x, false) != inner(y, true) || x.dtype != y.dtype {
        return refuse(format!(
            "a product of shapes {:?} ({:?}) and {:?} ({:?}) is not defined",
            x.shape, x.dtype, y.shape, y.dtype
        ));
    }
    if x.rank().max(y.rank()) > 3 {
        return refuse("products of more than three dimensions are not allowed");
    }
    if y.rank() == 1 {
        let cells = mul(ev, x, y)?;
        let last = cells.rank() - 1;
        return Ok(sum(ev, &cells, &[last], false)?.into());
    }
    // (…, n, k, 1) × (…, 1, k, m), summed over k.
    let (k, m) = (y.shape[y.rank() - 2], y.shape[y.rank() - 1]);
    let left = ev.reshaped(x, [&x.shape[..], &[1]].concat())?;
    let right = ev.reshaped(y, [&y.shape[..y.rank() - 2], &[1, k, m]].concat())?;
    let cells = mul(ev, &left, &right)?;
    let axis = cells.rank() - 2;
    let product = sum(ev, &cells, &[axis], false)?;
    if x.rank() > 1 {
        return Ok(product.into());
    }
    // A vector on the left: its row dimension of one goes again.
    let shape = [&y.shape[..y.rank() - 2], &[m]].concat();
    Ok(ev.reshaped(&product, shape)?.into())
}
