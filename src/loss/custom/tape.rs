//! The tape: how each tensor came from others, so that the loss's derivative can be carried back to the logprobs.

/// What a link multiplies with.
#[derive(Debug)]
pub enum Factor {
    One,
    Each(Vec<f64>),
    /// As `Each`, but through a zero nothing passes, not even NaN: what was not chosen has no part in the result.
    Sieve(Vec<f64>),
}

impl Factor {
    /// `grad` times the factor of `i`. Elsewhere than in a sieve zero times infinity is NaN, as it is in torch: a loss that
    /// hides an infinite slope behind a mask has that NaN on either side of the wire.
    fn times(&self, grad: f64, i: usize) -> f64 {
        match self {
            Self::One => grad,
            Self::Each(v) => grad * v[i],
            Self::Sieve(v) => sieved(grad, v[i]),
        }
    }
}

fn sieved(grad: f64, factor: f64) -> f64 {
    if factor == 0.0 { 0.0 } else { grad * factor }
}

/// How a tensor depends on one it was made of.
#[derive(Debug)]
pub enum Link {
    /// Element o is made of the parent's element `from[o]` (`None`: of element o), times the factor of o.
    Pull { from: Option<Vec<u32>>, factor: Factor },
    /// The parent's element i goes into element `to[i]`, times the factor of i.
    Push { to: Vec<u32>, factor: Factor },
    /// Along lines of `len` elements, `stride` apart: d y\[j\] = carry\[j\] d y\[j−1\] + own\[j\] d x\[j\]. Both are sieves:
    /// nothing passes the first zero of a running product.
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

fn carry_back(link: &Link, grad: &[f64], into: &mut [f64]) {
    match link {
        Link::Pull { from: None, factor } => {
            for (o, (g, x)) in grad.iter().zip(into).enumerate() {
                *x += factor.times(*g, o);
            }
        }
        Link::Pull { from: Some(from), factor } => {
            for (o, (g, i)) in grad.iter().zip(from).enumerate() {
                // A cell that is made of no element, such as padding, has the index MAX.
                if let Some(x) = into.get_mut(*i as usize) {
                    *x += factor.times(*g, o);
                }
            }
        }
        Link::Push { to, factor } => {
            for (i, (o, x)) in to.iter().zip(into).enumerate() {
                *x += factor.times(grad[*o as usize], i);
            }
        }
        Link::Scan { len, stride, carry, own } => {
            for line in 0..grad.len() / len.max(&1) {
                let start = line / stride * len * stride + line % stride;
                let mut g = 0.0;
                for j in (0..*len).rev() {
                    let i = start + j * stride;
                    let from_next = if j + 1 < *len { sieved(g, carry[i + stride]) } else { 0.0 };
                    g = grad[i] + from_next;
                    into[i] += sieved(g, own[i]);
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
    fn a_zero_stops_infinity_in_a_sieve_alone() {
        let through = |factor| grad(2, Link::Pull { from: None, factor }, &[f64::INFINITY, 0.0]);
        assert_eq!(through(Factor::Sieve(vec![0.0, 2.0])), [0.0, 0.0]);
        assert!(through(Factor::Each(vec![0.0, f64::INFINITY])).iter().all(|g| g.is_nan()));
    }
}
