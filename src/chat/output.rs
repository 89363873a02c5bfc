//! Reads a model's answer as it grows: what it thought, what it says, which tools it calls.

use super::stop_text::overlap;
use super::tool_calls::{Call, Format, bare, marked};

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";

/// Which marks mean something in an answer; without any it is all content.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The model may think between `<think>` and `</think>` before it speaks.
    pub thinks: bool,
    /// The prompt has opened `<think>` already.
    pub thinking: bool,
    /// How calls are marked, when tools were offered.
    pub tools: Option<Format>,
    /// Names of the tools.
    pub names: Vec<String>,
}

/// A piece of an answer. Pieces of one kind that follow each other are one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Reasoning(String),
    Content(String),
    Call(Call),
}

/// Newlines between the marks and the text belong to neither.
pub struct Output {
    reading: Reading,
    state: State,
    /// Text whose meaning is not certain yet.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    Thinking {
        begun: bool,
    },
    ThoughtOver,
    Content {
        behind_call: bool,
    },
    /// Inside the marks of a call.
    Call,
    /// The whole answer may be a call.
    Bare,
}

impl Output {
    pub fn new(reading: Reading) -> Self {
        let state = if reading.thinking { State::Thinking { begun: false } } else { State::Start };
        Self { reading, state, held: String::new() }
    }

    /// The parts that are certain by now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        self.run(false)
    }

    /// The parts that only the answer's end makes certain: a mark that was never closed is content, but a call that
    /// lacks nothing but its closing mark is a call.
    pub fn finish(mut self) -> Vec<Part> {
        self.run(true)
    }

    fn run(&mut self, last: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        while self.step(last, &mut parts) {}
        parts.retain(|p| !matches!(p, Part::Reasoning(t) | Part::Content(t) if t.is_empty()));
        parts
    }

    /// True when the state changed and there may be more to do.
    fn step(&mut self, last: bool, parts: &mut Vec<Part>) -> bool {
        match self.state {
            State::Start => self.start(last),
            State::Thinking { begun } => self.thinking(begun, last, parts),
            State::ThoughtOver => {
                self.drop_start('\n');
                self.reading.thinks = false;
                self.become_if(!self.held.is_empty(), State::Start)
            }
            State::Content { behind_call } => self.content(behind_call, last, parts),
            State::Call => self.call(last, parts),
            State::Bare => {
                if last {
                    let text = std::mem::take(&mut self.held);
                    match bare(&text, &self.reading.names) {
                        Some(calls) => parts.extend(calls.into_iter().map(Part::Call)),
                        None => parts.push(Part::Content(text)),
                    }
                }
                false
            }
        }
    }

    fn become_if(&mut self, yes: bool, state: State) -> bool {
        if yes {
            self.state = state;
        }
        yes
    }

    fn drop_start(&mut self, c: char) {
        self.held = self.held.trim_start_matches(c).to_owned();
    }

    fn start(&mut self, last: bool) -> bool {
        let text = self.held.trim_start();
        if self.reading.thinks {
            if let Some(rest) = text.strip_prefix(THINK) {
                self.held = rest.to_owned();
                return self.become_if(true, State::Thinking { begun: false });
            }
            if !last && THINK.starts_with(text) {
                return false;
            }
        }
        let is_bare = self.reading.tools == Some(Format::Bare);
        if is_bare && !last && text.is_empty() {
            return false;
        }
        let state = if is_bare && text.starts_with('{') { State::Bare } else { State::Content { behind_call: false } };
        self.become_if(true, state)
    }

    fn thinking(&mut self, begun: bool, last: bool, parts: &mut Vec<Part>) -> bool {
        if !begun {
            self.drop_start('\n');
            if self.held.is_empty() {
                return false;
            }
            self.state = State::Thinking { begun: true };
        }
        if let Some(at) = self.held.find(THINK_END) {
            parts.push(Part::Reasoning(self.held[..at].trim_end_matches('\n').to_owned()));
            self.held.drain(..at + THINK_END.len());
            return self.become_if(true, State::ThoughtOver);
        }
        let text = self.certain(THINK_END, last);
        parts.push(Part::Reasoning(text));
        false
    }

    fn content(&mut self, behind_call: bool, last: bool, parts: &mut Vec<Part>) -> bool {
        if behind_call {
            self.held = self.held.trim_start().to_owned();
            if !self.held.is_empty() && !CALL.starts_with(self.held.as_str()) {
                self.state = State::Content { behind_call: false };
            }
        }
        if self.reading.tools != Some(Format::Marked) {
            parts.push(Part::Content(std::mem::take(&mut self.held)));
            return false;
        }
        if let Some(at) = self.held.find(CALL) {
            parts.push(Part::Content(self.held[..at].trim_end_matches('\n').to_owned()));
            self.held.drain(..at + CALL.len());
            return self.become_if(true, State::Call);
        }
        let text = if last { std::mem::take(&mut self.held) } else { self.certain(CALL, false) };
        parts.push(Part::Content(text));
        false
    }

    fn call(&mut self, last: bool, parts: &mut Vec<Part>) -> bool {
        let (inside, closed) = match self.held.find(CALL_END) {
            Some(at) => {
                let inside = self.held[..at].to_owned();
                self.held.drain(..at + CALL_END.len());
                (inside, true)
            }
            None if last => (std::mem::take(&mut self.held), false),
            None => return false,
        };
        let calls = marked(&inside);
        let behind_call = calls.is_some();
        match calls {
            Some(calls) => parts.extend(calls.into_iter().map(Part::Call)),
            None => parts.push(Part::Content(format!("{CALL}{inside}{}", if closed { CALL_END } else { "" }))),
        }
        self.become_if(closed, State::Content { behind_call })
    }

    /// Takes the text that cannot belong to `mark` or be a newline before it.
    fn certain(&mut self, mark: &str, last: bool) -> String {
        let open = if last { 0 } else { overlap(&self.held, mark) };
        let end = self.held[..self.held.len() - open].trim_end_matches('\n').len();
        let rest = self.held.split_off(end);
        std::mem::replace(&mut self.held, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasoning(text: &str) -> Part {
        Part::Reasoning(text.into())
    }

    fn content(text: &str) -> Part {
        Part::Content(text.into())
    }

    fn call(n: u32) -> Part {
        Part::Call(Call { name: "f".into(), arguments: format!("{{\"n\": {n}}}") })
    }

    /// The parts, neighbours of one kind joined: told in one piece, character by character and in threes.
    #[track_caller]
    fn check(reading: &Reading, text: &str, want: &[Part]) {
        for size in [text.len().max(1), 1, 3] {
            let mut output = Output::new(reading.clone());
            let chars: Vec<char> = text.chars().collect();
            let mut parts = Vec::new();
            for piece in chars.chunks(size) {
                parts.extend(output.push(&piece.iter().collect::<String>()));
            }
            parts.extend(output.finish());
            let mut joined: Vec<Part> = Vec::new();
            for part in parts {
                match (joined.last_mut(), part) {
                    (Some(Part::Content(old)), Part::Content(new)) => old.push_str(&new),
                    (Some(Part::Reasoning(old)), Part::Reasoning(new)) => old.push_str(&new),
                    (_, part) => joined.push(part),
                }
            }
            assert_eq!(joined, want, "{text:?} in pieces of {size}");
        }
    }

    fn qwen() -> Reading {
        Reading { thinks: true, tools: Some(Format::Marked), names: vec!["f".into()], ..Reading::default() }
    }

    #[test]
    fn without_marks_all_is_content() {
        let text = "<think>\nx</think>\n<tool_call>{\"name\": \"f\"}</tool_call>\n";
        check(&Reading::default(), text, &[content(text)]);
        check(&Reading::default(), "", &[]);
    }

    #[test]
    fn thoughts_come_first() {
        check(&qwen(), "<think>\na\n\nb\n</think>\n\nc\nd", &[reasoning("a\n\nb"), content("c\nd")]);
        check(&qwen(), "\n<think>\n\n</think>\n\nc", &[content("c")]);
        check(&qwen(), "a <think>b</think>", &[content("a <think>b</think>")]);
        check(&qwen(), "<thin", &[content("<thin")]);
        check(&qwen(), "<think>never ends </th", &[reasoning("never ends </th")]);
        check(&Reading { thinking: true, ..qwen() }, "a</think>b", &[reasoning("a"), content("b")]);
    }

    #[test]
    fn calls_stand_alone_behind_text_and_in_a_row() {
        let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>";
        let two = "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 2}}</tool_call>";
        check(&qwen(), one, &[call(1)]);
        check(&qwen(), &format!("Let me see.\n{one}\n{two}\n"), &[content("Let me see."), call(1), call(2)]);
        check(&qwen(), &format!("<think>\nt\n</think>\n\n{one}"), &[reasoning("t"), call(1)]);
        check(&qwen(), &format!("{one}\nDone.\n"), &[call(1), content("Done.\n")]);
        check(&qwen(), one.trim_end_matches("</tool_call>"), &[call(1)]);
    }

    #[test]
    fn what_is_no_call_is_shown_as_it_is() {
        for text in ["a <tool_call>{\"name\"", "<tool_call>nonsense</tool_call> b", "a <tool", "a < b\n\n"] {
            check(&qwen(), text, &[content(text)]);
        }
    }

    #[test]
    fn a_whole_answer_may_be_a_call() {
        let llama = Reading { tools: Some(Format::Bare), names: vec!["f".into()], ..Reading::default() };
        check(&llama, "\n{\"name\": \"f\", \"parameters\": {\"n\": 1}}", &[call(1)]);
        check(&llama, "{\"name\": \"g\", \"parameters\": {}}", &[content("{\"name\": \"g\", \"parameters\": {}}")]);
        check(&llama, "hello {", &[content("hello {")]);
    }
}
