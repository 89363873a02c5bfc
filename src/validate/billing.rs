//! The hours and days that usage is asked for (protocol §6.2).

use chrono::{DateTime, DurationRound, NaiveDate, TimeDelta, Utc};

use crate::error::{Error, Result};

/// The longest window.
const DAYS: i64 = 14;

/// Half-open: from the first to before the second.
pub type Window = (DateTime<Utc>, DateTime<Utc>);

/// Whole hours in UTC, in this order, at most 14 days apart; the first not after `now`.
pub fn window(starting_on: Option<&str>, ending_before: Option<&str>, now: DateTime<Utc>) -> Result<Window> {
    let (from, until) = (hour("starting_on", starting_on)?, hour("ending_before", ending_before)?);
    if from > now {
        return Err(Error::user(format!("starting_on {from:?} lies in the future")));
    }
    if until <= from {
        return Err(Error::user(format!("ending_before {until:?} must come after starting_on {from:?}")));
    }
    if until - from > TimeDelta::days(DAYS) {
        return Err(Error::user(format!(
            "starting_on {from:?} and ending_before {until:?} lie more than {DAYS} days apart"
        )));
    }
    Ok((from, until))
}

/// A day in UTC as a window.
pub fn day(text: &str) -> Result<Window> {
    let day = text.parse::<NaiveDate>().ok().filter(|_| text.len() == "YYYY-MM-DD".len());
    let start = day.and_then(|d| d.and_hms_opt(0, 0, 0)).map(|t| t.and_utc());
    let end = start.and_then(|s| s.checked_add_signed(TimeDelta::days(1)));
    start.zip(end).ok_or_else(|| Error::user(format!("day {text:?} is not a date of the form YYYY-MM-DD")))
}

fn hour(field: &str, text: Option<&str>) -> Result<DateTime<Utc>> {
    let text = text.ok_or_else(|| Error::user(format!("{field} is missing: a time such as 2026-07-13T00:00:00Z")))?;
    let at = DateTime::parse_from_rfc3339(text)
        .map_err(|e| Error::user(format!("{field} {text:?} is not an RFC 3339 time with an offset: {e}")))?
        .to_utc();
    match at.duration_trunc(TimeDelta::hours(1)) {
        Ok(whole) if whole == at => Ok(at),
        _ => Err(Error::user(format!("{field} {text:?} is not a whole hour in UTC"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_whole_hours_of_at_most_14_days() {
        let now = "2026-07-20T12:34:56Z".parse().unwrap();
        let window = |from: &str, until: &str| window(Some(from), Some(until), now);
        let (from, until) = window("2026-07-13T00:00:00Z", "2026-07-27T00:00:00Z").unwrap();
        assert_eq!((until - from).num_hours(), 14 * 24);
        assert_eq!(window("2026-07-13T02:00:00+02:00", "2026-07-13T03:00:00+02:00").unwrap().0, from);
        for (from, until, part) in [
            ("2026-07-13T00:00:00Z", "2026-07-27T01:00:00Z", "14 days"),
            ("2026-07-13T00:30:00Z", "2026-07-13T01:00:00Z", "starting_on"),
            ("2026-07-13T00:00:00Z", "2026-07-13T01:00:00.5Z", "whole hour"),
            ("2026-07-13T00:00:00+00:30", "2026-07-13T01:00:00Z", "whole hour"),
            ("2026-07-13T00:00:00Z", "2026-07-13T00:00:00Z", "after"),
            ("2026-07-13T00:00:00", "2026-07-13T01:00:00Z", "offset"),
            ("yesterday", "2026-07-13T01:00:00Z", "starting_on"),
            ("2026-07-20T13:00:00Z", "2026-07-20T14:00:00Z", "future"),
            ("-262143-01-01T00:00:00Z", "2026-07-13T01:00:00Z", "starting_on"),
        ] {
            let message = window(from, until).unwrap_err().message;
            assert!(message.contains(part), "{from} {until}: {message}");
        }
        assert!(super::window(None, None, now).unwrap_err().message.contains("starting_on is missing"));
    }

    #[test]
    fn a_day_is_24_hours() {
        let (from, until) = day("2026-02-28").unwrap();
        assert_eq!((from.to_rfc3339(), until.to_rfc3339()), {
            ("2026-02-28T00:00:00+00:00".into(), "2026-03-01T00:00:00+00:00".into())
        });
        for wrong in ["", "2026-02-30", "20260228", "2026-2-8", "2026-02-28T00", "+262142-12-31", "yesterday"] {
            assert!(day(wrong).is_err(), "{wrong}");
        }
    }
}
