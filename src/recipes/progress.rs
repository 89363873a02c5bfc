//! Progress on a terminal: a line per step with its number, its value and a bar.

use std::io::Write;

/// Characters of a full bar.
const BAR_WIDTH: usize = 40;
/// An eighth of a character each.
const EIGHTHS: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
/// The steps of a sparkline.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// One curve that is shown while it grows.
pub struct Progress<W> {
    out: W,
    name: &'static str,
    /// The value of a full bar.
    full: f64,
    values: Vec<f64>,
}

impl<W: Write> Progress<W> {
    /// `name` is what is measured; `full` the value whose bar fills the width.
    pub fn new(out: W, name: &'static str, full: f64) -> Self {
        Self { out, name, full, values: Vec::new() }
    }

    /// Notes the value of `step` and shows it.
    pub fn step(&mut self, step: usize, value: f64, note: &str) -> std::io::Result<()> {
        self.values.push(value);
        let bar = bar(value / self.full);
        writeln!(self.out, "  step {step:>4}  {} {value:>6.3}  {bar:<BAR_WIDTH$}  {note}", self.name)?;
        self.out.flush()
    }

    /// The whole curve on one line.
    pub fn summary(&mut self) -> std::io::Result<()> {
        let (Some(first), Some(last)) = (self.values.first(), self.values.last()) else { return Ok(()) };
        writeln!(self.out, "  {} {first:.3} → {last:.3}  {}", self.name, sparkline(&self.values))
    }

    /// Every value so far.
    pub fn values(&self) -> &[f64] {
        &self.values
    }
}

/// `fraction` of the full width; below 0 and not a number give none.
fn bar(fraction: f64) -> String {
    let eighths = (fraction.clamp(0.0, 1.0) * (8 * BAR_WIDTH) as f64).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        bar.push(EIGHTHS[eighths % 8 - 1]);
    }
    bar
}

/// One character per value, between the lowest and the highest.
fn sparkline(values: &[f64]) -> String {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let span = if high > low { high - low } else { 1.0 };
    values.iter().map(|v| LEVELS[((v - low) / span * 7.0).round().clamp(0.0, 7.0) as usize]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_fill_in_eighths() {
        assert_eq!(bar(0.0), "");
        assert_eq!(bar(1.5 / 40.0), "█▌");
        assert_eq!(bar(7.0).chars().count(), BAR_WIDTH);
        assert_eq!(bar(f64::NAN), "");
        assert_eq!(bar(-1.0), "");
    }

    #[test]
    fn a_sparkline_spans_the_range() {
        assert_eq!(sparkline(&[0.0, 3.5, 7.0]), "▁▅█");
        assert_eq!(sparkline(&[2.0, 2.0]), "▁▁");
    }

    #[test]
    fn a_line_per_step_and_the_curve_at_the_end() {
        let mut out = Vec::new();
        let mut p = Progress::new(&mut out, "loss", 4.0);
        p.step(1, 4.0, "").unwrap();
        p.step(2, 1.0, "half").unwrap();
        p.summary().unwrap();
        assert_eq!(p.values(), [4.0, 1.0]);
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("  step    1  loss  4.000  ████"));
        assert!(lines[1].ends_with("half"));
        assert_eq!(lines[2], "  loss 4.000 → 1.000  █▁");
    }
}
