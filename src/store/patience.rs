//! A database that is busy, or gone for a while, is asked again.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::{Category, Error};

/// How long it may be gone before what wanted it fails.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two questions: at first, and at most.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);

/// What messages of the database's own errors begin with.
pub(super) const DATABASE: &str = "database: ";

/// How long somebody still waits for the database.
pub struct Patience {
    end: Instant,
    pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { end: Instant::now() + PATIENCE, pause: FIRST }
    }
}

impl Patience {
    /// Whether to ask again after this error, which it waits for: not when something else than the database is to blame,
    /// or when it has been gone for too long.
    pub async fn lasts(&mut self, e: &Error) -> bool {
        let the_databases = e.category == Category::Server && e.message.starts_with(DATABASE);
        if !the_databases || Instant::now() + self.pause > self.end {
            return false;
        }
        if self.pause == FIRST {
            tracing::warn!(error = %e, "the database does not answer; asking again");
        }
        tokio::time::sleep(self.pause).await;
        self.pause = LONGEST.min(self.pause * 2);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_databases_errors_are_waited_out_and_not_for_ever() {
        let gone = Error::server("database: connection refused");
        let mut patience = Patience { end: Instant::now() + Duration::from_secs(3600), pause: FIRST };
        assert!(patience.lasts(&gone).await);
        assert_eq!(patience.pause, 2 * FIRST);
        assert!(!patience.lasts(&Error::user("database: taken")).await);
        assert!(!patience.lasts(&Error::server("disk")).await);
        let mut patience = Patience { end: Instant::now(), pause: FIRST };
        assert!(!patience.lasts(&gone).await);
    }
}
