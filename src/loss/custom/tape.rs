//! The tape: how each tensor came from others, so that the loss's derivative can be carried back to the logprobs.

/// What a link multiplies with.
#[derive(Debug)]
pub enum Factor {
    One,
    Each(Vec<f64>),
}

impl Factor {
    fn at(&self, i: usize) -> f64 {
        match self {
            Self::One => 1.0,
            Self::Each(v) => v[i],
        }
    }
}

/// How a tensor depends on one it was made of.
#[derive(Debug)]
pub enum Link {
    /// Element o is made of the parent's element `from[o]` (`None`: of element o), times the factor of o.
    Pull { from: Option<Vec<u32>>, factor: Factor },
    /// The parent's element i goes into element `to[i]`, times the factor of i.
    Push { to: Vec<u32>, factor: Factor },
    /// Along lines of `len` elements, `stride` apart: d y\[j\] = carry\[j\] d y\[j−1\] + own\[j\] d x\[j\].
    Scan { len: usize, stride: usize, carry: Vec<f64>, own: Vec<f64> },
}

#[derive(Debug)]
pub struct Edge {
    pub parent: usize,
    pub link: Link,
}

#[derive(Debug, Default)]
pub struct Tape(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    len: usize,
    edges: Vec<Edge>,
}

impl Tape {
    /// The place of a tensor of `len` elements. The first one is what derivatives are asked for.
    pub fn push(&mut self, len: usize, edges: Vec<Edge>) -> usize {
        self.0.push(Entry { len, edges });
        self.0.len() - 1
    }

    /// The derivative with respect to the first entry, when `seed` is that with respect to entry `at`.
    pub fn backward(&self, at: usize, seed: Vec<f64>) -> Vec<f64> {
        let mut grads: Vec<Option<Vec<f64>>> = Vec::new();
        grads.resize_with(at + 1, || None);
        grads[at] = Some(seed);
        for i in (1..=at).rev() {
            let Some(grad) = grads[i].take() else { continue };
            for edge in &self.0[i].edges {
                let len = self.0[edge.parent].len;
                let into = grads[edge.parent].get_or_insert_with(|| vec![0.0; len]);
                carry_back(&edge.link, &grad, into);
            }
        }
        grads[0].take().unwrap_or_else(|| vec![0.0; self.0[0].len])
    }
}

/// Zero times anything is zero: what a loss masks out must not come back as NaN.
fn times(a: f64, b: f64) -> f64 {
    if a == 0.0 || b == 0.0 { 0.0 } else { a * b }
}

fn carry_back(link: &Link, grad: &[f64], into: &mut [f64]) {
    match link {
        Link::Pull { from: None, factor } => {
            for (o, (g, x)) in grad.iter().zip(into).enumerate() {
                *x += times(*g, factor.at(o));
            }
        }
        Link::Pull { from: Some(from), factor } => {
            for (o, (g, i)) in grad.iter().zip(from).enumerate() {
                // A cell that is made of no element, such as padding, has the index MAX.
                if let Some(x) = into.get_mut(*i as usize) {
                    *x += times(*g, factor.at(o));
                }
            }
        }
        Link::Push { to, factor } => {
            for (i, (o, x)) in to.iter().zip(into).enumerate() {
                *x += times(grad[*o as usize], factor.at(i));
            }
        }
        Link::Scan { len, stride, carry, own } => {
            for line in 0..grad.len() / len.max(&1) {
                let start = line / stride * len * stride + line % stride;
                let mut g = 0.0;
                for j in (0..*len).rev() {
                    let i = start + j * stride;
                    let from_next = if j + 1 < *len { times(g, carry[i + stride]) } else { 0.0 };
                    g = grad[i] + from_next;
                    into[i] += times(g, own[i]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grad(len: usize, link: Link, seed: &[f64]) -> Vec<f64> {
        let mut tape = Tape::default();
        tape.push(len, vec![]);
        let at = tape.push(seed.len(), vec![Edge { parent: 0, link }]);
        tape.backward(at, seed.to_vec())
    }

    #[test]
    fn each_link_carries_back() {
        let pull = Link::Pull { from: Some(vec![1, 1, u32::MAX]), factor: Factor::Each(vec![2.0, 3.0, 9.0]) };
        assert_eq!(grad(2, pull, &[10.0, 1.0, 5.0]), [0.0, 23.0]);
        assert_eq!(grad(2, Link::Pull { from: None, factor: Factor::One }, &[4.0, 5.0]), [4.0, 5.0]);
        assert_eq!(
            grad(3, Link::Push { to: vec![0, 1, 0], factor: Factor::Each(vec![0.5; 3]) }, &[2.0, 6.0]),
            [1.0, 3.0, 1.0]
        );
        // y0 = 2 x0, y1 = 3 y0 + x1
        let scan = Link::Scan { len: 2, stride: 1, carry: vec![0.0, 3.0], own: vec![2.0, 1.0] };
        assert_eq!(grad(2, scan, &[1.0, 1.0]), [8.0, 1.0]);
    }

    #[test]
    fn what_is_masked_out_stays_zero() {
        let link = Link::Pull { from: None, factor: Factor::Each(vec![f64::INFINITY, f64::NAN]) };
        assert_eq!(grad(2, link, &[0.0, 0.0]), [0.0, 0.0]);
    }
}
