//! GRPO's advantages: how much better a sample did than its group (DeepSeekMath, arXiv 2402.03300, §4.1).

/// Keeps a group of nearly equal rewards from being blown up.
const EPSILON: f64 = 1e-6;

/// `(r − mean) / (std + ε)` for each reward of one group (G,). All zero when the rewards are equal: nothing to learn.
pub fn group_normalised(rewards_g: &[f64]) -> Vec<f64> {
    let n = rewards_g.len() as f64;
    let mean = rewards_g.iter().sum::<f64>() / n;
    let variance = rewards_g.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / n;
    let std = variance.sqrt();
    rewards_g.iter().map(|r| if std < EPSILON { 0.0 } else { (r - mean) / (std + EPSILON) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_right_answer_of_four() {
        let a = group_normalised(&[1.0, 0.0, 0.0, 0.0]);
        let root3 = 3f64.sqrt();
        for (got, want) in a.iter().zip([root3, -1.0 / root3, -1.0 / root3, -1.0 / root3]) {
            assert!((got - want).abs() < 1e-5, "{got} {want}");
        }
    }

    #[test]
    fn equal_rewards_teach_nothing() {
        assert_eq!(group_normalised(&[0.3; 8]), [0.0; 8]);
        assert_eq!(group_normalised(&[1.0]), [0.0]);
        assert_eq!(group_normalised(&[]), [0.0; 0]);
    }

    #[test]
    fn scale_and_offset_do_not_matter() {
        let a = group_normalised(&[0.0, 1.0, 2.0]);
        let b = group_normalised(&[5.0, 25.0, 45.0]);
        assert!(a.iter().zip(&b).all(|(x, y)| (x - y).abs() < 1e-5), "{a:?} {b:?}");
    }
}
