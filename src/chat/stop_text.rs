//! Cuts an answer at the first of the request's stop strings, also while it streams.

/// Text goes in piece by piece; what comes out is never taken back.
pub struct StopText {
    stops: Vec<String>,
    /// Text that may be the beginning of a stop string.
    held: String,
    found: Option<String>,
}

impl StopText {
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new(), found: None }
    }

    /// The text that is certain by now; nothing behind a stop string.
    pub fn push(&mut self, text: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        self.held.push_str(text);
        let first = self.stops.iter().filter_map(|s| Some((self.held.find(s.as_str())?, s))).min_by_key(|(at, _)| *at);
        if let Some((at, stop)) = first {
            self.found = Some(stop.clone());
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let certain = self.held.len() - self.stops.iter().map(|s| overlap(&self.held, s)).max().unwrap_or(0);
        let rest = self.held.split_off(certain);
        std::mem::replace(&mut self.held, rest)
    }

    /// What was held back at the end of the answer, and the stop string that ended it.
    pub fn finish(self) -> (String, Option<String>) {
        (self.held, self.found)
    }
}

/// Bytes at the end of `text` that may be the beginning of `mark`.
pub fn overlap(text: &str, mark: &str) -> usize {
    let most = mark.len().saturating_sub(1).min(text.len());
    (1..=most)
        .rev()
        .find(|&n| text.is_char_boundary(text.len() - n) && mark.starts_with(&text[text.len() - n..]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, String, Option<String>) {
        let mut stop = StopText::new(stops.iter().map(|s| (*s).to_owned()).collect());
        let out = pieces.iter().map(|p| stop.push(p)).collect();
        let (rest, found) = stop.finish();
        (out, rest, found)
    }

    #[test]
    fn nothing_behind_a_stop_string_is_told() {
        assert_eq!(
            run(&["END"], &["a E", "ND b", "c"]),
            (vec!["a ".into(), String::new(), String::new()], String::new(), Some("END".into()))
        );
        assert_eq!(run(&["b", "ab"], &["xab"]), (vec!["x".into()], String::new(), Some("ab".into())));
    }

    #[test]
    fn what_only_looked_like_one_comes_later() {
        assert_eq!(
            run(&["END"], &["a EN", "X", "E"]),
            (vec!["a ".into(), "ENX".into(), String::new()], "E".into(), None)
        );
        assert_eq!(run(&["é!"], &["é", "?"]), (vec![String::new(), "é?".into()], String::new(), None));
        assert_eq!(run(&[], &["a"]), (vec!["a".into()], String::new(), None));
    }
}
