//! The database: whether it opens, whose tables it has, whether it is whole.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use super::line::Line;
use crate::config::store::Store as Place;
use crate::store::health::{self, Health};

const AREA: &str = "database";
/// A Postgres that is just starting is waited for no longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Its lines, and the database's clock.
pub async fn check(place: &Place, limit: Duration) -> (Vec<Line>, Option<DateTime<Utc>>) {
    let own = *place == Place::in_dir(&place.data_dir);
    if own && !place.database_file().exists() {
        let what = format!("{} is made at the first start", place.database());
        return (vec![Line::skip(AREA, "opens", what)], None);
    }
    let start = Instant::now();
    let looked = tokio::time::timeout(limit, health::examine(&place.url, limit.min(PATIENCE))).await;
    let advice = match place.is_embedded() {
        true => "restore the file from a backup, or give another --data-dir",
        false => {
            "see that Postgres runs and can be reached from here, and that user, password and database of --database-url are right"
        }
    };
    match looked {
        Ok(Ok(found)) => (sound(&found, place, start.elapsed()), Some(found.now)),
        Ok(Err(e)) => {
            (vec![Line::fail(AREA, "opens", format!("{}: {}", place.database(), e.message), advice).since(start)], None)
        }
        Err(_) => {
            let why = format!("{}: no answer in {} s", place.database(), limit.as_secs());
            (vec![Line::fail(AREA, "opens", why, advice)], None)
        }
    }
}

fn sound(found: &Health, place: &Place, took: Duration) -> Vec<Line> {
    let (check, known) = ("tables", found.known);
    let tables = match found.migration {
        None => Line::pass(AREA, check, "none yet; the first start makes them"),
        Some(n) if n > known => Line::fail(
            AREA,
            check,
            format!("of a newer release (migration {n}; this one knows up to {known})"),
            "upgrade this tinderbox, or give another database",
        ),
        Some(n) if n < known => Line::pass(
            AREA,
            check,
            format!("of an older release (migration {n}); the next start brings them to {known}"),
        ),
        Some(n) => Line::pass(AREA, check, format!("up to date (migration {n})")),
    };
    let whole = match (place.is_embedded(), found.faults.as_str()) {
        (false, _) => Line::skip(AREA, "whole", "Postgres looks after itself"),
        (true, "") => Line::pass(AREA, "whole", "no fault found in it"),
        (true, faults) => Line::fail(AREA, "whole", faults, "stop the server and restore the file from a backup"),
    };
    let opens = Line::pass(AREA, "opens", format!("{}: {}", place.database(), found.version)).took(took);
    vec![opens, tables, whole]
}

#[cfg(test)]
mod tests {
    use super::super::line::Verdict;
    use super::*;
    use crate::store::Store;

    const LIMIT: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn a_sound_one_a_damaged_one_and_one_that_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::in_dir(dir.path());
        assert_eq!(check(&place, LIMIT).await.0[0].result, Verdict::Skip);
        Store::open(&place.url).await.unwrap().close().await;
        let (lines, now) = check(&place, LIMIT).await;
        assert!(lines.iter().all(|l| l.result == Verdict::Pass) && now.is_some(), "{lines:?}");
        std::fs::write(place.database_file(), "only text, and not a database at all").unwrap();
        assert_eq!(check(&place, LIMIT).await.0[0].result, Verdict::Fail);
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let gone = Place { url: format!("postgres://u:s3cret@127.0.0.1:{port}/db"), ..place };
        let lines = check(&gone, Duration::from_secs(1)).await.0;
        assert!(lines[0].detail.contains("refused") && !lines[0].detail.contains("s3cret"), "{lines:?}");
        assert!(lines[0].advice.as_deref().unwrap().contains("--database-url"));
    }
}
