//! A token bucket: so much a minute, a minute's worth at once. Pure: the time is an argument, in seconds.

/// How much of a rate is left. It may go into debt: what turned out larger than known is paid for by waiting later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    level: f64,
    /// When `level` was right.
    at: f64,
}

impl Bucket {
    /// A full one.
    pub fn new(per_minute: u64, now: f64) -> Self {
        Self { level: per_minute as f64, at: now }
    }

    /// Seconds until `amount` may be taken; 0 = now. More than a minute's worth may be taken from a full bucket, or it
    /// never could. Nothing may always be taken.
    pub fn wait(&mut self, per_minute: u64, amount: u64, now: f64) -> f64 {
        self.fill(per_minute, now);
        let missing = amount.min(per_minute) as f64 - self.level;
        match (amount, per_minute) {
            (0, _) => 0.0,
            (_, 0) => f64::INFINITY,
            // A millionth may be missing, or rounding could make a full bucket wait for ever.
            _ if missing <= 1e-6 => 0.0,
            _ => missing * 60.0 / per_minute as f64,
        }
    }

    pub fn take(&mut self, per_minute: u64, amount: u64, now: f64) {
        self.fill(per_minute, now);
        self.level -= amount as f64;
    }

    /// Puts back what was taken and not used.
    pub fn give_back(&mut self, per_minute: u64, amount: u64, now: f64) {
        self.fill(per_minute, now);
        self.level = (self.level + amount as f64).min(per_minute as f64);
    }

    /// What was taken and has not come back yet.
    pub fn used(&mut self, per_minute: u64, now: f64) -> u64 {
        self.fill(per_minute, now);
        (per_minute as f64 - self.level).round() as u64
    }

    fn fill(&mut self, per_minute: u64, now: f64) {
        let passed = (now - self.at).max(0.0);
        self.at = self.at.max(now);
        self.level = (self.level + passed * per_minute as f64 / 60.0).min(per_minute as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minutes_worth_goes_at_once_and_then_as_it_fills() {
        let mut bucket = Bucket::new(60, 10.0);
        for _ in 0..60 {
            assert_eq!(bucket.wait(60, 1, 10.0), 0.0);
            bucket.take(60, 1, 10.0);
        }
        assert_eq!(bucket.used(60, 10.0), 60);
        assert_eq!(bucket.wait(60, 1, 10.0), 1.0);
        assert_eq!(bucket.wait(60, 5, 11.0), 4.0);
        assert_eq!(bucket.wait(60, 1, 11.0), 0.0);
        assert_eq!(bucket.wait(60, 60, 1000.0), 0.0);
        assert_eq!(bucket.used(60, 1000.0), 0, "it never holds more than a minute's worth");
    }

    #[test]
    fn what_is_larger_than_the_bucket_goes_when_it_is_full_and_leaves_a_debt() {
        let mut bucket = Bucket::new(100, 0.0);
        bucket.take(100, 1, 0.0);
        assert!((bucket.wait(100, 250, 0.0) - 0.6).abs() < 1e-9);
        assert_eq!(bucket.wait(100, 250, 0.6), 0.0);
        bucket.take(100, 250, 0.6);
        assert_eq!(bucket.used(100, 0.6), 250);
        assert!((bucket.wait(100, 1, 0.6) - 90.6).abs() < 1e-6, "151 missing at 100 a minute");
    }

    #[test]
    fn what_is_put_back_may_be_taken_again_and_makes_no_more_than_a_minutes_worth() {
        let mut bucket = Bucket::new(100, 0.0);
        bucket.take(100, 250, 0.0);
        bucket.give_back(100, 190, 0.0);
        assert_eq!(bucket.used(100, 0.0), 60);
        bucket.give_back(100, 190, 0.0);
        assert_eq!(bucket.used(100, 0.0), 0);
    }

    #[test]
    fn nothing_is_always_free_and_a_rate_of_nothing_lets_nothing_through() {
        let mut bucket = Bucket::new(10, 0.0);
        bucket.take(10, 500, 0.0);
        assert_eq!(bucket.wait(10, 0, 0.0), 0.0);
        let mut none = Bucket::new(0, 0.0);
        assert_eq!(none.wait(0, 1, 1e9), f64::INFINITY);
    }

    #[test]
    fn a_changed_rate_holds_from_then_on() {
        let mut bucket = Bucket::new(600, 0.0);
        assert_eq!(bucket.wait(6, 6, 0.0), 0.0, "what a higher rate had left is cut to the lower one's minute");
        bucket.take(6, 6, 0.0);
        assert_eq!(bucket.wait(600, 5, 0.5), 0.0);
    }
}
