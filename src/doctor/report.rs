//! The report: an aligned table for people, one JSON document for machines.

use std::io::Write;

use serde_json::json;

use super::line::{Line, Verdict};

/// Nothing failed.
pub fn is_well(lines: &[Line]) -> bool {
    lines.iter().all(|line| line.result != Verdict::Fail)
}

pub fn as_json(lines: &[Line], out: &mut dyn Write) -> std::io::Result<()> {
    let report = json!({ "ok": is_well(lines), "version": env!("CARGO_PKG_VERSION"), "checks": lines });
    writeln!(out, "{report:#}")
}

/// `color`: verdicts are green, red and dim.
pub fn as_table(lines: &[Line], color: bool, out: &mut dyn Write) -> std::io::Result<()> {
    let width = |of: fn(&Line) -> &str| lines.iter().map(|line| of(line).chars().count()).max().unwrap_or_default();
    let (area, check) = (width(|line| line.area), width(|line| &line.check));
    let indent = area + check + 22;
    for line in lines {
        let time = line.latency_ms.map_or_else(String::new, |ms| format!("{ms:.1} ms"));
        let (word, code) = match line.result {
            Verdict::Pass => ("PASS", 32),
            Verdict::Fail => ("FAIL", 31),
            Verdict::Skip => ("SKIP", 2),
        };
        let word = if color { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() };
        let text =
            format!("{:area$}  {:check$}  {word}  {time:>10}  {}", line.area, line.check, one_line(&line.detail));
        writeln!(out, "{}", text.trim_end())?;
        if let Some(advice) = &line.advice {
            writeln!(out, "{:indent$}→ {advice}", "")?;
        }
    }
    let count = |verdict| lines.iter().filter(|line| line.result == verdict).count();
    let (failed, skipped) = (count(Verdict::Fail), count(Verdict::Skip));
    writeln!(out, "\n{} passed, {failed} failed, {skipped} skipped", count(Verdict::Pass))
}

/// Messages of others may have many lines, or control what a terminal shows.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_advice_stands_below() {
        let lines = [
            Line { latency_ms: Some(1.25), ..Line::pass("device", "opens", "cpu") },
            Line::fail("port", "8000", "taken\nby another", "take another with --port"),
            Line::skip("port", "answers", "no"),
        ];
        let mut out = Vec::new();
        as_table(&lines, false, &mut out).unwrap();
        let wanted = "\
device  opens    PASS      1.2 ms  cpu
port    8000     FAIL              taken by another
                                   → take another with --port
port    answers  SKIP              no

1 passed, 1 failed, 1 skipped
";
        assert_eq!(String::from_utf8(out).unwrap(), wanted);
        assert!(!is_well(&lines) && is_well(&lines[..1]) && is_well(&lines[2..]));
    }

    #[test]
    fn machines_get_every_field() {
        let mut out = Vec::new();
        as_json(&[Line::fail("port", "8000", "taken", "move")], &mut out).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(report["ok"], false);
        let line = json!({ "area": "port", "check": "8000", "result": "fail", "latency_ms": null, "detail": "taken",
            "advice": "move" });
        assert_eq!(report["checks"], json!([line]));
    }
}
